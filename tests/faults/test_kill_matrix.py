"""Killed anywhere, even while it writes, a training ends with the same bits.

A kill point is a forward pass, or the moment before the n-th access to the checkpoints' folder:
opening a shard, the listing or the marker, a rename, a deletion.
"""

import random

import pytest

from faulty_training import FaultyOptions, faulty_job, traced
from tiny_training import finished, largest_difference, run_ranks, weights, with_options

STEPS = 20
POINTS = 20
# Of a training of 20 steps that saves at 8, 16 and 20, counted by the fixture below.
STRATEGIES = {"single": 1, "ddp": 2, "fsdp": 2}


def settings(strategy: str) -> dict[str, object]:
    return {"strategy": strategy, "processes": STRATEGIES[strategy], "log_every_steps": 1}


@pytest.fixture(scope="module")
def straight(root, tmp_path_factory):
    """Undisturbed trainings, each with its batches."""
    known = {}

    def of(strategy):
        if strategy not in known:
            trace = tmp_path_factory.mktemp("trace") / "rank"
            options = FaultyOptions(dropout=0.2, trace=str(trace))
            result = finished(faulty_job(root, options, **settings(strategy)))
            batches = [traced(trace, rank) for rank in range(STRATEGIES[strategy])]
            known[strategy] = (result, batches)
        return known[strategy]

    return of


def kill_point(strategy: str, seed: int) -> FaultyOptions:
    """Half of them in the files."""
    draw = random.Random(f"{strategy} {seed}")
    passes = 2 * STEPS if strategy == "single" else STEPS
    in_files = bool(seed % 2)
    return FaultyOptions(
        dropout=0.2, trouble="kill in files" if in_files else "kill",
        trouble_rank=draw.randrange(STRATEGIES[strategy]),
        trouble_from=draw.randrange(4, 40) if in_files else draw.randrange(passes),
    )  # fmt: skip


def assert_same_after_a_kill(root, straight, strategy, seed, tmp_path):
    result, batches = straight(strategy)
    point = kill_point(strategy, seed)
    job = faulty_job(root, point, **settings(strategy))
    codes = run_ranks(job)
    if point.trouble == "kill" or any(codes):  # few ranks touch the files very often
        assert codes[point.trouble_rank] == -9, codes
        assert not (job.root / "training.json").exists()
    resuming = FaultyOptions(dropout=0.2, trace=str(tmp_path / "rank"))
    resumed = finished(with_options(job, resuming))
    assert largest_difference(weights(result), weights(resumed)) == 0.0
    assert resumed.evaluations == result.evaluations
    assert [(p.step, p.loss, p.gradient_norm) for p in resumed.history] == [
        (p.step, p.loss, p.gradient_norm) for p in result.history
    ]
    for rank, expected in enumerate(batches):
        if any(codes):
            seen = traced(tmp_path / "rank", rank)
            assert seen == expected[len(expected) - len(seen) :]


@pytest.mark.parametrize(("strategy", "seed"), [("single", 1), ("fsdp", 2)])
def test_a_killed_training_ends_with_the_same_bits(root, straight, strategy, seed, tmp_path):
    assert_same_after_a_kill(root, straight, strategy, seed, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(POINTS))
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_training_killed_anywhere_ends_with_the_same_bits(
    root, straight, strategy, seed, tmp_path
):
    assert_same_after_a_kill(root, straight, strategy, seed, tmp_path)


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.full)])
def test_two_then_one_then_four_processes_compute_the_same(root, strategy):
    """The band of rounding: sums in another order."""
    job = faulty_job(root, **settings(strategy), global_batch_size=32, micro_batch_size=8)
    straight = finished(faulty_job(root, **settings(strategy), micro_batch_size=8))
    for processes, stop, forwards in ((2, 7, 2), (1, 6, 4)):
        stopping = FaultyOptions(fault="terminate", fault_call=stop * forwards)
        attempt = job.model_copy(update={"num_processes": processes})
        assert run_ranks(with_options(attempt, stopping)) == [75] * processes
    result = finished(job.model_copy(update={"num_processes": 4}))
    assert (result.world_size, result.num_resumes) == (4, 2)
    assert largest_difference(weights(straight), weights(result)) <= 1e-6
    for one, other in zip(straight.history, result.history, strict=True):
        assert other.loss == pytest.approx(one.loss, abs=1e-6)
