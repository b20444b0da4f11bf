"""A rank that stops, and a rank that is slow: noticed, named, and distinguished from healthy ones."""

import pytest

from faulty_training import FaultyOptions, faulty_job
from perennial.contracts.training import TrainingResult
from perennial.engine.job import JobFailure, RankFailure
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.launcher import LocalLauncher
from tiny_training import finished, run_ranks

# Stragglers are looked for twice in 16 steps.
SLOW = {"steps": 24, "stragglers": {"every_steps": 10}}
# Long against what a busy machine takes from a step, so that other tests may run beside these.
HANG = {"hang_factor": 2.0, "minimum_seconds": 6.0}


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.full), "fsdp"])
def test_a_rank_that_hangs_is_named_and_ended(root, strategy):
    options = FaultyOptions(trouble="hang", trouble_rank=1, trouble_from=9, seconds=600)
    job = faulty_job(root, options, strategy=strategy, watchdog=HANG)
    assert run_ranks(job) == [1, 1]
    failure = RankFailure.first_of(job.errors)
    assert failure is not None
    assert (failure.rank, failure.step, failure.type, failure.is_hang) == (
        1,
        10,
        "Hang",
        True,
    )
    assert "rank 1 is behind, the others wait for it" in failure.message
    assert "time.sleep" in failure.traceback or "in losses" in failure.traceback
    assert "in backward" in (job.errors / "hang-rank-0.txt").read_text()
    log = (job.logs / "rank-0.log").read_text()
    assert "rank 1 is behind" in log


@pytest.mark.full
def test_a_rank_that_hangs_for_a_while_is_reported_only(root):
    options = FaultyOptions(
        trouble="hang", trouble_rank=1, trouble_from=9, trouble_until=10, seconds=12
    )
    job = faulty_job(root, options, watchdog={**HANG, "on_hang": "dump"})
    assert finished(job).steps == 20
    assert "in losses" in (job.errors / "hang-rank-1.txt").read_text()
    assert not list(job.errors.glob("rank-*.json"))


def test_a_healthy_training_is_not_a_hang(root):
    job = faulty_job(root, watchdog=HANG)
    finished(job)
    assert list(job.errors.glob("*")) == []


@pytest.mark.full
def test_a_slow_store_is_not_a_hang(root):
    """The second checkpoint and the end of the training wait for the one before."""
    options = FaultyOptions(trouble="slow files", seconds=6)
    watchdog = {"hang_factor": 2.0, "minimum_seconds": 2.0}
    job = faulty_job(root, options, steps=4, evaluate_every_steps=2, watchdog=watchdog)
    assert finished(job).steps == 4
    assert list(job.errors.glob("*")) == []


def test_a_training_that_hung_is_restarted(root, tmp_path):
    options = FaultyOptions(
        trouble="hang", trouble_rank=1, trouble_from=12, seconds=600, once=str(tmp_path / "struck")
    )
    job = faulty_job(root, options, watchdog=HANG)
    run_to_end(job, LocalLauncher(1), max_restarts=1)
    assert TrainingResult.read(job.root).num_resumes == 1
    assert not (job.root / JobFailure.file_name).exists()


def slow(where: str) -> FaultyOptions:
    return FaultyOptions(trouble=f"slow {where}", trouble_rank=1, seconds=0.15)


def assert_named(job) -> None:
    result = finished(job)
    assert [sample.slow_rank for sample in result.collective_waits] == [1, 1]
    assert "rank 1 is slow" in (job.logs / "rank-0.log").read_text()
    for sample in result.collective_waits:
        assert sample.wait_seconds[1] < min(sample.wait_seconds[0], sample.wait_seconds[2]) - 0.03


@pytest.mark.parametrize(("where", "strategy"), [("backward", "ddp"), ("forward", "fsdp")])
def test_a_slow_rank_is_named(root, where, strategy):
    assert_named(faulty_job(root, slow(where), strategy=strategy, processes=3, **SLOW))


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("where", ["data", "forward", "backward"])
def test_a_slow_rank_is_named_wherever_it_is_slow(root, where, strategy):
    assert_named(faulty_job(root, slow(where), strategy=strategy, processes=3, **SLOW))


def test_equally_slow_ranks_are_not_named(root):
    """Both ranks sleep, so the step is long and its noise small against it."""
    options = FaultyOptions(trouble="slow forward", trouble_rank=-1, seconds=0.2)
    job = faulty_job(root, options, **SLOW)
    result = finished(job)
    assert [sample.slow_rank for sample in result.collective_waits] == [None, None]
    assert "is slow" not in (job.logs / "rank-0.log").read_text()
