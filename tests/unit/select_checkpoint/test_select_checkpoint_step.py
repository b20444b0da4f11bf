"""Real checkpoints are scored on all validation rows and one becomes a portable model."""

import shutil
from pathlib import Path

import pytest
import torch

from perennial.clients.tracking import open_mlflow, open_tracking
from perennial.contracts.data import ModelSection, Split
from perennial.contracts.environment import CACHE
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import (
    Challenger,
    EvaluationPoint,
    Signal,
    TrainingResult,
)
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpoint_store import CheckpointStore, open_checkpoint_store
from perennial.engine.checkpoints.folder import (
    CheckpointManifest,
    committed,
    partial_path,
)
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import load_model
from perennial.select_checkpoint.candidates import select_challenger
from perennial.select_checkpoint.config import SelectCheckpointConfig, SelectionSection
from perennial.select_checkpoint.step import select_checkpoint_step
from small_models import GOOD, NOISY, TASK, USELESS, linear_model, stream, write_snapshot

NAME = "clicks"


@pytest.fixture
def snapshot(tmp_path):
    made = write_snapshot(tmp_path / "data", stream())
    made.write(tmp_path / "snapshot")
    return made


@pytest.fixture
def train(snapshot, leave_training):
    """A training that came to the given weights of signal and noise."""

    def write(weights_by_step, averages=None, evaluations=()):
        states = {}
        for step, weights in weights_by_step.items():
            task, model = linear_model(snapshot, weights)
            averaged = linear_model(snapshot, averages[step])[1] if averages else None
            states[step] = (
                model.state_dict(),
                dict(averaged.named_parameters()) if averaged else None,
            )
        leave_training(TASK, task, states, evaluations)

    return write


@pytest.fixture
def selected(environment, train, tmp_path):
    def run(weights_by_step, damage=(), averages=None, evaluations=(), **section):
        train(weights_by_step, averages, evaluations)
        for step in damage:
            (tmp_path / "checkpoints" / f"step-{step:08}" / ".metadata").write_bytes(b"x")
        config = SelectCheckpointConfig(
            model=ModelSection(name=NAME, task=TASK), selection=SelectionSection(**section)
        )
        result = select_checkpoint_step(
            contract=config.to_json(),
            snapshot=str(tmp_path / "snapshot"),
            training=str(tmp_path / "training"),
            challenger=str(tmp_path / "challenger"),
            report=str(tmp_path / "report.html"),
            selection=str(tmp_path / "selection"),
        )
        return result, Challenger.read(tmp_path / "challenger")

    return run


def test_the_best_checkpoint_becomes_a_model_that_scores_as_it_did(selected, snapshot, tmp_path):
    result, challenger = selected({10: NOISY, 20: GOOD, 30: NOISY})
    assert challenger.chosen_step == 20
    task, model = load_model(tmp_path / "challenger")
    scored = score_split(task, model, Dataset(snapshot), Split.VALIDATION)
    assert scored.metrics(task) == challenger.candidates[1].metrics
    assert result.metrics["validation/chosen_roc_auc"] == scored.metrics(task)["roc_auc"]


def test_averaged_weights_are_candidates_and_are_exported_when_they_win(
    selected, snapshot, tmp_path
):
    result, challenger = selected({10: NOISY, 20: NOISY}, averages={10: NOISY, 20: GOOD})
    assert (challenger.chosen_step, challenger.chosen_averaged) == (20, True)
    assert [each.averaged for each in challenger.candidates] == [False, True, False, True]
    _, model = load_model(tmp_path / "challenger")
    expected = linear_model(snapshot, GOOD)[1].state_dict()
    assert all(torch.equal(expected[name], value) for name, value in model.state_dict().items())
    assert "step 20, averaged" in (tmp_path / "report.html").read_text()
    assert "step 20, averaged" in result.summary


def test_several_processes_find_and_export_what_one_does(selected, tmp_path):
    # The task scores 4,096 rows at a time, and there are 540: one process has none.
    weights = {10: NOISY, 20: USELESS}
    averages = {10: NOISY, 20: GOOD}
    _, one = selected(weights, averages=averages, processes=1)
    page = (tmp_path / "report.html").read_text()
    shutil.rmtree(tmp_path / "checkpoints")
    _, several = selected(weights, averages=averages, processes=2)
    assert several == one
    assert (tmp_path / "report.html").read_text() == page


def test_every_candidate_has_the_error_of_its_figure(selected):
    _, challenger = selected({10: NOISY, 20: GOOD})
    assert all(0.003 < candidate.standard_error < 0.05 for candidate in challenger.candidates)


def test_what_the_last_checkpoint_would_have_been_is_tracked(selected, environment):
    result, _ = selected({10: GOOD, 20: NOISY})
    run = open_mlflow(environment).get_run(open_tracking(environment, NAME).run_id)
    assert run.data.metrics == result.metrics
    assert result.metrics["validation/last_roc_auc"] < result.metrics["validation/best_roc_auc"]


def test_the_loss_may_choose(selected):
    _, challenger = selected({10: (9.0, 0.0), 20: GOOD}, metric="loss")
    assert (challenger.metric, challenger.direction) == ("loss", "minimize")
    assert challenger.chosen_step == 20


def test_a_damaged_checkpoint_is_left_out(selected, tmp_path):
    _, challenger = selected({10: NOISY, 20: GOOD}, damage=[20])
    assert [candidate.step for candidate in challenger.candidates] == [10]
    # With it, an equal training would count as finished.
    assert CheckpointStore(tmp_path / "checkpoints").steps() == [10]
    assert (tmp_path / "checkpoints" / "step-00000020.damaged").is_dir()


