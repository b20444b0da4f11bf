"""Batch statistics over processes: two compute what one would, however the model is laid out."""

import pytest
import torch

from perennial.engine.checkpoints.folder import committed
from perennial.engine.config.optimization import Sgd
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    run_ranks,
    tiny_job,
    weights,
    with_options,
)

NORMED = TinyOptions(batch_norm=True)
SGD = Sgd(name="sgd", learning_rate=0.05)
SYNC = {"normalization": {"batch_norm": "sync"}}
STATISTICS = ("blocks.0.1.running_mean", "blocks.0.1.running_var")


def normed_job(root, **changes):
    # Adam would turn rounding into whole steps: the bias before a batch norm has no gradient.
    return tiny_job(root, options=NORMED, optimizer=SGD, **changes)


def test_synchronised_processes_equal_one_on_the_whole_batch(root):
    alone = weights(finished(normed_job(root, strategy="single", micro_batch_size=32)))
    for strategy in ("ddp", "fsdp"):
        together = weights(finished(normed_job(root, strategy=strategy, **SYNC)))
        assert largest_difference(alone, together) <= 1e-6, strategy
        for name in STATISTICS:
            assert torch.allclose(alone[name], together[name], atol=1e-6), name


def test_unsynchronised_processes_do_not(root):
    alone = weights(finished(normed_job(root, strategy="single", micro_batch_size=32)))
    apart = weights(finished(normed_job(root, strategy="ddp")))
    assert largest_difference(alone, apart) > 1e-4


def test_uneven_shares_count_by_their_rows(root):
    """31 rows over two processes: 15 and 16."""
    changes = {"global_batch_size": 31}
    alone = weights(finished(normed_job(root, strategy="single", micro_batch_size=32, **changes)))
    together = weights(finished(normed_job(root, strategy="ddp", **changes, **SYNC)))
    assert largest_difference(alone, together) <= 1e-6


@pytest.mark.parametrize(
    "normalization",
    [SYNC["normalization"], {"batch_norm": "ghost", "ghost_batch_size": 8}],
    ids=["sync", "ghost"],
)
def test_sharded_and_replicated_are_bit_identical(root, normalization):
    sharded, replicated = (
        weights(finished(normed_job(root, strategy=strategy, normalization=normalization)))
        for strategy in ("fsdp", "ddp")
    )
    assert largest_difference(sharded, replicated) == 0.0


def test_ghost_batches_of_a_share_equal_that_many_processes(root):
    """Four processes of 8 rows take the statistics that chunks of 8 do in one."""
    ghost = {"batch_norm": "ghost", "ghost_batch_size": 8}
    alone = finished(normed_job(root, strategy="single", micro_batch_size=32, normalization=ghost))
    apart = finished(normed_job(root, processes=4, strategy="ddp", micro_batch_size=8))
    one, many = (
        {name: tensor for name, tensor in weights(result).items() if name not in STATISTICS}
        for result in (alone, apart)
    )
    one.pop("blocks.0.1.num_batches_tracked")
    many.pop("blocks.0.1.num_batches_tracked")
    assert largest_difference(one, many) <= 1e-6


@pytest.mark.parametrize(
    "changes", [pytest.param({}, marks=pytest.mark.full), SYNC], ids=["local", "sync"]
)
def test_an_interrupted_training_agrees_on_the_same_statistics(root, changes):
    straight = normed_job(root, **changes)
    torn = normed_job(root, **changes)
    fault = NORMED.model_copy(
        update={"fault": "terminate", "fault_call": 12, "fault_rank": 1,
                "once": str(torn.root / "struck")}
    )  # fmt: skip
    expected = weights(finished(straight))
    assert run_ranks(with_options(torn, fault)) == [75, 75]
    assert [path.name for path in committed(torn.checkpoints)]
    assert largest_difference(weights(finished(with_options(torn, NORMED))), expected) == 0.0


def test_local_statistics_are_the_mean_of_all_processes(root):
    """Not those of the first: its rows are no better than the others'."""
    one_step = {"steps": 1, "evaluate_every_steps": 1, "log_every_steps": 1}
    alone = weights(finished(normed_job(root, strategy="single", micro_batch_size=32, **one_step)))
    together = weights(finished(normed_job(root, strategy="ddp", **one_step)))
    # The mean of two halves' means is the whole's, and differs from the first half's by much more.
    name = STATISTICS[0]
    assert torch.allclose(alone[name], together[name], atol=1e-7)


def test_a_process_without_rows_is_refused(root):
    job = normed_job(root, strategy="ddp", global_batch_size=3, micro_batch_size=1, **SYNC)
    assert run_ranks(job) == [1, 1]
    log = (job.logs / "rank-0.log").read_text()
    assert "needs rows on every process in every forward pass" in log
