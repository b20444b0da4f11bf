"""Challenger and champion meet on real rows, real weights and a real registry."""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from perennial.clients.object_store import open_store
from perennial.clients.tracking import open_mlflow, open_tracking
from perennial.contracts.data import ModelSection, Split, SplitSection
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.gate import Verdict
from perennial.contracts.initial_model import Champions, InitialModel, Origin, Teachers
from perennial.contracts.training import Signal
from perennial.data.dataset import Dataset
from perennial.engine.evaluation import resampling
from perennial.engine.metrics import arrays
from perennial.evaluate_model.step import evaluate_model_step
from perennial.gate import comparison, repeats, slices
from perennial.gate.config import GateSection, JudgementConfig
from perennial.registry.initial import with_rule
from perennial.registry.model_registry import open_registry
from small_models import (
    GOOD,
    NOISY,
    ROWS_PER_DAY,
    TASK,
    USELESS,
    average_with,
    linear_model,
    stream,
    write_baseline_rows,
    write_challenger,
    write_skeleton,
    write_snapshot,
)
from taught import pinned

NAME = "clicks"
CONSTANT = {"constant": 0.5}


@pytest.fixture
def snapshot(tmp_path):
    made = write_snapshot(tmp_path / "data", stream())
    made.write(tmp_path / "snapshot")
    return made


@pytest.fixture
def judged(environment, snapshot, tmp_path):
    """Runs the step on a challenger and returns its result and verdict."""

    def run(weights, gate=None, baselines=CONSTANT, constant=None, among=None, **challenger):
        write_challenger(tmp_path / "challenger", snapshot, weights, **challenger)
        if among is not None:
            average_with(tmp_path / "challenger", snapshot, among)
        write_skeleton(tmp_path / "skeleton", **baselines)
        if constant is not None:
            write_baseline_rows(tmp_path / "skeleton", snapshot, constant)
        config = JudgementConfig(
            model=ModelSection(name=NAME, task="perennial.tasks.tabular:TabularClassification"),
            gate=gate
            or GateSection(resamples=300, min_effective_days=2.0),  # its days are independent
        )
        result = evaluate_model_step(
            contract=config.to_json(),
            snapshot=str(tmp_path / "snapshot"),
            challenger=str(tmp_path / "challenger"),
            skeleton=str(tmp_path / "skeleton"),
            verdict=str(tmp_path / "verdict"),
            report=str(tmp_path / "report.html"),
            metrics=str(tmp_path / "metrics"),
        )
        return result, Verdict.read(tmp_path / "verdict")

    return run


@pytest.fixture
def crown(environment, snapshot, tmp_path):
    """Makes a model champion, with a snapshot of its own if need be."""

    def register(weights, trained_on=None, damage=lambda folder: None):
        folder = tmp_path / "champion"
        write_challenger(folder, trained_on or snapshot, weights)
        (trained_on or snapshot).write(folder)
        damage(folder)
        tracking = open_tracking(environment, NAME)
        tracking.log_artifacts(folder, "champion")
        registry = open_registry(environment)
        registry.describe_model(NAME, "", {})
        version = registry.register(
            NAME, source=tracking.artifact_uri("champion"), run_id=tracking.run_id,
            fingerprint="f", tags={}, description="",
        )  # fmt: skip
        registry.promote(NAME, version.version, "")

    return register


def failed(verdict):
    return [reason.condition for reason in verdict.reasons if not reason.held]


def test_the_first_model_is_promoted_if_it_beats_the_baselines(judged, environment, tmp_path):
    result, verdict = judged(GOOD)
    page = (tmp_path / "report.html").read_text()
    assert "No champion was compared with." in page
    assert 'data-name="improvement"' not in page
    assert verdict.promote
    assert result.parameters == {"promote": True}
    assert verdict.champion_version == ""
    assert verdict.test_blocks == verdict.test_rows / ROWS_PER_DAY
    assert result.metrics["test/roc_auc"] > 0.8
    run = open_mlflow(environment).get_run(open_tracking(environment, NAME).run_id)
    assert run.data.metrics == result.metrics
    assert run.info.status == "RUNNING"  # register_model goes on with it


def recorded_trainings(environment):
    stored = open_store(environment.store_uri).read(f"triggers/{NAME}/state.json")
    return json.loads(stored)["retrainings"] if stored else []


def test_a_training_whose_challenger_lost_counts_for_the_next_retraining(
    judged, crown, environment, snapshot
):
    crown(GOOD)
    _, verdict = judged(NOISY)
    assert not verdict.promote
    (recorded,) = recorded_trainings(environment)
    assert recorded["snapshot_digest"] == snapshot.digest()
    assert recorded["rows"] == snapshot.rows
    assert datetime.fromisoformat(recorded["data_time"]) == snapshot.time_max


