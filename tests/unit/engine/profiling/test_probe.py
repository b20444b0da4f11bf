from dataclasses import replace

import pytest
import torch

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.data.encoded import EncodedSplit, encode_split
from perennial.engine.parallelism.normalization import GhostBatchNorm
from perennial.engine.profiling import settings
from perennial.engine.profiling.probe import (
    RatePoint,
    Subject,
    alone,
    probe_learning_rates,
    probed_model,
    suggested_rate,
)
from perennial.engine.profiling.settings import (
    RATE,
    ROUNDS,
    SEEDS,
    SettingPoint,
    best_of,
    find_knee,
    in_rounds,
    measure,
    measure_batch_sizes,
)
from perennial.engine.task import load_task
from tiny_training import TinyOptions, tiny_section


@pytest.fixture
def subject(root, tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "SECONDS", 0.01)
    snapshot = Snapshot.read(root / "snapshot")
    task = load_task("tiny_training:TinyTask", {}, snapshot.task_columns)
    dataset = Dataset(snapshot)
    task.fit(dataset.scan(Split.TRAIN))
    encode_split(task, dataset, Split.TRAIN, tmp_path / "train", "digest")
    data = EncodedSplit(tmp_path / "train")
    return Subject(task, data, tiny_section(), torch.device("cpu"))


def test_larger_batches_are_timed_in_order(subject):
    points = measure_batch_sizes(subject, 64)
    assert [(point.rows, len(point.rounds)) for point in points] == [
        (size, ROUNDS) for size in (8, 16, 32, 64)
    ]
    assert points[-1].throughput > points[0].throughput
    assert not any(point.losses for point in points)


def test_a_size_that_does_not_fit_is_named_and_not_tried_again(subject, monkeypatch):
    build_model, built = subject.task.build_model, []

    def build_small():
        built.append(None)
        if len(built) == 2:  # the second size of the first round
            raise torch.OutOfMemoryError("planted")
        return build_model()

    monkeypatch.setattr(subject.task, "build_model", build_small)
    points = measure_batch_sizes(subject, 32)
    assert [point.failure for point in points] == ["", "OutOfMemoryError: planted", ""]
    assert len(built) == 2 * ROUNDS + 1


def test_rounds_run_in_opposite_orders():
    order = []
    points = [SettingPoint({"a": 1}), SettingPoint({"a": 2}), SettingPoint({"a": 3}, failure="x")]
    in_rounds(points, lambda point, number: order.append((number, point.changes["a"])) or point)
    assert order[:6] == [(0, 1), (0, 2), (1, 2), (1, 1), (2, 1), (2, 2)]
    assert len(order) == 2 * ROUNDS


def points_of(*speeds, spread=0.02):
    """Points of doubled sizes with these throughputs, whose rounds differ by a share."""
    sizes = [8 * 2**number for number in range(len(speeds))]
    return [
        SettingPoint({}, size, tuple(size / (speed * (1 + spread * k)) for k in (-1, 0, 0.5, 1)))
        for size, speed in zip(sizes, speeds, strict=True)
    ]


def test_the_knee_is_the_smallest_size_near_the_best():
    knee = find_knee(points_of(50, 95, 100))
    assert (knee.earliest.rows, knee.is_clear) == (16, True)


def test_the_knee_is_not_clear_where_rounds_differ_more_than_sizes():
    knee = find_knee(points_of(50, 89, 100, spread=0.06))
    assert (knee.earliest.rows, knee.latest.rows, knee.is_clear) == (16, 32, False)
    assert not find_knee(points_of(80, 90, 85, 100, spread=0.3)).is_clear


def test_a_range_test_falls_then_diverges(subject):
    points = list(probe_learning_rates(subject, lowest=1e-4, highest=1e3, updates=150))
    assert points[-1].rate < 1e3, "it ended where the loss diverged"
    suggestion = suggested_rate(points)
    assert suggestion is not None
    assert 1e-4 < suggestion < 0.1
    assert min(point.smoothed for point in points) < 0.9 * points[0].smoothed


