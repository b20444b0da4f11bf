"""A promoted challenger becomes exactly one whole version, wherever an attempt is killed."""

import hashlib
import json
from datetime import datetime
from pathlib import Path

import pytest

from components.clients import model_registry, tracking
from components.clients.dataset import Dataset
from components.clients.model_registry import ChampionMovedError, open_registry
from components.contracts.data import ModelSection, Split
from components.contracts.errors import PerennialError
from components.contracts.gate import BlockPerformance, GateReason, Registration, Verdict
from components.contracts.lineage import Lineage
from components.contracts.monitoring import Reference
from components.contracts.moves import GATE, REPLACED_TAG, Said
from components.contracts.skeleton import CheckResult, SkeletonReport
from components.contracts.snapshot import Snapshot
from components.contracts.training import TrainingResult
from components.contracts.validation import ValidationReport
from components.engine.evaluation.scoring import score_split
from components.engine.export import load_model
from components.register_model.config import RegisterModelConfig, RegistrySection
from components.register_model.step import register_model_step
from small_models import GOOD, NOISY, TASK, stream, write_challenger, write_skeleton, write_snapshot

NAME = "clicks"
CONTRACT = json.dumps({"training": {"seed": 7}})
TRIGGER = json.dumps({"trigger": "drift", "evidence": {"columns": ["price"]}})


class Killed(BaseException):
    """Ends an attempt in the middle, as a signal would."""


@pytest.fixture
def inputs(environment, tmp_path):
    """Every input of the step, as folders; `champion` is what the verdict compared with."""
    snapshot = write_snapshot(tmp_path / "data", stream())
    snapshot.write(tmp_path / "snapshot")
    ValidationReport(snapshot_digest=snapshot.digest(), facts={}, expectations=(), blocks=()).write(
        tmp_path / "validation"
    )

    def write(weights=GOOD, champion="", promote=True):
        challenger = write_challenger(tmp_path / "challenger", snapshot, weights)
        write_skeleton(tmp_path / "skeleton", constant=0.5)
        TrainingResult(
            fingerprint="training", task=TASK, options={}, columns=snapshot.task_columns,
            task_state={}, steps=10, world_size=1, strategy="single", num_parameters=3, history=(),
            evaluations=(), checkpoints=(), seconds=1.0, num_resumes=0,
        ).write(tmp_path / "training")  # fmt: skip
        Verdict(
            promote=promote, summary="Promote: it is better.", comparisons=(),
            reasons=(GateReason(condition="better", held=promote, detail="by much"),),
            baselines={"constant": {"roc_auc": 0.5}}, champion_version=champion, test_rows=500,
            test_blocks=20, notes=("the champion saw 3 test rows",),
            performance_reference=(BlockPerformance(start=datetime(2025, 1, 2), rows=9, loss=0.4),),
        ).write(tmp_path / "verdict")  # fmt: skip
        return challenger

    return write


@pytest.fixture
def register(inputs, tmp_path):
    def run(weights=GOOD, champion="", promote=True, contract=CONTRACT, trigger=TRIGGER):
        inputs(weights, champion, promote)
        names = ["snapshot", "validation", "training", "challenger", "skeleton", "verdict"]
        config = RegisterModelConfig(
            model=ModelSection(name=NAME, task=TASK),
            registry=RegistrySection(description="Predicts clicks.", tags={"team": "ads"}),
        )
        register_model_step(
            config=config.to_json(), contract=contract, trigger=trigger,
            **{name: str(tmp_path / name) for name in (*names, "registration")},
            report=str(tmp_path / "report.html"), metrics=str(tmp_path / "metrics"),
        )  # fmt: skip
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
    }  # fmt: skip
    task, model = load_model(folder)
    dataset = Dataset(Snapshot.read(folder))
    assert score_split(task, model, dataset, Split.TEST).metrics(task)["roc_auc"] > 0.8
    reference = Reference.read(folder)
    assert reference.performance == Verdict.read(folder).performance_reference
    assert reference.snapshot_digest == dataset.snapshot.digest()


def test_lineage_says_from_what_by_what_and_why(register, environment, tmp_path):
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
    said = Said.of(tags, "promoted")
    assert (said.by, said.reason) == (GATE, "Promote: it is better.")
    assert tags[REPLACED_TAG] == ""


