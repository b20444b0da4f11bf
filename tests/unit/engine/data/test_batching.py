import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.contracts.errors import BadDataError
from perennial.engine.data.batching import BatchPlan, GlobalOrder, fixed_sample


def global_batch(rows, seed, step, size, world_size):
    batch = GlobalOrder(rows, seed).indices(step * size, size)
    plan = BatchPlan(size, 2, world_size)
    parts = [part for rank in range(world_size) for part in plan.micro_batches(rank)]
    return np.concatenate([batch[part] for part in parts])


@pytest.mark.parametrize("rows", [5, 24, 100])
@pytest.mark.parametrize("step", [0, 3, 11])
def test_the_global_batch_does_not_depend_on_the_number_of_processes(rows, step):
    batches = [global_batch(rows, 7, step, 12, world_size) for world_size in (1, 2, 3, 4)]
    for batch in batches[1:]:
        np.testing.assert_array_equal(batch, batches[0])


@given(st.integers(1, 60), st.integers(0, 5), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_every_row_comes_exactly_once_per_epoch_whatever_restarts_happen(rows, seed, worlds):
    size = 12
    steps = -(-3 * rows // size)
    seen = np.concatenate(
        # Another world size at each step is a restart at each step: nothing is remembered.
        [global_batch(rows, seed, step, size, worlds[step % len(worlds)]) for step in range(steps)]
    )
    for epoch in range(3):
        assert sorted(seen[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_epochs_and_seeds_have_their_own_order():
    order = GlobalOrder(50, seed=1)
    assert list(order.indices(0, 50)) != list(order.indices(50, 50))
    assert list(order.indices(0, 50)) != list(GlobalOrder(50, seed=2).indices(0, 50))
    assert list(order.indices(0, 50)) != list(range(50))


def test_a_batch_may_be_larger_than_the_data():
    assert sorted(GlobalOrder(3, seed=1).indices(0, 7)[:6]) == [0, 0, 1, 1, 2, 2]


def test_a_share_without_rows_is_empty():
    """Of a batch with fewer rows than ranks, some have none."""
    assert list(GlobalOrder(3, seed=1).indices(5, 0)) == []


def test_an_empty_split_is_refused():
    with pytest.raises(BadDataError, match="empty"):
        GlobalOrder(0, seed=1)


@pytest.mark.parametrize(("rows", "size", "expected"), [(10, None, 10), (10, 4, 4), (10, 99, 10)])
def test_the_evaluation_sample_is_fixed_and_in_file_order(rows, size, expected):
    sample = fixed_sample(rows, size, seed=3)
    assert len(set(sample)) == expected
    assert list(sample) == sorted(sample)
    np.testing.assert_array_equal(sample, fixed_sample(rows, size, seed=3))


@given(st.integers(1, 200), st.integers(1, 40), st.integers(1, 9))
def test_every_rank_makes_equally_many_passes_over_all_rows(global_size, micro_size, data_size):
    plan = BatchPlan(global_size, micro_size, data_size)
    passes = [plan.micro_batches(rank) for rank in range(data_size)]
    assert {len(parts) for parts in passes} == {plan.accumulation_steps}
    rows = [row for parts in passes for part in parts for row in range(part.start, part.stop)]
    assert rows == list(range(global_size))
    assert max(part.stop - part.start for parts in passes for part in parts) <= micro_size


@pytest.mark.parametrize(
    ("global_size", "micro_size", "data_size", "passes"),
    [(64, 8, 1, 8), (64, 8, 2, 4), (64, 8, 3, 3), (64, 64, 2, 1), (65, 8, 1, 9)],
)
def test_accumulation_follows_from_the_number_of_ranks(global_size, micro_size, data_size, passes):
    plan = BatchPlan(global_size, micro_size, data_size)
    assert plan.accumulation_steps == passes
    assert f"{global_size} = {data_size} ranks x {passes} passes" in plan.describe()
