"""Curves reach the tracking server while a training runs, once, and never stop it."""

import time
from concurrent.futures import Future

import pytest

from perennial.clients.tracking import open_mlflow, open_tracking
from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json
from perennial.contracts.training import EvaluationPoint, MachinePoint, StepPoint, TrainingResult
from perennial.train_model import record
from perennial.train_model.record import live_curves, log_metrics, log_steps
from perennial.train_model.report import training_page


def point(step: int) -> StepPoint:
    return StepPoint(
        step=step, loss=1.0 / step, learning_rate=0.1, gradient_norm=1.0, examples_per_second=9.0,
        data_wait_share=0.0,
    )  # fmt: skip


def write(file, kind, value, *, end="\n"):
    with file.open("a") as stream:
        stream.write(canonical_json({"kind": kind, **value.model_dump(mode="json")}) + end)


def history(environment, tracking, name):
    client = open_mlflow(environment)
    return [
        (metric.step, metric.value) for metric in client.get_metric_history(tracking.run_id, name)
    ]


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(record, "POLL_SECONDS", 0.05)


def eventually(condition):
    for _ in range(200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("it never happened")


def test_points_arrive_while_the_training_runs_and_are_not_doubled(environment, tmp_path, quick):
    file, opened = tmp_path / "metrics.jsonl", Future()
    tracking = open_tracking(environment, "curves")
    with live_curves(file, opened):
        write(file, "step", point(1))
        opened.set_result(tracking)
        eventually(lambda: history(environment, tracking, "train/loss") == [(1, 1.0)])
        write(file, "evaluation", EvaluationPoint(step=1, train_loss=1.0, metrics={"rmse": 2.0}))
        write(file, "step", point(2), end="")  # half a line: not yet
        eventually(lambda: history(environment, tracking, "validation/rmse") == [(1, 2.0)])
        assert history(environment, tracking, "train/loss") == [(1, 1.0)]
    log_steps(tracking, [point(1), point(2)])
    log_metrics(
        tracking, "validation", [EvaluationPoint(step=1, train_loss=1.0, metrics={"rmse": 2.0})]
    )
    assert history(environment, tracking, "train/loss") == [(1, 1.0), (2, 0.5)]
    assert history(environment, tracking, "validation/rmse") == [(1, 2.0)]
    assert history(environment, tracking, "train/utilization") == []


def test_a_server_that_fails_costs_the_live_view_alone(tmp_path, quick, caplog):
    class Down:
        def log_curve(self, name, points):
            raise PerennialError("the server is gone", action="wait")

    file, opened = tmp_path / "metrics.jsonl", Future()
    opened.set_result(Down())
    with live_curves(file, opened):
        write(file, "step", point(1))
        eventually(lambda: "live curves stopped" in caplog.text)


def test_what_an_earlier_attempt_wrote_is_not_sent_again(environment, tmp_path, quick):
    file, opened = tmp_path / "metrics.jsonl", Future()
    write(file, "step", point(1))
    tracking = open_tracking(environment, "curves")
    opened.set_result(tracking)
    with live_curves(file, opened):
        write(file, "step", point(2))
        eventually(lambda: history(environment, tracking, "train/loss") == [(2, 0.5)])


@pytest.mark.parametrize(("clipped", "words"), [(1.0, "100% on average"), (0.0, "0% on average")])
def test_captions_state_what_the_charts_show(clipped, words):
    history = tuple(point(step).model_copy(update={"clipped_share": clipped}) for step in (1, 2))
    result = TrainingResult(
        fingerprint="f", task="a:B", options={}, columns=TaskColumns(label="y", features={"x": "Int64"}),
        task_state={}, steps=2, world_size=1, strategy="single", num_parameters=3, history=history,
        evaluations=(), checkpoints=(), seconds=1.0, num_resumes=0,
    )  # fmt: skip
    page = training_page(result, "done").html()
    assert words in page
    assert "about a tenth is healthy" not in page


def test_the_load_of_the_machine_is_a_system_metric_of_mlflow_to_the_last_line(
    environment, tmp_path
):
    file, opened = tmp_path / "metrics.jsonl", Future()
    tracking = open_tracking(environment, "curves")
    opened.set_result(tracking)
    with live_curves(file, opened):  # ends before it has looked once
        write(file, "machine", MachinePoint(step=3, metrics={"cpu_utilization_percentage": 97.0}))
    assert history(environment, tracking, "system/cpu_utilization_percentage") == [(3, 97.0)]
