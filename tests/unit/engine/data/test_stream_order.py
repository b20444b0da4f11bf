"""The streamed order over random shapes: row groups, batch sizes, ranks, epochs, resume points."""

from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.contracts.errors import BadDataError
from perennial.engine.data.batching import MIN_LANES, BatchPlan, GlobalOrder, StreamOrder

shapes = st.fixed_dictionaries(
    {
        "block_rows": st.lists(st.integers(0, 40), min_size=1, max_size=60)
        .filter(any)
        .map(lambda rows: np.array(rows, dtype=np.int64)),
        "seed": st.integers(0, 5),
        "global_size": st.integers(1, 70),
        "shuffle_rows": st.integers(1, 2_000),
    }
)


@settings(max_examples=150, deadline=None)
@given(shape=shapes, epochs=st.integers(1, 3))
def test_each_epoch_uses_every_row_once(shape, epochs):
    order = StreamOrder(**shape)
    for epoch in range(epochs):
        found = order.indices(epoch * order.rows, order.rows)
        assert np.array_equal(np.sort(found), np.arange(order.rows))


@settings(max_examples=150, deadline=None)
@given(shape=shapes, ranks=st.integers(1, 4), position=st.integers(0, 200))
def test_ranks_together_read_the_same_global_batch_wherever_they_begin(shape, ranks, position):
    """A new order stands for a resumed process: it has read nothing before."""
    size = shape["global_size"]
    whole = StreamOrder(**shape).indices(position * size, size)
    plan = BatchPlan(size, size, ranks)
    parts = []
    for rank in range(ranks):
        share, resumed = plan.share(rank), StreamOrder(**shape)
        parts.append(resumed.indices(position * size + share.start, share.stop - share.start))
    assert np.array_equal(np.concatenate(parts), whole)


@settings(max_examples=300, deadline=None)
@given(shape=shapes, ranks=st.integers(1, 4), position=st.integers(0, 200), most=st.integers(1, 20))
def test_runs_are_the_rows_of_the_batches_that_they_are_for(shape, ranks, position, most):
    """Whether a share begins in the middle of a lane, and where a batch lies in two epochs."""
    order, size = StreamOrder(**shape), shape["global_size"]
    base = np.cumsum(shape["block_rows"]) - shape["block_rows"]
    plan = BatchPlan(size, size, ranks)
    for rank in range(ranks):
        share = plan.share(rank)
        start, count = position * size + share.start, share.stop - share.start
        turns = order.turns(start, most)
        assert turns == 1 or turns <= most
        found = np.full((turns, count), -1)
        runs = list(order.runs(start, count, turns))
        assert all(len(run.rows) for run in runs)
        for slots, pieces in groupby(runs, lambda run: run.slots):
            rows = np.concatenate([base[run.block] + run.rows for run in pieces])
            found[:, slots] = rows.reshape(turns, -1)
        for turn in range(turns):
            assert np.array_equal(found[turn], order.indices(start + turn * size, count))


@settings(max_examples=100, deadline=None)
@given(shape=shapes, ranks=st.integers(1, 4))
def test_a_rank_reads_its_share_of_the_blocks(shape, ranks):
    """In an epoch: those of the lanes of its slots, of which neighbours share one at either end."""
    order = StreamOrder(**shape)
    size, used = shape["global_size"], np.count_nonzero(shape["block_rows"])
    base = np.cumsum(shape["block_rows"])
    plan = BatchPlan(size, size, ranks)
    for rank in range(ranks):
        share = plan.share(rank)
        rows = [
            order.indices(
                start + share.start, max(0, min(share.stop, order.rows - start) - share.start)
            )
            for start in range(0, order.rows, size)
        ]
        blocks = np.unique(np.searchsorted(base, np.concatenate(rows), "right"))
        lanes = (share.stop - share.start) * order.lanes / size + 2
        most_rows = max(shape["block_rows"])
        longest = -(-order.rows // order.lanes) + size  # rows of a lane at most
        least = min(shape["block_rows"][shape["block_rows"] > 0])
        assert len(blocks) <= min(used, lanes * (longest / least + 2))
        assert most_rows >= least


def test_four_ranks_read_a_quarter_of_many_blocks_each():
    order = StreamOrder(np.full(400, 100), 1, 256, 1_600)
    assert order.lanes == 16
    base = np.cumsum(np.full(400, 100))
    for rank in range(4):
        rows = np.concatenate(
            [order.indices(step * 256 + rank * 64, 64) for step in range(40_000 // 256)]
        )
        assert len(np.unique(np.searchsorted(base, rows, "right"))) <= 400 / 4 + 5


@pytest.mark.parametrize("ranks", [1, 3])
def test_every_block_is_named_before_a_batch_needs_it(ranks):
    """Over an epoch and a half, so that the next epoch's first blocks are among them."""
    block_rows = np.random.default_rng(1).integers(50, 150, 200)
    order, plan = StreamOrder(block_rows, 1, 64, 1_600), BatchPlan(64, 64, ranks)
    base, share = np.cumsum(block_rows), plan.share(ranks - 1)
    known: set[int] = set()
    for step in range(order.rows * 3 // 2 // 64):
        start, count = step * 64 + share.start, share.stop - share.start
        rows = order.indices(start, count)
        needed = set(np.searchsorted(base, rows, "right").tolist())
        assert step == 0 or needed <= known, f"step {step}"
        known = known | needed | set(order.blocks_after(start, count, 64))


def test_a_batch_mixes_blocks_and_epochs_differ():
    order = StreamOrder(np.full(40, 50), 1, 32, 400)
    blocks = order.indices(0, 32) // 50
    assert len(set(blocks.tolist())) == MIN_LANES
    assert not np.array_equal(order.indices(0, 2_000), order.indices(2_000, 2_000))


def test_where_all_blocks_are_at_hand_the_order_is_as_mixed_as_a_permutation():
    """The mean distance between neighbours, of a full shuffle and of this one."""
    stream = StreamOrder(np.full(40, 50), 1, 64, 2_000).indices(0, 2_000)
    full = GlobalOrder(2_000, 1).indices(0, 2_000)
    distances = [
        np.abs(np.diff(each)).mean() for each in (np.sort(stream[:64]), np.sort(full[:64]))
    ]
    assert distances[0] == pytest.approx(distances[1], rel=0.25)


def test_a_split_without_rows_is_an_error():
    with pytest.raises(BadDataError, match="empty"):
        StreamOrder(np.zeros(3, dtype=np.int64), 1, 8, 100)