def test_a_model_for_debugging_counts_as_no_training(judged, environment):
    judged(GOOD, turned_off=("dropout in 2 places of the model",))
    assert recorded_trainings(environment) == []


def test_the_verdict_is_the_same_where_the_rows_lie_in_files_and_are_read_in_parts(
    judged, crown, monkeypatch
):
    crown(NOISY)
    gate = GateSection(resamples=300, slices=("label",), slice_min_rows=20)
    _, whole = judged(GOOD, gate=gate)
    monkeypatch.setattr(arrays, "IN_MEMORY_BYTES", 0)
    for module in (arrays, comparison, repeats, resampling, slices):
        monkeypatch.setattr(module, "NUMBERS_AT_ONCE", 100)
    _, parts = judged(GOOD, gate=gate)
    (expected, found) = (each.model_dump(exclude={"serving"}) for each in (whole, parts))
    assert flat(found) == pytest.approx(flat(expected), rel=1e-9)


def flat(document, place=""):
    """The numbers of a document by place; texts, which show rounded ones, are left out."""
    if isinstance(document, dict):
        document = list(document.items())
    elif isinstance(document, (list, tuple)):
        document = list(enumerate(document))
    else:
        return {place: float(document)} if isinstance(document, (int, float)) else {}
    return {key: n for name, each in document for key, n in flat(each, f"{place}.{name}").items()}


def test_the_first_model_that_learned_nothing_is_rejected(judged, environment):
    result, verdict = judged(USELESS, baselines={"constant": 0.8})
    assert result.parameters == {"promote": False}
    assert failed(verdict) == ["beats the baseline constant"]
    run = open_mlflow(environment).get_run(open_tracking(environment, NAME).run_id)
    assert run.info.status == "FINISHED"
    assert run.data.tags["perennial.verdict"] == verdict.summary
    assert run.data.tags["perennial.outcome"] == "Not promoted"  # there is no champion to keep
    assert run.data.tags["mlflow.note.content"].startswith("**Not promoted.** ")
    (page,) = open_mlflow(environment).list_artifacts(run.info.run_id, "reports")
    assert page.path == "reports/evaluate_model.html"


def test_a_challenger_is_not_tagged_as_promoted_before_it_is_registered(judged, environment):
    _, verdict = judged(GOOD)
    assert verdict.promote
    tags = open_mlflow(environment).get_run(open_tracking(environment, NAME).run_id).data.tags
    assert "perennial.outcome" not in tags
    assert tags["mlflow.note.content"] == tags["perennial.verdict"] == verdict.summary


def test_a_baseline_is_beaten_by_the_bound_of_the_difference(judged, snapshot):
    rows = Dataset(snapshot).scan(Split.TEST).collect()
    nearly = rows["signal"].to_numpy() + np.random.default_rng(0).normal(0, 0.15, rows.height)
    _, verdict = judged(GOOD, constant=nearly)
    (lost,) = [reason for reason in verdict.reasons if not reason.held]
    assert "does not significantly beat" in lost.detail
    figure, score = re.findall(r"0\.\d+", lost.detail)[:2]
    assert float(figure) > float(score), "better by the estimate alone"
    _, verdict = judged(GOOD, constant=np.full(rows.height, 0.5))
    assert verdict.promote
    (beaten,) = [each for each in verdict.reasons if each.condition.startswith("beats")]
    assert re.search(r"lower bound of the difference \+0\.3", beaten.detail)


def test_damaged_predictions_of_baselines_are_an_error(judged, tmp_path, snapshot):
    (tmp_path / "skeleton").mkdir()
    (tmp_path / "skeleton/baselines.npz").write_bytes(b"PK half a file")
    with pytest.raises(PerennialError, match="baselines' predictions cannot be read"):
        judged(GOOD)


def test_a_better_challenger_replaces_the_champion(judged, crown):
    crown(NOISY)
    _, verdict = judged(GOOD)
    assert verdict.promote
    assert verdict.champion_version == "1"
    assert verdict.comparisons[0].improvement.low > 0


def test_a_worse_challenger_does_not(judged, crown):
    crown(GOOD)
    result, verdict = judged(NOISY)
    assert failed(verdict) == ["better than the champion"]
    assert result.metrics["test/roc_auc_improvement"] < 0


def test_an_equally_good_challenger_does_not(judged, crown):
    crown(GOOD)
    _, verdict = judged((2.0, 0.001))
    assert failed(verdict) == ["better than the champion"]


