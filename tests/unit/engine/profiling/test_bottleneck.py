import time
from dataclasses import replace

import pytest
import torch

from perennial.engine.config.training import Profile
from perennial.engine.data.loader import Encoding
from perennial.engine.profiling.profiler import Operation, Profiler, Trace, find_bottleneck

PRODUCT = Operation("aten::mm", 0.8, 100, computes=True)
ADDITION = Operation("aten::add", 0.8, 100, computes=False)
BUSY = Trace(
    steps=10, seconds=1.0, data_wait=0.01, operations=[PRODUCT], busy=None, dispatch=1e-6
)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "compute-bound"),
        ({"operations": [ADDITION]}, "memory-bound"),
        ({"data_wait": 0.3}, "input-bound"),
        ({"dispatch": 6e-3}, "overhead-bound"),
        ({"dispatch": 6e-3, "data_wait": 0.2}, "input-bound"),
        ({"busy": 0.9}, "compute-bound"),
        ({"busy": 0.5}, "overhead-bound"),
        ({"busy": 0.5, "data_wait": 0.45}, "input-bound"),
    ],
)
def test_the_verdict_follows_from_the_shares(change, verdict):
    found = find_bottleneck(replace(BUSY, **change))
    assert found.verdict == verdict
    assert found.remedy


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"seconds": 5.0}, "Python"),
        ({"seconds": 5.0, "dispatch": 6e-2}, "micro_batch_size"),
        ({"seconds": 5.0, "busy": 0.8}, "micro_batch_size"),
    ],
)
def test_time_outside_of_operations_is_overhead(change, remedy):
    """The loss of a task may be a loop of Python, which no other precision makes faster."""
    found = find_bottleneck(replace(BUSY, **change))
    assert found.verdict == "overhead-bound"
    assert remedy in found.remedy
    assert found.overhead_share >= 0.8


@pytest.mark.parametrize(
    ("encoding", "remedy"),
    [
        (None, "prefetch_batches"),
        # 1,000 rows of 0.25 ms are 250 ms; a step computes for 70 ms.
        (Encoding(25e-5, 1_000, workers=1), "encode_workers = 4 (now 1)"),
        (Encoding(25e-5, 1_000, workers=0), "encode_workers = 4 (now 0)"),
        (Encoding(25e-5, 1_000, workers=4), "prefetch_batches"),
        (Encoding(25e-5, 1_000, workers=0), "or training.loading.encode_ahead = true"),
        (Encoding(1e-2, 1_000, workers=1), "set training.loading.encode_ahead = true"),
    ],
)
def test_where_encoding_is_slow_the_verdict_names_the_processes_that_keep_up(encoding, remedy):
    found = find_bottleneck(replace(BUSY, data_wait=0.3, encoding=encoding))
    assert remedy in found.remedy


class Clock:
    seconds_waited = 0.0


def profiled(folder, update, *, steps=4):
    clock = Clock()
    profiler = Profiler(Profile(start_step=2, steps=steps), folder, 0, clock)
    for step in range(1, 8):
        profiler.before(step)
        clock.seconds_waited += update()
        profiler.after(step, is_interrupted=False)
    return profiler.bottleneck


def compute():
    matrix = torch.ones(400, 400)
    for _ in range(4):
        matrix = matrix @ matrix * 1e-3
    return 0.0


def stream_through_memory():
    vector = torch.ones(4_000_000)
    for _ in range(4):
        vector = vector.sin()
    return 0.0


def dispatch():
    value = torch.ones(2)
    for _ in range(3000):
        value = value + 1.0
    return 0.0


def loop():
    compute()
    return 0.0 * sum(index * 0.5 for index in range(1_000_000))


def starve():
    compute()
    time.sleep(0.05)
    return 0.05


@pytest.mark.parametrize(
    ("update", "verdict"),
    [
        (compute, "compute-bound"),
        (stream_through_memory, "memory-bound"),
        (dispatch, "overhead-bound"),
        (loop, "overhead-bound"),
        (starve, "input-bound"),
    ],
)
def test_real_work_is_recognised(tmp_path, update, verdict):
    found = profiled(tmp_path, update)
    assert found.verdict == verdict, found
    assert found.steps == 4
    assert (tmp_path / "trace-rank-0.json.gz").stat().st_size > 0


def test_nothing_is_traced_unless_asked_for(tmp_path):
    profiler = Profiler(None, tmp_path, 0, Clock())
    profiler.before(1)
    profiler.after(1, is_interrupted=False)
    assert profiler.bottleneck is None
    assert list(tmp_path.iterdir()) == []


def test_an_evaluation_ends_the_trace(tmp_path):
    profiler = Profiler(Profile(start_step=1, steps=5), tmp_path, 0, Clock())
    for step in (1, 2):
        profiler.before(step)
        compute()
        profiler.after(step, is_interrupted=step == 2)
    assert profiler.bottleneck.steps == 2
