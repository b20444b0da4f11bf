import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from perennial.engine.config.training import Loading
from perennial.engine.data.batching import BatchPlan, GlobalOrder
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.data.loader import Loader
from perennial.engine.task import LABEL, WEIGHT, Task

ROWS = 23


class Plain:
    """A task without augmentation."""

    augment = Task.augment


class Noisy:
    """A task whose augmentation draws from the generator it is given."""

    def augment(self, batch, generator):
        return batch | {"x": batch["x"] + torch.rand(batch["x"].shape, generator=generator)}


def write_split(folder: Path, *, weighted: bool = False) -> EncodedSplit:
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", np.arange(ROWS, dtype=np.float32)[:, None])
    np.save(folder / f"{LABEL}.npy", np.arange(ROWS))
    if weighted:
        np.save(folder / f"{WEIGHT}.npy", np.arange(1, ROWS + 1, dtype=np.float32))
    return EncodedSplit(folder)


def loader(split, *, task=None, rank=0, ranks=1, size=8, micro=3, ahead=0, workers=1):
    loading = Loading(prefetch_batches=ahead, workers=1 if not ahead else workers).on("cpu")
    return Loader(
        task or Plain(), split, GlobalOrder(ROWS, 1), BatchPlan(size, micro, ranks), rank,
        seed=1, loading=loading,
    )  # fmt: skip


def tensors(batch):
    return [{name: value.tolist() for name, value in part.items()} for part in batch.micro_batches]


@pytest.mark.parametrize("task", [Plain, Noisy])
@pytest.mark.parametrize(("ahead", "workers"), [(1, 1), (4, 1), (4, 3)])
def test_prefetched_batches_are_the_same_in_any_order_of_asking(tmp_path, task, ahead, workers):
    split = write_split(tmp_path / "split")
    plain = loader(split, task=task())
    prefetching = loader(split, task=task(), ahead=ahead, workers=workers)
    try:
        for position in [0, 1, 2, 3, 9, 10, 4, 5, 5]:
            assert tensors(prefetching.batch(position)) == tensors(plain.batch(position))
    finally:
        prefetching.close()


def test_closing_ends_the_thread(tmp_path):
    prefetching = loader(write_split(tmp_path / "split"), ahead=3)
    prefetching.batch(0)
    prefetching.close()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loader")]


def test_what_goes_wrong_in_the_thread_is_raised_where_the_batch_is_asked_for(tmp_path):
    class Broken:
        def augment(self, batch, generator):
            raise KeyError("the user's own mistake")

    prefetching = loader(write_split(tmp_path / "split"), task=Broken(), ahead=2)
    try:
        with pytest.raises(KeyError, match="own mistake"):
            prefetching.batch(0)
    finally:
        prefetching.close()


@pytest.mark.parametrize(("size", "ranks", "micro"), [(8, 2, 4), (7, 2, 2), (5, 4, 1), (9, 3, 9)])
def test_ranks_together_see_the_global_batch_and_know_its_weight(tmp_path, size, ranks, micro):
    split = write_split(tmp_path / "split", weighted=True)
    parts = [
        loader(split, rank=rank, ranks=ranks, size=size, micro=micro).batch(2)
        for rank in range(ranks)
    ]
    rows = GlobalOrder(ROWS, 1).indices(2 * size, size)
    np.testing.assert_array_equal(np.concatenate([part.rows for part in parts]), rows)
    weights = [float(batch[WEIGHT].sum()) for part in parts for batch in part.micro_batches]
    assert sum(weights) == parts[0].weight == float((rows + 1).sum())
    assert len({len(part.micro_batches) for part in parts}) == 1


def test_a_pass_without_rows_counts_nothing(tmp_path):
    part = loader(write_split(tmp_path / "split"), rank=0, ranks=2, size=5, micro=2).batch(0)
    other = loader(part_split(tmp_path), rank=1, ranks=2, size=5, micro=1).batch(0)
    assert part.weight == other.weight == 5.0
    assert [len(batch[LABEL]) for batch in part.micro_batches] == [1, 1]
    assert WEIGHT not in part.micro_batches[0]


def part_split(tmp_path):
    return EncodedSplit(tmp_path / "split")


def test_a_rank_with_fewer_rows_than_passes_takes_part_with_a_row_of_weight_zero(tmp_path):
    split = write_split(tmp_path / "split")
    first, second = (loader(split, rank=rank, ranks=2, size=3, micro=1).batch(0) for rank in (0, 1))
    assert [len(first.rows), len(second.rows)] == [1, 2]
    empty, full = first.micro_batches
    assert empty[WEIGHT].tolist() == [0.0]
    assert WEIGHT not in full


@pytest.mark.parametrize(
    ("settings", "device", "ahead", "pinned"),
    [
        ({}, "cpu", 0, False),
        ({}, "cuda", 2, True),
        ({"workers": 4}, "cpu", 2, False),
        ({"prefetch_batches": 0}, "cuda", 0, True),
        ({"prefetch_batches": 5, "pin_memory": False}, "cuda", 5, False),
    ],
)
def test_what_is_left_open_follows_from_the_device(settings, device, ahead, pinned):
    loading = Loading(**settings).on(device)
    assert (loading.prefetch_batches, loading.pin_memory) == (ahead, pinned)
