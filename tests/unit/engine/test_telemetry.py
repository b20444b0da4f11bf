"""Every signal of a training's health is measured, written as it happens, and kept."""

import json
import logging
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from documents import SMALL, documents, pinned
from perennial.contracts.data import ModelSection, Split
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import EvaluationPoint, Halving, Signal
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.evaluation.sampled import WATCHED, watched_values
from perennial.engine.evaluation.scoring import ScoredBatch
from perennial.engine.loop.telemetry import LOAD_SECONDS, DeviceLoad, machine_load
from perennial.engine.task import LABEL, inputs_of
from perennial.train_model.report import training_page
from tiny_training import TinyOptions, finished, tiny_job

LANGUAGE_MODEL = "perennial.tasks.language_modeling:CausalLanguageModel"


@pytest.fixture(scope="module")
def result(root):
    job = tiny_job(root, log_every_steps=5, peak_tflops=1e-3, profile={"start_step": 2, "steps": 3})
    return job, finished(job)


def test_each_point_has_every_signal(result):
    _, training = result
    assert [point.step for point in training.history] == [5, 10, 15, 20]
    for point in training.history:
        measured = point.model_dump()
        # Neither has this task tokens, nor a CPU a driver that counts when it computes.
        assert (measured.pop("tokens_per_second"), measured.pop("device_busy")) == (None, None)
        assert all(math.isfinite(value) for value in measured.values())
        assert 1e-6 < point.update_ratio < 0.1
        assert point.memory_bytes > 2**20
        assert 0.0 <= point.data_wait_share <= 1.0


def test_utilization_is_arithmetic_per_second_over_the_peak_of_all_processes(result):
    _, training = result
    matrices = 6 * 17 + 17 * 9 + 9
    # Forward and backward are three products each; the inputs of the first need no gradient.
    flops = 2 * (3 * matrices - 6 * 17)
    for point in training.history:
        assert point.flops_per_second == pytest.approx(flops * point.examples_per_second)
        assert point.utilization == pytest.approx(point.flops_per_second / (2 * 1e9))


def test_points_are_written_as_they_happen(result):
    job, training = result
    lines = [json.loads(line) for line in (job.logs / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    evaluations = [line for line in lines if line["kind"] == "evaluation"]
    assert [line["step"] for line in steps] == [point.step for point in training.history]
    assert [line["loss"] for line in steps] == [point.loss for point in training.history]
    for line in evaluations:
        assert line.pop("kind") == "evaluation"
    # As the live curves read them.
    read = tuple(EvaluationPoint.model_validate(line) for line in evaluations)
    assert read == training.evaluations


def test_the_load_of_the_machine_is_measured_less_often_than_quick_updates_are_logged(result):
    job, training = result
    lines = [json.loads(line) for line in (job.logs / "metrics.jsonl").read_text().splitlines()]
    measured = [line["step"] for line in lines if line["kind"] == "machine"]
    assert measured[0] == training.history[0].step
    assert len(measured) <= 1 + training.seconds / LOAD_SECONDS


def test_a_trace_shows_what_limits_a_step(result):
    job, training = result
    assert training.bottleneck.steps == 3
    assert sorted(path.name for path in job.logs.glob("trace-*")) == [
        "trace-rank-0.json.gz", "trace-rank-1.json.gz",
    ]  # fmt: skip


def test_without_a_known_peak_there_is_no_utilization(root):
    # With batch normalisation, whose arithmetic cannot be counted on a single row.
    training = finished(tiny_job(root, strategy="single", options=TinyOptions(batch_norm=True)))
    assert training.bottleneck is None
    assert all(point.flops_per_second for point in training.history)
    assert {point.utilization for point in training.history} == {None}


def test_tokens_are_the_positions_of_the_sequences(tmp_path):
    pinned(tmp_path / "data", documents(60)).write(tmp_path / "snapshot")
    job = tiny_job(tmp_path, strategy="single", steps=4, log_every_steps=2, evaluate_every_steps=4)
    model = ModelSection(name="texts", task=LANGUAGE_MODEL, options=SMALL)
    training = finished(job.model_copy(update={"model": model}))
    for point in training.history:
        assert point.tokens_per_second == point.examples_per_second * SMALL["context_length"]
    assert "tokens_per_second=" in (job.logs / "rank-0.log").read_text()
    page = training_page(training, "").html()
    assert "tokens per second" in page
    assert "device busy" not in page


def test_utilisation_is_read_from_the_driver_of_a_gpu_only(monkeypatch, caplog):
    asked = []

    def answer(device):
        asked.append(device)
        return 93

    monkeypatch.setattr(torch.cuda, "utilization", answer)
    assert DeviceLoad(torch.device("cpu")).busy() is None
    assert asked == []
    assert DeviceLoad(torch.device("cuda", 1)).busy() == pytest.approx(0.93)
    assert asked == [torch.device("cuda", 1)]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3 * 10**9, 4 * 10**9))
    load = machine_load(torch.device("cuda", 1), 0.93)
    assert load["gpu_1_utilization_percentage"] == pytest.approx(93.0)
    assert load["gpu_1_memory_usage_percentage"] == pytest.approx(25.0)
    assert not [name for name in machine_load(torch.device("cpu")) if name.startswith("gpu")]


