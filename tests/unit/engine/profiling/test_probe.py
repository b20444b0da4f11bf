import pytest
import torch

from components.clients.dataset import Dataset
from components.contracts.data import Split
from components.contracts.snapshot import Snapshot
from components.engine.data.encoded import EncodedSplit, encode_split
from components.engine.profiling.probe import (
    BatchPoint,
    RatePoint,
    Subject,
    knee,
    probe_batch_sizes,
    probe_learning_rates,
    suggested_rate,
)
from components.engine.task import load_task
from tiny_training import tiny_section


@pytest.fixture
def subject(root, tmp_path):
    snapshot = Snapshot.read(root / "snapshot")
    task = load_task("tiny_training:TinyTask", {}, snapshot.task_columns)
    dataset = Dataset(snapshot)
    task.fit(dataset.scan(Split.TRAIN))
    encode_split(task, dataset, Split.TRAIN, tmp_path / "train")
    data = EncodedSplit(tmp_path / "train")
    return Subject(task, data, tiny_section(), torch.device("cpu"))


def test_larger_batches_are_timed_in_order(subject):
    points = list(probe_batch_sizes(subject, [8, 64], seconds=0.01))
    assert [point.rows for point in points] == [8, 64]
    assert points[1].rows_per_second > points[0].rows_per_second


def test_what_does_not_fit_ends_the_table(subject, monkeypatch):
    def build_model():
        raise torch.OutOfMemoryError("planted")

    sizes = iter(probe_batch_sizes(subject, [8, 16, 32], seconds=0.01))
    assert next(sizes).rows == 8
    monkeypatch.setattr(subject.task, "build_model", build_model)
    assert list(sizes) == []


def test_the_knee_is_the_smallest_size_near_the_best():
    points = [BatchPoint(rows, rows / speed, 0) for rows, speed in [(8, 50), (16, 93), (32, 100)]]
    assert knee(points).rows == 16


def test_a_range_test_falls_then_diverges(subject):
    points = list(probe_learning_rates(subject, lowest=1e-4, highest=1e3, updates=150))
    assert points[-1].rate < 1e3, "it ended where the loss diverged"
    suggestion = suggested_rate(points)
    assert suggestion is not None
    assert 1e-4 < suggestion < 0.1
    assert min(point.smoothed for point in points) < 0.9 * points[0].smoothed


def test_a_loss_that_never_falls_gives_no_advice():
    points = [RatePoint(10.0**-power, 1.0, 1.0) for power in (5, 4, 3)]
    assert suggested_rate(points) is None
