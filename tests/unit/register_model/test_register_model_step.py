"""A promoted challenger becomes exactly one whole version, wherever an attempt is killed."""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from mlflow.artifacts import download_artifacts
from pydantic import ValidationError

from perennial.clients.tracking import open_mlflow, open_tracking
from perennial.contracts.data import Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Registration, Verdict
from perennial.contracts.lineage import Lineage
from perennial.contracts.monitoring import Reference
from perennial.contracts.snapshot import Snapshot, as_utc
from perennial.contracts.version_decisions import (
    GATE,
    REPLACED_TAG,
    VersionDecision,
    tags_of_rollback,
)
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import load_model
from perennial.register_model.config import RegistrySection
from perennial.register_model.step import register_model_step
from perennial.registry.champion_records import UnclearChampionError
from perennial.registry.model_registry import ModelRegistry, open_registry
from registration_inputs import CONTRACT, NAME, TRIGGER, step_arguments, write_inputs
from small_models import GOOD, NOISY


@pytest.fixture
def register(environment, tmp_path):
    def run(weights=GOOD, champion="", promote=True, contract=CONTRACT, trigger=TRIGGER):
        write_inputs(tmp_path, weights, champion, promote)
        register_model_step(**step_arguments(tmp_path, contract, trigger))
        return Registration.read(tmp_path / "registration")

    return run


def champion_of(environment):
    found = open_registry(environment).version_by_alias(NAME, "champion")
    return found.version if found else ""


def test_the_version_holds_all_that_scoring_and_monitoring_need(register, environment, tmp_path):
    registration = register()
    version = open_registry(environment).version_by_alias(NAME, "champion")
    assert version.version == registration.version == "1"
    folder = open_registry(environment).download(version, tmp_path / "downloads")
    assert {path.name for path in folder.iterdir()} == {
        "challenger.json", "contract.json", "lineage.json", "model.safetensors", "model_card.md",
        "reference.json", "skeleton.json", "snapshot.json", "verdict.json",
        # MLflow's
        "MLmodel", "code", "conda.yaml", "python_env.yaml", "requirements.txt",
        "example_rows.parquet", "example_predictions.json", "input_example.json",
        "serving_input_example.json",
    }  # fmt: skip
    task, model = load_model(folder)
    dataset = Dataset(Snapshot.read(folder))
    assert score_split(task, model, dataset, Split.TEST).metrics(task)["roc_auc"] > 0.8
    reference = Reference.read(folder)
    assert reference.performance == Verdict.read(folder).performance_reference
    assert reference.snapshot_digest == dataset.snapshot.digest()


@pytest.mark.parametrize("newest", [datetime(2100, 1, 1), datetime(2025, 3, 31)])
def test_monitoring_begins_at_the_present_where_a_row_is_of_the_future(
    environment, tmp_path, newest
):
    write_inputs(tmp_path, GOOD, "", True)
    snapshot = Snapshot.read(tmp_path / "snapshot").model_copy(update={"time_max": newest})
    snapshot.write(tmp_path / "snapshot")
    register_model_step(**step_arguments(tmp_path, CONTRACT, TRIGGER))
    version = open_registry(environment).version_by_alias(NAME, "champion")
    folder = open_registry(environment).download(version, tmp_path / "downloads")
    begins = Reference.read(folder).time_max
    assert begins == newest or abs(as_utc(begins) - datetime.now(UTC)) < timedelta(hours=1)


def test_lineage_records_data_code_and_reason(register, environment, tmp_path):
    register()
    version = register(NOISY, champion="1").version
    found = open_registry(environment).version_by_alias(NAME, "champion")
    folder = open_registry(environment).download(found, tmp_path / "downloads")
    lineage = Lineage.from_json((folder / "lineage.json").read_bytes())
    assert (lineage.seed, lineage.commit, lineage.parent_version) == (7, "", "1")
    assert lineage.trigger == json.loads(TRIGGER)
    assert {"torch", "polars", "numpy"} <= set(lineage.packages)
    assert lineage.tracking_run_id == found.run_id
    assert found.version == version == "2"
    assert found.tags["perennial.trigger"] == "drift"
    assert found.tags["team"] == "ads"


