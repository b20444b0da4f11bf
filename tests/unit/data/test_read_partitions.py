"""Which partitions a step reads: those that may hold its rows, of however long a history."""

from datetime import date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.clients.object_store import sha256_of_file
from perennial.contracts.block import Block, BlockFile
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import FILE_COLUMN, Dataset
from perennial.data.splits import with_split_rows
from perennial.detect_drift.windows import scan_blocks

START = datetime(2025, 1, 1)


def days_of(first: int, count: int, zone: str | None = None) -> pl.DataFrame:
    """One row each half day, from so many days after the start on; one label is missing."""
    times = [START + timedelta(days=first + half / 2) for half in range(2 * count)]
    labels = [None, *(half % 2 for half in range(2 * count - 1))]
    return pl.DataFrame(
        {"at": pl.Series(times).dt.replace_time_zone(zone), "label": labels, "id": range(2 * count)}
    )


def snapshot_of(folder: Path, *tables: pl.DataFrame, **split) -> Snapshot:
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, table in enumerate(tables):
        path = folder / f"part-{number}.parquet"
        table.write_parquet(path)
        size, digest = path.stat().st_size, sha256_of_file(path)
        files.append(DataFile(uri=str(path), size_bytes=size, sha256=digest, rows=table.height))
    by_hash = split.get("method") == "hash"
    return with_split_rows(
        Snapshot(
            data=DataSection(
                uri=str(folder), label="label", ids=("id",), time=None if by_hash else "at"
            ),
            split=SplitSection(**split),
            files=tuple(files),
            columns={name: str(dtype) for name, dtype in tables[0].schema.items()},
            rows=sum(table.height for table in tables),
            split_rows={},
        )
    )


def read_by(dataset: Dataset) -> list[int]:
    """The places of the partitions that were fetched."""
    return sorted(dataset._paths)


def test_a_split_reads_the_partitions_that_hold_its_rows(tmp_path):
    """A month is cut 60/15/25: its days 1 to 18, to 23, and the rest."""
    weeks = [days_of(7 * week, 7) for week in range(4)]
    snapshot = snapshot_of(tmp_path, *weeks)
    expected = {Split.TRAIN: [0, 1, 2], Split.VALIDATION: [2, 3], Split.TEST: [3]}
    for split, places in expected.items():
        dataset = Dataset(snapshot)
        assert dataset.collect(dataset.scan(split)).height == snapshot.split_rows[split]
        assert read_by(dataset) == places


def test_windows_leave_old_partitions_alone(tmp_path):
    months = [days_of(31 * month, 31) for month in range(6)]
    snapshot = snapshot_of(tmp_path, *months, train_days=40, test_days=20)
    dataset = Dataset(snapshot)
    for split in Split:
        assert dataset.count(split) == snapshot.split_rows[split]
    assert read_by(dataset) == [4, 5]


def test_a_split_by_hash_reads_every_partition(tmp_path):
    snapshot = snapshot_of(tmp_path, *(days_of(30 * n, 30) for n in range(3)), method="hash")
    dataset = Dataset(snapshot)
    dataset.count(Split.TEST)
    assert read_by(dataset) == [0, 1, 2]
    assert all(file.days is None for file in snapshot.files)


def test_what_was_counted_by_another_rule_leaves_nothing_out(tmp_path):
    months = [days_of(31 * month, 31) for month in range(4)]
    snapshot = snapshot_of(tmp_path, *months, test_days=20)
    wider = snapshot.model_copy(
        update={"split": snapshot.split.model_copy(update={"test_days": None})}
    )
    dataset = Dataset(wider)
    assert dataset.count(Split.TEST) > snapshot.split_rows[Split.TEST]
    assert read_by(dataset) == [0, 1, 2, 3]


def test_a_snapshot_of_an_earlier_version_reads_all_and_has_the_same_digest(tmp_path):
    snapshot = snapshot_of(tmp_path, days_of(0, 20), days_of(20, 11))
    files = [{"splits": None, "days": None}] * 2
    earlier = snapshot.model_copy(
        update={
            "counted_by": "",
            "files": tuple(
                each.model_copy(update=before)
                for each, before in zip(snapshot.files, files, strict=True)
            ),
        }
    )
    assert earlier.digest() == snapshot.digest()
    assert earlier.files_of(Split.TEST) == (0, 1)
    assert earlier.files_between(date(2030, 1, 1), date(2030, 1, 2)) == (0, 1)
    assert Snapshot.from_json(snapshot.to_json()) == snapshot


