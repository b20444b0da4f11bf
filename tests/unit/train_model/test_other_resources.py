"""A training continues, or is used again, on other resources and for more steps."""

import itertools
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from perennial.contracts.data import ModelSection
from perennial.contracts.environment import LEASE, RUN_FOLDER
from perennial.contracts.training import TrainingResult, describe_parts
from perennial.contracts.user_code import RunStopped
from perennial.engine.checkpoints.folder import committed
from perennial.engine.config.optimization import Constant, Cosine, Sgd, WarmupStableDecay
from perennial.engine.config.training import Checkpoints
from perennial.engine.optimization.schedule import learning_rate
from perennial.train_model.step import train_model_step
from perennial.training_jobs.config import ResourcesSection, TrainModelConfig
from tiny_training import tiny_section

RUNS = itertools.count()
MODEL = ModelSection(name="tiny", task="tiny_training:TinyTask")


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-1")
    monkeypatch.setenv(RUN_FOLDER, "")
    monkeypatch.delenv(LEASE, raising=False)
    return tmp_path


def train(place, root, name="first", processes=2, **changes):
    os.environ["PERENNIAL_RUN_ID"] = f"run-{next(RUNS)}"
    config = TrainModelConfig(
        model=MODEL, training=tiny_section(**changes),
        resources=ResourcesSection(num_processes=processes),
    )  # fmt: skip
    out = place / name
    step = train_model_step(
        contract=config.to_json(), snapshot=str(root / "snapshot"), training=str(out / "training"),
        report=str(out / "report.html"),
    )  # fmt: skip
    return TrainingResult.read(out / "training"), step.summary


def stop_after_a_checkpoint(store) -> threading.Thread:
    def wait_and_stop():
        while not any(committed(folder) for folder in store.glob("training/*/checkpoints")):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=wait_and_stop)
    thread.start()
    return thread


def test_a_stopped_training_continues_on_other_resources(place, root):
    steps = {"steps": 160, "evaluate_every_steps": 40}
    stopping = stop_after_a_checkpoint(place / "store")
    with pytest.raises(RunStopped):
        train(place, root, processes=2, **steps)
    stopping.join()
    result, _ = train(place, root, processes=1, strategy="single", micro_batch_size=32, **steps)
    first, second = result.parts
    assert (first.processes, first.strategy, first.from_step) == (2, "fsdp", 0)
    assert (second.processes, second.strategy, second.micro_batch_size) == (1, "single", 32)
    assert 40 <= second.from_step < 160
    assert result.num_resumes == 1
    assert describe_parts(result.parts) == (
        f"2 processes (fsdp) on CPU, 1 process (single) on CPU from step {second.from_step}"
    )
    straight, _ = train(place / "elsewhere", root, processes=2, **steps, seed=1, log_every_steps=4)
    assert result.evaluations[-1].metrics == pytest.approx(
        straight.evaluations[-1].metrics, abs=1e-4
    )


def test_a_finished_training_is_used_again_whatever_the_resources(place, root):
    result, _ = train(place, root, processes=2, strategy="ddp")
    again, summary = train(place, root, "second", processes=1, strategy="single")
    assert again == result
    assert "an equal training had finished" in summary


@pytest.mark.parametrize("processes", [2, 1])
def test_an_extended_training_equals_one_that_was_never_interrupted(
    place, root, monkeypatch, processes
):
    longer = {"steps": 40, "extended_from": (20,)}
    train(place, root)
    extended, _ = train(place, root, "longer", processes, **longer)
    assert [part.from_step for part in extended.parts] == ([0] if processes == 2 else [0, 20])
    assert extended.num_resumes == 1
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(place / "empty"))
    straight, _ = train(place, root, "straight", 2, **longer)
    assert straight.num_resumes == 0
    assert straight.steps == extended.steps == 40
    by_step = {point.step: point.metrics for point in straight.evaluations}
    for point in extended.evaluations:
        if point.step in by_step:  # the shorter one also ended, and was evaluated, at step 20
            expected = by_step[point.step]
            assert point.metrics == (
                expected if processes == 2 else pytest.approx(expected, abs=1e-6)
            )


def test_an_extended_training_keeps_the_checkpoints_of_one_that_was_never_interrupted(
    place, root, monkeypatch
):
    """The best may be one of the shorter training, whose own checkpoints stay as they are."""
    longer = {
        "steps": 32, "extended_from": (16, 24), "evaluate_every_steps": 4,
        "processes": 1, "strategy": "single",
        "checkpoints": Checkpoints(keep_best=3, keep_every_steps=8),
        "schedule": Constant(shape="constant", warmup_fraction=0.0),
        "optimizer": Sgd(name="sgd", learning_rate=0.3),
    }  # fmt: skip
    first, _ = train(place, root, **longer | {"steps": 16, "extended_from": ()})
    train(place, root, "longer", **longer | {"steps": 24, "extended_from": (16,)})
    extended, _ = train(place, root, "longest", **longer)
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(place / "empty"))
    straight, _ = train(place, root, "straight", **longer)
    for one, other in zip(extended.checkpoints, straight.checkpoints, strict=True):
        assert (one.step, one.kept_as, one.metrics) == (other.step, other.kept_as, other.metrics)
        assert committed(Path(one.uri).parent)
    assert {each.uri for each in first.checkpoints} & {each.uri for each in extended.checkpoints}
    assert all(Path(each.uri).is_dir() for each in first.checkpoints)


def test_without_its_length_a_shorter_training_is_not_extended(place, root):
    train(place, root)
    other, _ = train(place, root, "longer", steps=40)
    assert other.num_resumes == 0


@pytest.mark.parametrize(
    "schedule", [Cosine(), Constant(shape="constant"), WarmupStableDecay(shape="wsd")], ids=str
)
def test_an_extended_training_follows_each_length_in_turn(schedule):
    section = tiny_section(steps=400, extended_from=(100, 200), schedule=schedule)
    rates = [learning_rate(1.0, schedule, step, section.length_at(step)) for step in range(400)]
    for length, steps in ((100, range(100)), (200, range(100, 200)), (400, range(200, 400))):
        assert [rates[step] for step in steps] == [
            learning_rate(1.0, schedule, step, length) for step in steps
        ]


@pytest.mark.parametrize("lengths", [(40,), (20, 10), (10, 10), (50,)], ids=str)
def test_lengths_that_do_not_ascend_to_the_steps_are_refused(lengths):
    with pytest.raises(ValueError, match="must ascend and stay below steps = 40"):
        tiny_section(steps=40, extended_from=lengths)
