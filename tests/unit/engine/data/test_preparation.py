"""One rank fits and encodes for all: the others wait as long as it takes, and no longer."""

from perennial.engine.job import RankFailure
from preparation_ranks import fail_to_encode, prepare_longer_than_collectives_may_take
from tiny_training import run_ranks, tiny_job


def test_preparing_may_take_longer_than_any_step(root):
    assert run_ranks(tiny_job(root, steps=1), prepare_longer_than_collectives_may_take) == [0, 0]


def test_who_waits_ends_when_preparing_fails(root):
    job = tiny_job(root, steps=1)
    assert run_ranks(job, fail_to_encode) == [1, 1]
    first = RankFailure.first_of(job.errors)
    assert (first.rank, first.is_consequence) == (0, False)
    assert first.message.endswith("No space left on device of rank 0")
