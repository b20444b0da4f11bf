"""Rows of each split per row group: the sums that Dataset counts, under every rule and window."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from perennial.clients.object_store import LocalObjectStore, sha256_of_file
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data import row_groups
from perennial.data.dataset import Dataset
from perennial.data.row_groups import RowGroupReader, index_partitions, select_groups
from perennial.data.splits import with_split_rows

COLUMNS = {"time": "time", "group": "group", "hash": None}


def take_snapshot(folder, method, **windows):
    """Three partitions of 120 days, a third of whose rows have no label or no time."""
    folder.mkdir(exist_ok=True)
    random, files = np.random.default_rng(3), []
    for number, rows in enumerate((200, 31, 500)):
        start = datetime(2025, 1, 1) + timedelta(days=40 * number)
        frame = pl.DataFrame(
            {
                "time": [start + timedelta(hours=int(h)) for h in random.integers(0, 960, rows)],
                "group": random.integers(0, 40, rows),
                "id": np.arange(rows) + 1_000 * number,
                "y": random.normal(size=rows),
            }
        ).with_columns(
            y=pl.when(pl.col("id") % 6 > 0).then("y"),
            time=pl.when(pl.col("id") % 5 > 0).then("time"),
        )
        file = folder / f"part-{number}.parquet"
        frame.write_parquet(file, row_group_size=64)
        files.append(
            DataFile(
                uri=str(file),
                size_bytes=file.stat().st_size,
                sha256=sha256_of_file(file),
                rows=rows,
            )
        )
    roles = {"ids": ("id",)} | ({"group": "group"} if method == "group" else {})
    if windows or method == "time":
        roles["time"] = "time"
    return with_split_rows(
        Snapshot(
            data=DataSection(uri=str(folder), label="y", **roles),
            split=SplitSection(method=method, **windows),
            files=tuple(files),
            columns={name: str(dtype) for name, dtype in frame.schema.items()},
            rows=731,
            split_rows={},
        )
    )


@pytest.mark.parametrize("method", ["time", "group", "hash"])
@pytest.mark.parametrize("windows", [{}, {"train_days": 50}, {"train_days": 50, "test_days": 20}])
def test_row_groups_hold_the_rows_that_the_data_set_holds(tmp_path, method, windows):
    snapshot = take_snapshot(tmp_path / "data", method, **windows)
    indexes = index_partitions(snapshot, LocalObjectStore(tmp_path / "store"))
    for split in Split:
        groups = select_groups(snapshot, indexes, split)  # compares with the snapshot's count
        rows = pl.concat(RowGroupReader(snapshot).read(groups, split))
        assert rows.equals(Dataset(snapshot).scan(split).collect()), split


def test_processes_index_the_same(tmp_path, monkeypatch):
    snapshot = take_snapshot(tmp_path / "data", "time")
    alone = index_partitions(snapshot, LocalObjectStore(tmp_path / "store"))
    monkeypatch.setattr(row_groups, "_ROWS_OF_PROCESS", 100)
    monkeypatch.setenv("PERENNIAL_CORES", "2")
    shared = LocalObjectStore(tmp_path / "shared")
    index_partitions(snapshot.model_copy(update={"files": snapshot.files[1:2]}), shared)
    assert index_partitions(snapshot, shared) == alone


def test_another_window_needs_no_partition_again(tmp_path, monkeypatch):
    store = LocalObjectStore(tmp_path / "store")
    index_partitions(take_snapshot(tmp_path / "data", "time", train_days=50), store)
    moved = take_snapshot(tmp_path / "data", "time", train_days=20, test_days=9)
    monkeypatch.setattr(Dataset, "fetch", lambda *_: pytest.fail("read again"))
    assert select_groups(moved, index_partitions(moved, store), Split.TRAIN)


@pytest.mark.parametrize("content", [b"", b'{"groups": [{"start'], ids=["empty", "cut"])
def test_an_index_that_cannot_be_read_is_made_again(tmp_path, content, caplog):
    store = LocalObjectStore(tmp_path / "store")
    snapshot = take_snapshot(tmp_path / "data", "hash")
    before = index_partitions(snapshot, store)
    damaged = store.list()[0].key
    intact = store.read(damaged)
    store.write(damaged, content)
    assert index_partitions(snapshot, store) == before
    assert store.read(damaged) == intact
    assert damaged in caplog.text


def test_other_rows_than_the_snapshot_counted_are_an_error(tmp_path):
    snapshot = take_snapshot(tmp_path / "data", "hash")
    indexes = index_partitions(snapshot, LocalObjectStore(tmp_path / "store"))
    counts = {**snapshot.split_rows, Split.TRAIN: snapshot.split_rows[Split.TRAIN] + 1}
    wrong = snapshot.model_copy(update={"split_rows": counts})
    with pytest.raises(BadDataError, match="does not have the rows that the snapshot counted"):
        select_groups(wrong, indexes, Split.TRAIN)