def test_uncommitted_changes_travel_with_the_version(register, environment, tmp_path, monkeypatch):
    run = tmp_path / "run"
    run.mkdir()
    (run / "uncommitted.diff").write_bytes(b"-rate = 1\n+rate = 2\n")
    monkeypatch.setenv("PERENNIAL_RUN_FOLDER", str(run))
    monkeypatch.setenv("PERENNIAL_IMAGE_DIGEST", "sha256:0f")
    register()
    registry = open_registry(environment)
    found = registry.version_by_alias(NAME, "champion")
    files = registry.read_files(found, ("uncommitted.diff", "lineage.json", "unknown"))
    assert set(files) == {"uncommitted.diff", "lineage.json"}
    lineage = Lineage.from_json(files["lineage.json"])
    assert files["uncommitted.diff"] == b"-rate = 1\n+rate = 2\n"
    assert lineage.diff_digest == hashlib.sha256(files["uncommitted.diff"]).hexdigest()
    assert lineage.image_digest == "sha256:0f"


def test_the_version_says_who_promoted_it_and_why(register, environment):
    register()
    tags = open_registry(environment).version_by_alias(NAME, "champion").tags
    decision = VersionDecision.of(tags, "promoted")
    assert (decision.by, decision.reason) == (GATE, "Promote: it is better.")
    assert tags[REPLACED_TAG] == ""


def test_a_run_is_tagged_as_promoted_once_its_version_is_champion(register, environment):
    made = register()
    tags = open_mlflow(environment).get_run(made.tracking_run_id).data.tags
    assert (tags["perennial.outcome"], tags["perennial.version"]) == ("Promoted", made.version)
    assert tags["mlflow.note.content"] == "**Promoted.** Promote: it is better."


def test_a_model_that_nobody_described_gets_a_description_that_people_may_replace(
    register, environment, tmp_path
):
    plain = CONTRACT.replace('"description":"Predicts clicks."', '"description":""')
    assert plain != CONTRACT
    register(contract=plain)
    client = open_mlflow(environment)
    text = client.get_registered_model(NAME).description
    assert "predicts `label` of " in text
    address = re.search(r'download_artifacts\("([^"]+)"\)', text)[1]
    folder = Path(download_artifacts(address, tracking_uri=environment.tracking_uri))
    assert (folder / "model_card.md").exists()
    client.update_registered_model(NAME, description="by the ads team")
    register(contract=plain)
    assert client.get_registered_model(NAME).description == "by the ads team"


def test_words_that_a_database_refuses_are_cut_or_refused_before_anything_starts(
    environment, tmp_path
):
    write_inputs(tmp_path)
    long = Verdict.read(tmp_path / "verdict").model_copy(update={"summary": "x" * 6000})
    long.write(tmp_path / "verdict")
    register_model_step(**step_arguments(tmp_path))
    assert len(open_registry(environment).version_by_alias(NAME, "champion").description) == 5000
    with pytest.raises(ValidationError, match="5000 characters"):
        RegistrySection(description="x" * 5001)


def test_a_retry_makes_no_second_version(register, environment):
    assert register().version == register().version == "1"
    assert len(open_registry(environment).versions(NAME)) == 1


def test_a_champion_that_moved_meanwhile_is_compared_with(register, environment, tmp_path):
    register(NOISY)
    second = register(GOOD, champion="")  # judged when there was no champion yet
    assert (second.version, second.replaced_version) == (champion_of(environment), "1")
    assert second.aliases == ("champion", "challenger")
    assert second.judged_again.champion_version == "1"
    registry = open_registry(environment)
    found = registry.version_by_alias(NAME, "champion")
    assert found.tags["perennial.parent_version"] == found.tags[REPLACED_TAG] == "1"
    verdict = Verdict.read(registry.download(found, tmp_path / "downloads"))
    assert verdict.champion_version == "1"
    assert VersionDecision.of(found.tags, "promoted").reason == verdict.summary