def test_a_second_challenger_on_the_same_days_must_show_more(judged, crown, tmp_path, monkeypatch):
    crown(NOISY)
    _, first = judged(USELESS)
    monkeypatch.setenv("PERENNIAL_RUN_ID", "another run")
    _, other = judged(GOOD)
    assert (first.repeats.earlier, first.repeats.level) == (0, pytest.approx(0.05))
    assert (other.repeats.earlier, other.repeats.worth) == (1, 1.0)
    assert other.comparisons[0].confidence > 0.97
    assert "1 challenger was already tested on these days" in other.reasons[0].detail
    assert "Repeated tests" in (tmp_path / "report.html").read_text()


def test_a_challenger_that_is_not_worse_must_be_fresher(judged, crown, snapshot):
    gate = GateSection(resamples=300, mode="non_inferior", margin=0.02, min_effective_days=2.0)
    earlier = snapshot.time_max - timedelta(days=9)
    crown(GOOD, trained_on=snapshot.model_copy(update={"time_max": earlier}))
    assert judged((2.0, 0.001), gate)[1].promote
    crown(GOOD)
    assert failed(judged((2.0, 0.001), gate)[1]) == ["fresher than the champion"]


def test_the_champion_trained_again_is_recognised(judged, crown):
    crown(GOOD)
    _, verdict = judged(GOOD)
    assert failed(verdict) == ["differs from the champion"]


def test_a_slice_that_pays_for_the_average_blocks(judged, crown, snapshot, tmp_path):
    frame = stream()
    mirrored = frame.with_columns(
        signal=pl.when(pl.col("region") == "b").then(-pl.col("signal")).otherwise(pl.col("signal"))
    )
    # The challenger is right about region a and wrong about b, the champion weak but right on both.
    write_snapshot(tmp_path / "mirrored", mirrored).write(tmp_path / "snapshot")
    crown((0.0, 0.0))
    gate = GateSection(resamples=300, slices=("region",), slice_min_rows=50)
    _, verdict = judged(GOOD, gate)
    assert failed(verdict) == ["no slice regresses"]
    assert [entry.value for entry in verdict.slices if entry.regressed] == ["b"]


def test_a_damaged_champion_stops_the_step(judged, crown):
    crown(NOISY, damage=lambda folder: (folder / "model.safetensors").write_bytes(b"x"))
    with pytest.raises(DamagedModelError, match=r"version 1 is damaged: model\.safetensors"):
        judged(GOOD)


def of_another_task(folder):
    """As after the user's code moved: it cannot be imported any more."""
    file = folder / "challenger.json"
    file.write_text(file.read_text().replace(TASK, "no_such_module:Task"))


def test_a_champion_whose_code_is_missing_is_replaced_only_if_a_person_allows_it(
    judged, crown, tmp_path
):
    crown(NOISY, damage=of_another_task)
    _, verdict = judged(GOOD)
    assert failed(verdict) == ["better than the champion"]
    assert "gate.replace_unscored_champion = true" in verdict.summary
    assert verdict.champion_version == "1"
    _, verdict = judged(GOOD, GateSection(resamples=300, replace_unscored_champion=True))
    assert verdict.promote
    page = (tmp_path / "report.html").read_text()
    assert "is replaced without a comparison: gate.replace_unscored_champion is set" in page


def test_a_champion_whose_predictions_are_not_finite_is_kept(judged, crown):
    crown((float("nan"), 0.0))
    _, verdict = judged(GOOD)
    assert failed(verdict) == ["better than the champion"]
    assert "its predictions are not finite" in verdict.summary


