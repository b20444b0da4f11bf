"""Row groups are read from the pinned version of a partition, or not at all."""

from datetime import date

import polars as pl
import pyarrow.parquet as pq
import pytest

from perennial.clients.object_store import open_store
from perennial.clients.s3_store import S3ObjectStore
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import BadDataError
from perennial.data.partition_index import pinned_versions
from perennial.data.partition_reader import open_partition
from perennial.snapshot_data.manifest import take_snapshot


@pytest.fixture
def table():
    days = pl.date_range(date(2024, 1, 1), date(2024, 12, 30), eager=True)
    return pl.DataFrame({"at": days, "label": range(len(days)), "x": [0.5] * len(days)})


@pytest.fixture
def stored(bucket, table, tmp_path):
    """A partition of several row groups in a bucket: snapshot, versions, store."""
    path = tmp_path / "a.parquet"
    table.write_parquet(path, row_group_size=100)
    store = open_store(f"{bucket}/data")
    store.upload("year=2024/a.parquet", path)
    data = DataSection(uri=f"{bucket}/data", label="label", time="at")
    index = open_store(f"{bucket}/store")
    snapshot = take_snapshot(data, SplitSection(), tmp_path / "cache", index_store=index)
    return snapshot, pinned_versions(snapshot, index), store


def rows_of(snapshot, versions, **options):
    with open_partition(snapshot.files[0], snapshot, versions, **options) as file:
        reader = pq.ParquetFile(file)
        return pl.from_arrow(reader.read_row_groups([1, 3]))


def test_row_groups_are_those_of_the_file(stored, table, tmp_path):
    snapshot, versions, _ = stored
    expected = pl.concat([table[100:200], table[300:]])
    assert rows_of(snapshot, versions).equals(expected)
    assert rows_of(snapshot, {}, cache=tmp_path / "other").equals(expected)  # fetched whole


def test_only_ranges_are_read(stored, monkeypatch, tmp_path):
    snapshot, versions, _ = stored
    asked, read = [], S3ObjectStore.read_range
    monkeypatch.setattr(
        S3ObjectStore, "read_range",
        lambda self, item, start, stop: asked.append(stop - start) or read(self, item, start, stop),
    )  # fmt: skip
    with open_partition(snapshot.files[0], snapshot, versions) as file:
        assert pq.ParquetFile(file).metadata.num_row_groups == 4
    assert sum(asked) <= snapshot.files[0].size_bytes
    assert list((tmp_path / "cache").glob("*other*")) == []


def test_an_object_that_was_replaced_is_named_with_both_versions(stored):
    snapshot, versions, store = stored
    with open_partition(snapshot.files[0], snapshot, versions) as file:
        store.write("year=2024/a.parquet", b"PAR1 other content PAR1")
        with pytest.raises(BadDataError, match=r"a\.parquet changed while it was read") as caught:
            file.read(10)
    assert "when listed; 23 bytes, version" in caught.value.evidence


def test_an_object_that_is_gone_is_named(stored):
    snapshot, versions, store = stored
    with open_partition(snapshot.files[0], snapshot, versions) as file:
        store.delete("year=2024/a.parquet")
        with pytest.raises(BadDataError, match=r"a\.parquet does not exist any more"):
            file.read(10)


def test_a_local_file_is_verified(table, tmp_path):
    (tmp_path / "data").mkdir()
    path = tmp_path / "data" / "a.parquet"
    table.write_parquet(path, row_group_size=100)
    data = DataSection(uri=str(tmp_path / "data"), label="label", time="at")
    snapshot = take_snapshot(data, SplitSection())
    assert rows_of(snapshot, {}).equals(pl.concat([table[100:200], table[300:]]))
    content = bytearray(path.read_bytes())
    content[40] ^= 1
    path.write_bytes(content)
    with pytest.raises(BadDataError, match="changed after the snapshot was taken"):
        open_partition(snapshot.files[0], snapshot, {})
