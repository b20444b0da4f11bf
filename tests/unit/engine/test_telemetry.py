"""Every signal of a training's health is measured, written as it happens, and kept."""

import json
import math

import pytest

from tiny_training import TinyOptions, finished, tiny_job


@pytest.fixture(scope="module")
def result(root):
    job = tiny_job(root, log_every_steps=5, peak_tflops=1e-3, profile={"start_step": 2, "steps": 3})
    return job, finished(job)


def test_each_point_has_every_signal(result):
    _, training = result
    assert [point.step for point in training.history] == [5, 10, 15, 20]
    for point in training.history:
        assert all(math.isfinite(value) for value in point.model_dump().values())
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
    assert [line["metrics"] for line in evaluations] == [
        point.metrics for point in training.evaluations
    ]


def test_a_trace_says_what_limits_a_step(result):
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