def test_only_damaged_checkpoints_are_an_error(selected):
    with pytest.raises(PerennialError, match="none of the kept checkpoints can be read"):
        selected({10: NOISY}, damage=[10])


def test_the_page_shows_candidates_and_advice(selected, tmp_path):
    selected({10: NOISY, 20: GOOD})
    page = Path(tmp_path / "report.html").read_text()
    for text in ("step 20", "too few for a diagnosis", "<svg", "last checkpoint"):
        assert text in page
    assert "advice" not in page, "there is none"


LEFT, RIGHT = (2.0, 2.0), (2.0, -2.0)  # their mean is GOOD


def test_what_was_seen_in_training_is_on_the_page_and_goes_to_the_gate(selected, tmp_path):
    selected({10: NOISY, 20: GOOD})
    folder = tmp_path / "training"
    signal = Signal(kind="clipping", from_step=5, to_step=9, evidence="clips", remedy="raise it")
    noted = {"signals": (signal,), "turned_off": ("weight decay",)}
    TrainingResult.read(folder).model_copy(update=noted).write(folder)
    select_challenger(
        SelectionSection(), tmp_path / "snapshot", folder, tmp_path / "again",
        page=tmp_path / "again.html",
    )  # fmt: skip
    page = (tmp_path / "again.html").read_text()
    assert "While it trained: clips (step 5 to 9): raise it." in page
    assert "training.simplified turned off weight decay." in page
    challenger = Challenger.read(tmp_path / "again")
    assert (challenger.signals, challenger.turned_off) == (noted["signals"], noted["turned_off"])


@pytest.mark.parametrize("option", [{"average_last": 2}, {"average_best": 2}])
def test_the_mean_of_checkpoints_is_exported_when_it_wins(selected, snapshot, tmp_path, option):
    _, challenger = selected({10: USELESS, 20: LEFT, 30: RIGHT}, **option)
    titles = [each.title for each in challenger.candidates]
    assert titles == ["step 10", "step 20", "step 30", "mean of steps 20, 30"]
    assert challenger.chosen_members == (20, 30)
    task, model = load_model(tmp_path / "challenger")
    scored = score_split(task, model, Dataset(snapshot), Split.VALIDATION)
    assert scored.metrics(task) == challenger.candidates[-1].metrics


def test_a_mean_needs_two_checkpoints_and_equal_means_are_one(selected):
    _, one = selected({10: GOOD}, average_last=3, average_best=3)
    assert [each.title for each in one.candidates] == ["step 10"]


def test_a_damaged_checkpoint_is_no_part_of_a_mean(selected):
    _, challenger = selected({10: NOISY, 20: LEFT, 30: RIGHT}, damage=[30], average_last=3)
    assert challenger.candidates[-1].members == (10, 20)


def test_a_limit_of_the_contract_rules_a_checkpoint_out(selected, tmp_path):
    large = tuple(30 * value for value in GOOD)  # the same order of rows, absurd confidence
    _, free = selected({10: large, 20: NOISY})
    assert free.chosen_step == 10
    loss = free.candidates[0].metrics["log_loss"]
    _, guarded = selected({10: large, 20: NOISY}, limits={"log_loss": loss * 0.9})
    assert guarded.chosen_step == 20
    assert "step 10 is not eligible" in Path(tmp_path / "report.html").read_text()


def test_the_page_says_what_other_ways_would_have_shipped(selected, tmp_path):
    curve = {5: 0.6, 10: 0.7, 15: 0.65, 20: 0.8, 25: 0.7, 30: 0.6, 35: 0.6, 40: 0.5, 45: 0.5}
    points = tuple(
        EvaluationPoint(step=step, train_loss=1.0, metrics={"loss": 1.0, "roc_auc": area})
        for step, area in curve.items()
    )
    _, challenger = selected({20: GOOD, 45: NOISY}, evaluations=points)
    page = Path(tmp_path / "report.html").read_text()
    for text in ("early stopping, patience 3", "best roc_auc during training", "train shorter"):
        assert text in page
    assert (challenger.advice, challenger.next_steps) == ("shorter", 15)


def test_candidates_are_read_from_an_s3_store(selected, snapshot, bucket, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    local, _ = selected({10: NOISY, 20: GOOD})
    store = open_checkpoint_store(f"{bucket}/training/checkpoints")
    for path in committed(tmp_path / "checkpoints"):
        manifest = CheckpointManifest.read(path)
        shutil.copytree(path, partial_path(store.folder, manifest.step))
        store.upload(manifest.step, manifest.files)
        store.commit(manifest)
    training = TrainingResult.read(tmp_path / "training")
    records = [
        record.model_copy(update={"uri": store.uri_of(record.step)})
        for record in training.checkpoints
    ]
    shutil.rmtree(tmp_path / "cache")
    shutil.rmtree(tmp_path / "checkpoints")
    training.model_copy(update={"checkpoints": tuple(records)}).write(tmp_path / "remote")
    config = SelectCheckpointConfig(
        model=ModelSection(name=NAME, task=TASK), selection=SelectionSection()
    )
    result = select_checkpoint_step(
        contract=config.to_json(), snapshot=str(tmp_path / "snapshot"),
        training=str(tmp_path / "remote"), challenger=str(tmp_path / "again"),
        report=str(tmp_path / "report.html"), selection=str(tmp_path / "selection"),
    )  # fmt: skip
    assert result.metrics == local.metrics
    first, again = (Challenger.read(tmp_path / name) for name in ("challenger", "again"))
    assert again.weights_sha256 == first.weights_sha256