def test_a_champion_that_moved_meanwhile_and_is_not_beaten_stays(register, environment, tmp_path):
    register(GOOD)
    second = register(NOISY, champion="")
    assert (second.version, second.aliases) == ("", ())
    assert (second.judged_again.promote, second.judged_again.champion_version) == (False, "1")
    assert champion_of(environment) == "1"
    assert len(open_registry(environment).versions(NAME)) == 1
    assert "version 1" in (tmp_path / "report.html").read_text()
    run = open_mlflow(environment).get_run(second.tracking_run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["perennial.verdict"].startswith("Do not promote")


def test_what_was_rejected_against_a_replaced_champion_is_judged_again(
    register, environment, tmp_path
):
    """The version that it was not better than may be the one that a person took out."""
    register(NOISY)
    second = register(GOOD, champion="7", promote=False)
    assert (second.version, second.replaced_version) == (champion_of(environment), "1")
    assert (second.judged_again.promote, second.judged_again.champion_version) == (True, "1")
    assert "version 2 is champion in place of version 1" in (tmp_path / "report.html").read_text()
    run = open_mlflow(environment).get_run(second.tracking_run_id)
    assert run.data.tags["perennial.outcome"] == "Promoted"


@pytest.mark.parametrize(("champion", "is_judged_again"), [("7", True), ("1", False)])
def test_a_rejection_is_final_where_the_champion_stayed_or_is_not_beaten_either(
    register, environment, champion, is_judged_again
):
    register(GOOD)
    second = register(NOISY, champion=champion, promote=False)
    assert (second.version, champion_of(environment)) == ("", "1")
    assert (second.judged_again is not None) == is_judged_again
    assert len(open_registry(environment).versions(NAME)) == 1


def test_a_champion_that_moves_during_registration_is_compared_with(
    register, environment, monkeypatch
):
    """The version is registered by then, and stays as challenger."""
    register(GOOD)
    before, found = [None, None], ModelRegistry.version_by_alias
    monkeypatch.setattr(
        ModelRegistry,
        "version_by_alias",
        lambda self, *names: before.pop() if before else found(self, *names),
    )
    second = register(NOISY, champion="")
    assert (second.version, second.aliases) == ("2", ("challenger",))
    assert champion_of(environment) == "1"


def test_a_model_that_a_person_took_out_does_not_come_back_by_training_it_again(
    register, environment
):
    """A retry of the same run, and the next run on the same data, find the registered version."""
    register(NOISY)
    register(GOOD, champion="1")
    registry = open_registry(environment)
    registry.promote(
        NAME, "1", "2", tags_of_rollback("2", "1", VersionDecision.now("ada", "clicks fell"))
    )
    with pytest.raises(PerennialError, match=r"version 2, which was taken out .*\n.*clicks fell"):
        register(GOOD, champion="1")
    assert registry.aliases(NAME) == {"champion": "1", "challenger": "2"}
    registry.promote(
        NAME,
        "2",
        "1",
        {"2": VersionDecision("ada", "back", "2999-01-01 00:00:00").as_tags("promoted")},
    )
    assert register(GOOD, champion="1").version == champion_of(environment) == "2"


@pytest.mark.parametrize("harm", ["alias", "model"])
def test_a_champion_that_vanishes_during_the_run_stops_the_registration(
    register, environment, harm
):
    """Else the challenger would be the first model, and a deleted one would be made again."""
    register(GOOD)
    client = open_mlflow(environment)
    if harm == "alias":
        client.delete_registered_model_alias(NAME, "champion")
    else:
        client.delete_registered_model(NAME)
    before = [model.name for model in client.search_registered_models()]
    with pytest.raises(
        UnclearChampionError, match="clicks version 1 is the recorded champion, but"
    ):
        register(NOISY, champion="")
    assert [model.name for model in client.search_registered_models()] == before
    assert len(open_registry(environment).versions(NAME)) == len(before)


def test_a_rejected_challenger_is_left_where_it_is_and_the_page_reports_it(
    register, environment, tmp_path
):
    register()
    registration = register(NOISY, promote=False, champion="1")
    assert (registration.version, registration.aliases) == ("", ())
    assert len(open_registry(environment).versions(NAME)) == 1
    run = open_mlflow(environment).get_run(open_tracking(environment, NAME).run_id)
    assert run.data.tags["perennial.trigger"] == "drift"
    page = (tmp_path / "report.html").read_text()
    assert "Nothing was registered: version 1 stays champion." in page


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"contract": CONTRACT.replace('"seed":7', "")}, "no training.seed"),
        ({"contract": "[1]"}, "`contract` is not a JSON object of a contract's sections"),
        ({"trigger": "drift"}, "`trigger` is not a JSON object"),
    ],
)
def test_lineage_is_never_left_incomplete(register, environment, fields, problem):
    with pytest.raises(PerennialError, match=problem):
        register(**fields)
    assert open_registry(environment).versions(NAME) == []


def test_the_card_tells_waivers_limits_and_origin(register, environment, tmp_path):
    register()
    card = Path(
        open_registry(environment).download(
            open_registry(environment).version_by_alias(NAME, "champion"), tmp_path / "downloads"
        )
        / "model_card.md"
    ).read_text()
    for text in (
        "# clicks", "Predicts clicks.", "Promote: it is better.", "the champion saw 3 test rows",
        "not tested on data after 2025-03-31", "| constant |", "`signal`", "drift",
    ):  # fmt: skip
        assert text in card
    assert "Model card" in (tmp_path / "report.html").read_text()


@pytest.mark.parametrize("key", ["perennial.run_id", "mlflow.user", "", "a:b"])
def test_tags_that_would_collide_are_refused(key):
    with pytest.raises(ValueError, match="tags"):
        RegistrySection(tags={key: "x"})