def test_a_champion_whose_files_are_missing_is_an_error_not_a_free_pass(judged, crown, tmp_path):
    crown(NOISY)
    for path in sorted((tmp_path / "store" / "mlflow-artifacts").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with pytest.raises(PerennialError, match="cannot be downloaded"):
        judged(GOOD)


def test_test_rows_that_the_champion_was_trained_on_are_counted(judged, crown, snapshot, tmp_path):
    other = snapshot.model_copy(update={"split": SplitSection(test_fraction=0.1)})
    crown(NOISY, trained_on=other)
    _, verdict = judged(GOOD)
    note = verdict.notes[0]
    assert "biases the comparison towards the champion" in note
    count = int(note.split(": ")[1].split(" of")[0].replace(",", ""))
    assert 0.4 * verdict.test_rows < count < verdict.test_rows


def test_a_champion_with_other_features_is_compared_and_noted(judged, crown, snapshot):
    narrow = snapshot.data.model_copy(update={"meta": ("noise", "region")})
    crown((1.0, 0.0), trained_on=snapshot.model_copy(update={"data": narrow}))
    _, verdict = judged(GOOD)
    assert verdict.notes == ("version 1 was trained without noise",)
    assert verdict.comparisons[0].champion > 0.8


def test_an_unknown_slice_column_is_an_error_that_lists_the_columns(judged):
    with pytest.raises(PerennialError, match="planet"):
        judged(GOOD, GateSection(slices=("planet",)))


def test_an_unknown_metric_is_an_error(judged):
    with pytest.raises(PerennialError, match="f1"):
        judged(GOOD, GateSection(max_regression={"f1": 0.1}))


def test_the_performance_reference_lies_on_the_calendar_grid(judged, snapshot):
    _, verdict = judged(GOOD)
    blocks = verdict.performance_reference
    held_out = sum(rows for split, rows in snapshot.split_rows.items() if split != "train")
    assert sum(block.rows for block in blocks) == held_out
    days = [(block.start.toordinal() - 719163) for block in blocks]  # since 1970-01-01
    assert all(day % 7 == 0 for day in days)
    assert days == sorted(set(days))
    assert all(0.1 < block.loss < 1.5 for block in blocks)


def test_the_same_inputs_give_the_same_verdict(judged, crown):
    crown(NOISY)
    first, second = (judged(GOOD)[1].model_copy(update={"serving": None}) for _ in range(2))
    assert first == second, "only times may differ"


def test_the_page_shows_verdict_intervals_baselines_and_calibration(judged, crown, tmp_path):
    crown(NOISY)
    _, verdict = judged(GOOD, GateSection(resamples=300, slices=("region",), slice_min_rows=50))
    assert verdict.expected_calibration_errors.keys() == {"challenger", "champion"}
    page = Path(tmp_path / "report.html").read_text()
    for text in (
        verdict.reasons[0].condition,
        "Calibration",
        "Slices",
        "Baselines",
        "<svg",
        "DeLong",
    ):
        assert text in page


@pytest.mark.parametrize(("test_fraction", "is_seen"), [(0.25, False), (0.05, True)])
def test_the_gate_warns_of_initial_weights_and_teachers_that_have_seen_test_rows(
    judged, snapshot, test_fraction, is_seen
):
    """A warm start under the same split rule has seen none; under another, rows are counted."""
    rule = snapshot.split.model_copy(update={"test_fraction": test_fraction})
    seen = with_rule((), snapshot.model_copy(update={"split": rule}))
    origin = Origin(source="version", uri="mlflow", model="big", version="2", files={}, seen=seen)
    pinned = InitialModel(origin=origin, store_uri="unread")
    teachers = Teachers(asked=("big@2",), members=(pinned,))
    _, verdict = judged(GOOD, initial=pinned, teachers=teachers)
    for who in ("the initial weights were", "the teacher big version 2 was"):
        warnings = [note for note in verdict.notes if note.startswith(who)]
        assert bool(warnings) is is_seen
        if is_seen:
            known = r" trained or selected on \d+ of \d+ test rows, under another split rule"
            assert re.fullmatch(who + known, warnings[0])


def test_an_ensemble_is_judged_as_one_challenger(judged, crown, snapshot, tmp_path, monkeypatch):
    """Selection chose it on validation rows: test rows are looked at once, and that counts once."""
    crown(NOISY)
    task, model = linear_model(snapshot, (2.0, -2.0))
    told = {"source": "champion", "version": "1", "seen": with_rule((), snapshot)}
    mirrored = pinned(tmp_path / "store", task, model.state_dict(), **told)
    _, verdict = judged((2.0, 1.8), among=Champions(members=(mirrored,)))
    assert verdict.promote
    assert verdict.comparisons[0].improvement.low > 0.02
    assert (verdict.repeats.earlier, verdict.repeats.level) == (0, pytest.approx(0.05))
    assert not [note for note in verdict.notes if "member" in note]
    monkeypatch.setenv("PERENNIAL_RUN_ID", "another run")
    _, other = judged(GOOD)
    assert other.repeats.earlier == 1


def test_a_simplified_training_is_never_promoted_and_spends_no_test(judged, crown, tmp_path):
    crown(NOISY)
    _, verdict = judged(GOOD, turned_off=("dropout in 2 places of the model",))
    assert failed(verdict) == ["trained in full"]
    assert verdict.summary.startswith("Do not promote: training.simplified turned off dropout in 2")
    assert verdict.repeats is None
    _, full = judged(GOOD)
    assert full.promote
    assert full.repeats.earlier == 0


def test_what_was_seen_while_it_trained_is_on_the_verdict_page(judged, tmp_path):
    signal = Signal(kind="plateau", from_step=400, evidence="the loss stands", remedy="go on")
    _, verdict = judged(GOOD, signals=(signal,))
    note = "while it trained, the loss stands (step 400 to the end): go on"
    assert note in verdict.notes
    assert verdict.promote, "a signal warns and decides nothing"
    assert note in (tmp_path / "report.html").read_text()
    _, quiet = judged(GOOD)
    assert quiet.notes == ()
