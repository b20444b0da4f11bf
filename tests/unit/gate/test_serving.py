"""An exported model is served in a clean process, and failures are reported."""

import os
import signal
from shutil import copytree, rmtree

import numpy as np
import pytest

import small_models
from perennial.contracts.data import Split
from perennial.contracts.errors import DamagedModelError
from perennial.contracts.gate import Serving
from perennial.data.dataset import Dataset
from perennial.engine import export
from perennial.engine.evaluation.scoring import score_split
from perennial.engine.export import load_model
from perennial.gate import serving
from perennial.gate.champion import Champion
from perennial.gate.serving import INPUT_ROWS, difference, lower_bound, serve_in_clean_process
from small_models import GOOD, stream, write_challenger, write_snapshot

WORDS = """
from perennial.tasks.tabular import TabularClassification


class Worded(TabularClassification):
    def answer_texts(self, predictions, rows):
        return {"answer": ["yes" if each > 0.5 else "no" for each in predictions[:, 0]]}
"""


@pytest.fixture
def served(tmp_path):
    snapshot = write_snapshot(tmp_path / "data", stream())
    artifact = tmp_path / "challenger"
    write_challenger(artifact, snapshot, GOOD)
    dataset = Dataset(snapshot)
    task, model = load_model(artifact)
    predictions = score_split(task, model, dataset, Split.TEST).predictions

    def serve(harm=lambda artifact: None, moved=0.0, rival=None):
        harm(artifact)
        return serve_in_clean_process(artifact, task, dataset, predictions + moved, rival)

    return serve


def test_a_sound_export_predicts_the_same_and_is_measured(served):
    found = served()
    assert found.failure == ""
    assert found.rows == INPUT_ROWS
    assert 0 < found.milliseconds < 1000
    assert found.loading_seconds > 0
    assert 0 < found.megabytes < 1
    # The code that travels with a small model is larger than it, and the champion's has not shrunk.
    assert 0 < found.model_megabytes < found.megabytes / 10
    assert Champion("1", megabytes=1.01 * found.model_megabytes).gains(found)["smaller"]
    assert not Champion("1", megabytes=found.model_megabytes).gains(found)["smaller"]


def test_a_model_in_several_files_is_served_from_them(served, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "SHARD_BYTES", 1)
    snapshot = write_snapshot(tmp_path / "again", stream())
    found = served(lambda artifact: (rmtree(artifact), write_challenger(artifact, snapshot, GOOD)))
    shards = sorted(tmp_path.glob("challenger/model-*-of-*.safetensors"))
    assert len(shards) > 1
    assert not (tmp_path / "challenger" / export.WEIGHTS_FILE).exists()
    assert (found.failure, found.rows) == ("", INPUT_ROWS)
    assert found.model_megabytes > sum(file.stat().st_size for file in shards) / 1e6
    shards[0].write_bytes(shards[1].read_bytes())
    with pytest.raises(DamagedModelError, match="not those that were exported"):
        load_model(tmp_path / "challenger")


def test_a_classification_that_answers_texts_is_served(tmp_path, monkeypatch):
    (tmp_path / "worded.py").write_text(WORDS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(small_models, "TASK", "worded:Worded")
    snapshot, artifact = write_snapshot(tmp_path / "data", stream()), tmp_path / "challenger"
    write_challenger(artifact, snapshot, GOOD)
    task, model = load_model(artifact)
    predictions = score_split(task, model, Dataset(snapshot), Split.TEST).predictions
    found = serve_in_clean_process(artifact, task, Dataset(snapshot), predictions)
    assert (found.failure, found.rows) == ("", INPUT_ROWS)


def test_predictions_that_differ_from_the_evaluations_are_a_failure(served):
    assert "differ from the evaluation's by up to 0.01" in served(moved=np.float64(0.01)).failure


@pytest.mark.parametrize("unit", [1e-9, 1e-6, 1.0, 1e6])
def test_predictions_are_compared_by_their_own_size(unit):
    """In a small unit, a model that serves zeros or the opposite passed."""
    expected = unit * np.linspace(-1.0, 1.0, 200)
    served = expected[:INPUT_ROWS, None]
    assert difference(served * (1 + 1e-6), expected) == ""
    assert difference(served + 1e-6 * unit, expected) == ""
    assert "differ" in difference(0.0 * served, expected)
    assert "differ" in difference(-served, expected)


def test_rows_near_zero_are_compared_by_the_size_of_all_predictions():
    expected = np.concatenate([np.zeros(INPUT_ROWS), np.ones(10)])
    assert difference(np.full((INPUT_ROWS, 1), 1e-7), expected) == ""
    assert difference(np.zeros((INPUT_ROWS, 1)), expected[:INPUT_ROWS]) == ""


def test_damaged_weights_and_code_that_is_missing_are_failures(served):
    def forget(artifact):
        file = artifact / "challenger.json"
        file.write_text(file.read_text().replace("perennial.tasks.tabular", "left.behind"))

    assert "left" in served(forget).failure
    broken = served(lambda artifact: (artifact / "model.safetensors").write_bytes(b"x"))
    assert broken.failure
    assert broken.milliseconds is None


@pytest.mark.parametrize(
    ("kills", "failure"), [(1, ""), (2, "its process was killed, often because memory ran out")]
)
def test_a_model_whose_process_is_killed_from_outside_is_served_again(
    served, monkeypatch, kills, failure
):
    load_answer, killed = serving._CleanProcess.load_answer, []

    def load_after_a_kill(process, file):
        if len(killed) < kills:
            killed.append(process._id)
            os.kill(process._id, signal.SIGKILL)
        load_answer(process, file)

    monkeypatch.setattr(serving._CleanProcess, "load_answer", load_after_a_kill)
    assert served().failure == failure
    assert len(killed) == kills


def test_a_model_is_served_when_the_clean_interpreter_is_killed_before_it_is_asked(
    served, monkeypatch
):
    get, killed = serving._CleanInterpreter.get, []

    def get_then_kill():
        interpreter = get()
        if not killed:
            killed.append(interpreter)
            interpreter._process.kill()
            interpreter._process.wait()
        return interpreter

    monkeypatch.setattr(serving._CleanInterpreter, "get", get_then_kill)
    assert served().failure == ""
    assert killed


@pytest.mark.alone
def test_the_champion_is_timed_in_turns_and_a_model_is_no_faster_than_its_copy(served, tmp_path):
    copytree(tmp_path / "challenger", tmp_path / "champion")
    found = served(rival=tmp_path / "champion")
    assert found.failure == ""
    assert found.champion_milliseconds == pytest.approx(found.milliseconds, rel=0.5)
    assert not Champion("1").gains(found)["faster"]


def test_a_champion_that_does_not_serve_is_not_beaten_in_time(served, tmp_path):
    (tmp_path / "champion").mkdir()
    found = served(rival=tmp_path / "champion")
    assert found.failure == ""
    assert found.milliseconds > 0
    assert found.times_as_fast is None
    assert not Champion("1").gains(found)["faster"]


def test_a_bound_of_times_is_sure_of_a_difference_and_not_of_noise():
    random = np.random.default_rng(0)
    tails = random.exponential(size=(1000, 2, 60)) ** 2  # a machine with other work to do
    noise = (1 + tails[:, 0]) / (1 + tails[:, 1])
    assert np.mean([lower_bound(ratios) > 1 for ratios in noise]) <= 0.06
    assert np.mean([lower_bound(1.6 * ratios) > 1 for ratios in noise]) > 0.5
    assert Champion("1").gains(Serving(megabytes=1.0, times_as_fast=1.2))["faster"]
