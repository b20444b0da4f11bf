"""A split is scored by any number of processes as by one, bit for bit and in file order."""

import pickle
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

from captioned_shapes import OPTIONS, TASK, write_shapes
from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data import dataset as datasets
from perennial.data.dataset import Dataset
from perennial.engine.evaluation import scoring
from perennial.engine.evaluation.scoring import Share, read_together, rows_in_file, score_split
from perennial.engine.task import load_task
from scoring_ranks import KEPT, score_share, score_validation, trained
from tiny_training import run_ranks, tiny_job


@pytest.fixture(scope="module")
def dataset(root):
    return Dataset(Snapshot.read(root / "snapshot"))


def require_same(one, other):
    for name in ("losses", "predictions", "labels", "weights"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name), strict=True)
    assert one.rows.equals(other.rows)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rows_at_once", [1, 7, 20, 4096])
def test_the_shares_of_processes_make_what_one_process_scores(
    dataset, tmp_path, size, rows_at_once
):
    task, model = trained(dataset, rows_at_once)
    alone = score_split(task, model, dataset, Split.VALIDATION, keep=KEPT)
    shares = [
        score_share(tmp_path, task, model, dataset, Share(rank, size), keep=KEPT)
        for rank in range(size)
    ]
    together = read_together(shares)
    require_same(together, alone)
    assert together.metrics(task) == alone.metrics(task)
    batches = -(-len(alone.labels) // rows_at_once)
    assert sum(share.rows > 0 for share in shares) == min(size, batches)


@pytest.mark.parametrize(("processes", "rows_at_once"), [(2, 7), (3, 7), (3, 30)])
def test_ranks_of_a_process_group_score_together(root, dataset, tmp_path, processes, rows_at_once):
    ranks = partial(score_validation, root / "snapshot", rows_at_once, tmp_path / "scored")
    assert run_ranks(tiny_job(root, processes=processes), ranks) == [0] * processes
    task, model = trained(dataset, rows_at_once)
    alone = score_split(task, model, dataset, Split.VALIDATION, keep=KEPT)
    # 30 rows at once make two batches: the third rank has none.
    assert (processes > -(-len(alone.labels) // rows_at_once)) == (rows_at_once == 30)
    require_same(pickle.loads((tmp_path / "scored").read_bytes()), alone)


def test_shares_cover_every_row_once_in_whole_batches():
    for rows in (0, 1, 6, 7, 50, 101):
        for size in (1, 2, 3, 8):
            parts = [Share(rank, size).of(rows, 7) for rank in range(size)]
            covered = [row for part in parts for row in range(part.start, part.stop)]
            assert covered == list(range(rows))
            assert all(part.start % 7 == 0 or part.start == rows for part in parts)
            full = [-(-(part.stop - part.start) // 7) for part in parts]
            assert max(full) - min(full) <= 1


def test_rows_that_are_scored_together_stay_together(tmp_path, monkeypatch):
    dataset = Dataset(write_shapes(tmp_path, rows=600))
    task = load_task(TASK, OPTIONS, dataset.snapshot.task_columns)
    task.fit(dataset.scan(Split.TRAIN))
    torch.manual_seed(0)
    model = task.build_model()
    at_once = score_split(task, model, dataset, Split.VALIDATION)
    # Fewer rows at a time than make two groups of 16 candidates, as for large pictures.
    monkeypatch.setattr(datasets, "_WIDE_ROWS", 24)
    shares = [score_share(tmp_path, task, model, dataset, Share(n, 3)) for n in range(3)]
    assert [share.rows % 16 for share in shares[:2]] == [0, 0]
    np.testing.assert_allclose(read_together(shares).losses, at_once.losses, rtol=1e-5)


@pytest.mark.parametrize(
    "dtype", [pl.List(pl.String), pl.List(pl.Categorical)], ids=["strings", "categories"]
)
def test_lists_of_categories_are_kept_though_each_batch_has_others(monkeypatch, dtype):
    """As the tags of texts are, of more rows than are written at once."""
    monkeypatch.setattr(scoring, "ROWS_AT_ONCE", 2)
    tags = [[["PER", "O"], ["O"]], [["LOC"], ["O", "ORG"]], [["PER"]]]
    found = rows_in_file(pl.DataFrame({"tags": each}, schema={"tags": dtype}) for each in tags)
    assert found["tags"].to_list() == [row for each in tags for row in each]