def test_a_retry_makes_no_second_version(register, environment):
    assert register().version == register().version == "1"
    assert len(open_registry(environment).versions(NAME)) == 1


STAGES = [
    (tracking.MlflowTracking, "log_artifacts"),
    (model_registry.MlflowModelRegistry, "describe_model"),
    (model_registry.MlflowModelRegistry, "register"),
    (model_registry.MlflowModelRegistry, "set_alias"),
    (model_registry.MlflowModelRegistry, "promote"),
    (tracking.MlflowTracking, "finish"),
]


@pytest.mark.parametrize(
    "stage", [(*stage, when) for stage in STAGES for when in ("before", "after")]
)
def test_an_attempt_killed_anywhere_is_completed_by_a_retry(
    register, environment, monkeypatch, stage, tmp_path
):
    owner, name, when = stage
    original = getattr(owner, name)

    def killed(self, *args, **kwargs):
        if when == "after":
            original(self, *args, **kwargs)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, killed)
        with pytest.raises(Killed):
            register()
    registry = open_registry(environment)
    for version in registry.versions(NAME):  # whatever is visible is whole
        load_model(registry.download(version, tmp_path / "partial"))
    assert register().version == "1"
    assert len(registry.versions(NAME)) == 1
    assert champion_of(environment) == "1"


def test_a_champion_that_moved_meanwhile_stays(register, environment):
    register()
    with pytest.raises(ChampionMovedError, match="run the pipeline again"):
        register(NOISY, champion="")
    assert champion_of(environment) == "1"
    assert open_registry(environment).version_by_alias(NAME, "challenger").version == "2"


def test_a_rejected_challenger_cannot_be_registered(register, environment):
    with pytest.raises(PerennialError, match="rejected"):
        register(promote=False)
    assert open_registry(environment).versions(NAME) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"contract": "{}"}, "no training.seed"),
        ({"contract": "[1]"}, "`contract` is no JSON object"),
        ({"trigger": "drift"}, "`trigger` is no JSON object"),
    ],
)
def test_lineage_is_never_left_incomplete(register, environment, fields, problem):
    with pytest.raises(PerennialError, match=problem):
        register(**fields)
    assert open_registry(environment).versions(NAME) == []


def test_the_card_tells_waivers_limits_and_origin(register, environment, tmp_path, inputs):
    inputs()
    register()
    card = Path(
        open_registry(environment).download(
            open_registry(environment).version_by_alias(NAME, "champion"), tmp_path / "downloads"
        )
        / "model_card.md"
    ).read_text()
    for text in (
        "# clicks", "Predicts clicks.", "Promote: it is better.", "the champion saw 3 test rows",
        "nothing is known about data after 2025-03-31", "| constant |", "`signal`", "drift",
    ):  # fmt: skip
        assert text in card
    assert "Model card" in (tmp_path / "report.html").read_text()


def test_what_the_contract_lets_pass_stands_on_the_card():
    from components.register_model.model_card import CardContent, _limits

    waived = CheckResult(
        check="overfit_one_batch", outcome="failed", measured="0.5", expected="0.0",
        source="guide", waived="labels are noisy by nature",
    )  # fmt: skip
    off, mild = (
        CheckResult(
            check=check, outcome=outcome, measured="0.5", expected="0.0", source="guide",
            severity=severity,
        )
        for check, outcome, severity in (
            ("augmentation", "skipped", "off"), ("labels", "warned", "warn"),
        )
    )  # fmt: skip
    skeleton = SkeletonReport(results=(waived, off, mild), baselines={})
    verdict = Verdict(
        promote=True, summary="", reasons=(), comparisons=(), baselines={}, test_rows=1,
        test_blocks=1, performance_reference=(),
    )  # fmt: skip
    snapshot = Snapshot.model_construct(time_max=None)
    content = CardContent("clicks", "", snapshot, None, skeleton, None, None, verdict, None)
    limits = " ".join(_limits(content))
    assert "overfit_one_batch failed and was waived: labels are noisy by nature" in limits
    assert "augmentation was not checked: the contract switches it off" in limits
    assert "labels failed; the contract makes a warning of it" in limits


@pytest.mark.parametrize("key", ["perennial.run_id", "mlflow.user", "", "a:b"])
def test_tags_that_would_collide_are_refused(key):
    with pytest.raises(ValueError, match="tags"):
        RegistrySection(tags={key: "x"})