def test_a_driver_that_does_not_answer_is_asked_once(monkeypatch, caplog):
    def refuse(device):
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    monkeypatch.setattr(torch.cuda, "utilization", refuse)
    load = DeviceLoad(torch.device("cuda", 0))
    with caplog.at_level(logging.INFO):
        assert [load.busy(), load.busy()] == [None, None]
    assert caplog.text.count("device_busy=unknown") == 1


def test_predictions_of_the_same_examples_are_kept_at_each_evaluation(result):
    job, training = result
    watched = training.watched
    assert len(watched.rows) == len(watched.labels) == WATCHED
    assert watched.quantity == "prediction"
    data = Dataset(Snapshot.read(Path(job.snapshot)))
    rows = data.scan(Split.VALIDATION).collect()[list(watched.rows)]
    for record in training.checkpoints:
        task, model = load_checkpoint_model(record.uri, training)
        batch = task.encode(rows)
        (point,) = (each for each in training.evaluations if each.step == record.step)
        with torch.no_grad():
            predicted = task.predict(model(**inputs_of(batch)))
        assert point.watched == pytest.approx(predicted.tolist(), abs=1e-6)
        assert watched.labels == pytest.approx(batch[LABEL].tolist())
    page = training_page(training, "").html()
    assert "Predictions of the same examples" in page
    assert f"row {watched.rows[-1]:,}, label" in page


@pytest.mark.parametrize(
    ("kind", "predictions", "labels", "expected"),
    [
        ("binary", [0.1, 0.8], [0, 1], (0.1, 0.8)),
        ("multiclass", [[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], [1, 2], (0.7, 0.3)),
        ("regression", [3.5, -1.0], [3, 0], (3.5, -1.0)),
        ("statistic", [[2.5, 1.0], [1.5, 2.0]], [9, 7], (2.5, 1.5)),
        ("regression", [3.5, math.nan], [3, 0], ()),
    ],
)
def test_one_number_of_each_prediction_is_kept(kind, predictions, labels, expected):
    class Kind:
        pass

    task = Kind()
    task.kind = kind
    values, codes = np.array(predictions), np.array(labels, dtype=np.float64)
    scored = ScoredBatch(np.zeros(len(codes)), values, codes, np.ones(len(codes)))
    assert watched_values(task, scored) == expected


def test_signals_and_halvings_are_on_the_page(result):
    _, training = result
    signal = Signal(
        kind="exploding", from_step=5, to_step=15, evidence="large gradients", remedy="clip them"
    )
    halving = Halving(step=3, rank=1, rows=16, next_rows=8)
    changed = training.model_copy(
        update={"signals": (signal,), "halvings": (halving,), "hints": ("head.weight is odd",)}
    )
    page = training_page(changed, "")
    text = " ".join(page.html().split())
    assert page.outcome == "warned"
    for each in ("step 5 to 15", "large gradients", "clip them", "head.weight is odd",
                 "set training.micro_batch_size = 8", "passes halved"):  # fmt: skip
        assert each in text
    assert "Signals" not in training_page(training, "").html()