def test_a_split_without_rows_is_empty(tmp_path):
    snapshot = snapshot_of(tmp_path, days_of(0, 5))
    dataset = Dataset(snapshot)
    rows = dataset.collect(dataset.scan(Split.TEST))
    assert rows.height == 0
    assert rows.columns == list(snapshot.columns)
    assert list(dataset.batches(Split.TEST, 10)) == []
    assert dataset.count_by_file(Split.TEST) == [0]


def test_the_types_of_columns_are_read_from_one_partition(tmp_path):
    snapshot = snapshot_of(tmp_path, *(days_of(3 * n, 3) for n in range(5)))
    dataset = Dataset(snapshot)
    assert {name: str(kind) for name, kind in dataset.schema().items()} == snapshot.columns
    assert read_by(dataset) == [4]


@pytest.mark.parametrize("zone", [None, "Pacific/Kiritimati"])
def test_windows_of_drift_read_the_partitions_that_hold_them(tmp_path, monkeypatch, zone):
    snapshot = snapshot_of(tmp_path, *(days_of(14 * n, 14, zone) for n in range(8)))
    fetched, fetch = [], Dataset.fetch
    monkeypatch.setattr(
        Dataset, "fetch", lambda self, file: fetched.append(file.uri[-9]) or fetch(self, file)
    )
    newest = START + timedelta(days=14 * 7)
    block = Block(start=newest)
    rows = scan_blocks(snapshot, [block]).filter(pl.col("at").dt.date() >= newest.date())
    assert rows.collect().height == 28
    assert set(fetched) <= {"6", "7"}  # its first day may be that of the day before in UTC


def test_windows_of_files_read_these(tmp_path):
    snapshot = snapshot_of(tmp_path, *(days_of(5 * n, 5) for n in range(4)), method="hash")
    third = BlockFile(path=snapshot.paths[2], sha256=snapshot.files[2].sha256)
    rows = scan_blocks(snapshot, [Block(files=(third,))]).collect()
    assert rows[FILE_COLUMN].unique().to_list() == [2]
    assert rows.height == 10


@settings(database=None, max_examples=40, deadline=None)
@given(
    spans=st.lists(st.tuples(st.integers(0, 80), st.integers(1, 30)), min_size=1, max_size=5),
    zone=st.sampled_from([None, "Pacific/Kiritimati", "America/Los_Angeles"]),
    windows=st.tuples(st.none() | st.integers(1, 60), st.none() | st.integers(1, 60)),
    asked=st.tuples(st.integers(-5, 110), st.integers(0, 40)),
)
def test_no_row_is_lost(tmp_path_factory, spans, zone, windows, asked):
    """Against every partition read; days are those of the column's own zone."""
    tables = [days_of(first, count, zone) for first, count in spans]
    folder = tmp_path_factory.mktemp("rows")
    train, test = windows
    snapshot = snapshot_of(folder, *tables, train_days=train, test_days=test)
    whole = snapshot.model_copy(update={"counted_by": ""})
    for split in Split:
        found = Dataset(snapshot).scan(split).collect()
        assert found.equals(Dataset(whole).scan(split).collect())
        assert found.height == snapshot.split_rows[split]
    first = (START + timedelta(days=asked[0])).date()
    last = first + timedelta(days=asked[1])
    between = pl.col("at").dt.date().is_between(first, last)
    some = Dataset(snapshot).scan(files=snapshot.files_between(first, last)).filter(between)
    assert some.collect().equals(Dataset(whole).scan().filter(between).collect())


@pytest.mark.parametrize("kind", [pl.Date, pl.Datetime("ns"), pl.Datetime("ms", "UTC")])
def test_days_of_a_partition_in_any_unit(tmp_path, kind):
    table = days_of(3, 4).with_columns(pl.col("at").cast(kind))
    (file,) = snapshot_of(tmp_path, table).files
    assert file.days == (date(2025, 1, 4), date(2025, 1, 7))