def test_the_model_is_the_one_that_a_training_builds(subject):
    options = TinyOptions(batch_norm=True)
    task = load_task(
        "tiny_training:TinyTask", options.model_dump(mode="json"), subject.task.columns
    )
    training = tiny_section(
        normalization={"batch_norm": "ghost", "ghost_batch_size": 8},
        memory={"activation_checkpointing": "full"},
    )
    model = probed_model(replace(subject, task=task), alone(training))
    assert any(isinstance(module, GhostBatchNorm) for module in model.modules())
    assert all(block.forward.__name__ == "checkpointed" for block in model.blocks)
    synced = alone(tiny_section(normalization={"batch_norm": "sync"}))
    assert synced.normalization.batch_norm == "local"


def last_loss(subject, max_norm, **changes):
    """Of plain steps, whose length is the gradient's."""
    sgd = {"name": "sgd", "momentum": 0.0, "nesterov": False}
    training = tiny_section(optimizer=sgd, clipping={"max_norm": max_norm}, **changes)
    probed = replace(subject, training=training)
    return list(probe_learning_rates(probed, lowest=1e-3, highest=0.1, updates=40))[-1].smoothed


def test_gradients_are_clipped_as_in_a_training(subject):
    """Steps of no length leave the loss where a model that never learned has it."""
    assert last_loss(subject, max_norm=1e6) < 0.95 * last_loss(subject, max_norm=1e-9)


def test_the_scale_of_float16_gradients_is_undone(subject):
    half, full = (last_loss(subject, 1e6, precision=precision) for precision in ("fp16", "fp32"))
    assert half == pytest.approx(full, rel=0.01)


def test_a_loss_that_never_falls_gives_no_advice():
    points = [RatePoint(10.0**-power, 1.0, 1.0) for power in (5, 4, 3)]
    assert suggested_rate(points) is None


def test_a_setting_that_this_machine_lacks_or_the_contract_refuses_is_named(subject, monkeypatch):
    refused, planted = {"training.micro_batch_size": 0}, {"training.compile": True}
    monkeypatch.setattr(torch.nn.Module, "compile", fail_to_compile)
    own, first, second = measure(subject, [{}, refused, planted])
    assert not own.failure
    assert len(own.rounds) == ROUNDS
    assert len(own.losses) == SEEDS
    assert "greater than or equal to 1" in first.failure
    assert second.failure == "RuntimeError: no compiler"


def fail_to_compile(module):
    raise RuntimeError("no compiler")


def test_equal_mathematics_reach_the_same_loss_and_another_rate_does_not(subject, monkeypatch):
    monkeypatch.setattr(settings, "SECONDS", 0.1)
    own, ahead, slower = measure(
        replace(subject, training=tiny_section(steps=200, optimizer={"learning_rate": 0.01})),
        [{}, {"training.loading.workers": 2}, {"training.optimizer.learning_rate": 1e-9}],
    )
    assert ahead.losses == own.losses
    assert ahead.is_as_good(own)
    assert not slower.is_as_good(own)
    level = replace(own, rounds=slower.rounds)
    assert best_of([slower, level]) == {}, "a lower loss at the same speed is better"


def point_of(changes, milliseconds, losses=(1.0, 1.2, 1.1)):
    rounds = tuple(milliseconds * share / 1e3 for share in (0.99, 1.0, 1.0, 1.01, 1.02))
    return SettingPoint(changes, 64, rounds, losses)


def test_the_fastest_of_equal_quality_is_taken():
    own, faster = point_of({}, 10.0), point_of({"compile": True}, 5.0)
    worse = point_of({"precision": "bf16"}, 4.0, (1.3, 1.3, 1.2))
    assert best_of([own, worse, faster]) == {"compile": True}
    assert best_of([own, worse, point_of({"compile": True}, 9.99)]) == {}


def test_a_lower_loss_is_taken_unless_it_costs_speed():
    own, lower = point_of({}, 10.0), (0.5, 0.7, 0.6)
    assert best_of([own, point_of({"batch": 8}, 10.0, lower)]) == {"batch": 8}
    assert best_of([own, point_of({"batch": 8}, 20.0, lower)]) == {}


def test_a_learning_rate_alone_is_judged_by_the_loss_whatever_its_speed():
    own, lower = point_of({}, 10.0), (0.5, 0.7, 0.6)
    assert best_of([own, point_of({RATE: 0.1}, 20.0, lower)]) == {RATE: 0.1}
    assert best_of([own, point_of({RATE: 0.1}, 5.0)]) == {}
