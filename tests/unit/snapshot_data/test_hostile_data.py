"""Odd data either work, or end in one error that names the partition and the column."""

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow.parquet import encryption

from perennial.clients.object_store import open_store
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.errors import BadDataError
from perennial.data import parquet_files
from perennial.data.dataset import Dataset
from perennial.snapshot_data.manifest import take_snapshot
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.facts import gather_facts

pytestmark = pytest.mark.hostile

ROWS = 240
HOURS = [datetime(2024, 1, 1) + timedelta(hours=3 * index) for index in range(ROWS)]
MICROSECONDS = [round((moment - datetime(1970, 1, 1)).total_seconds() * 1e6) for moment in HOURS]


def table() -> pa.Table:
    return pa.table(
        {
            "id": [str(index) for index in range(ROWS)],
            "at": pa.array(HOURS, pa.timestamp("us")),
            "amount": [float(index % 17) for index in range(ROWS)],
            "city": ["Ulm", "Bonn"] * (ROWS // 2),
            "label": [index % 3 // 2 for index in range(ROWS)],
        }
    )


def with_column(name: str, values: pa.Array) -> pa.Table:
    whole = table()
    if name in whole.column_names:
        return whole.set_column(whole.column_names.index(name), name, values)
    return whole.append_column(name, values)


def constant(value: object, kind: pa.DataType) -> pa.Array:
    return pa.array([value] * ROWS, kind)


@pytest.fixture
def snapshot(tmp_path):
    """Writes a table as a dataset and takes its snapshot."""

    def take(rows: pa.Table, **options):
        (tmp_path / "data").mkdir(exist_ok=True)
        pq.write_table(rows, tmp_path / "data" / "part.parquet")
        names = {"label": "label", "time": "at", "ids": ("id",)} | options
        return take_snapshot(DataSection(uri=str(tmp_path / "data"), **names), SplitSection())

    return take


def measure(snapshot):
    store = open_store(f"{snapshot.data.uri}-facts")
    return gather_facts(snapshot, ExpectationsSection(), datetime(2025, 1, 1, tzinfo=UTC), store)


WORKS = {
    "duration": constant(timedelta(hours=3), pa.duration("us")),
    "struct": constant({"a": 1, "b": "x"}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
    "map": constant([("k", 1)], pa.map_(pa.string(), pa.int64())),
    "lists of lists": constant([[1, 2], [3]], pa.list_(pa.list_(pa.int64()))),
    "lists of texts": constant(["a", "b"], pa.list_(pa.string())),
    "lists of structs": constant([{"a": 1}], pa.list_(pa.struct([("a", pa.int64())]))),
    "decimal": constant(Decimal("1.5"), pa.decimal128(38, 2)),
    "small decimal256": constant(Decimal("1.5"), pa.decimal256(20, 2)),
    "nulls": pa.nulls(ROWS),
    "largest uint64": constant(2**64 - 1, pa.uint64()),
    "float16": pa.array([1.5] * ROWS, pa.float32()).cast(pa.float16()),
    "time of day": constant(time(3), pa.time32("s")),
    "nanoseconds": constant(datetime(2200, 1, 1), pa.timestamp("ns")),
    "beyond the calendar": constant(2**62, pa.timestamp("us")),
    "dictionary": pa.array(["a", "b", "c"] * (ROWS // 3)).dictionary_encode(),
    "infinity": constant(float("inf"), pa.float64()),
}


@pytest.mark.parametrize("case", WORKS)
def test_values_of_any_type_are_measured(snapshot, case):
    facts = measure(snapshot(with_column("feature", WORKS[case])))
    assert facts.values["rows"] == ROWS


TIMES = {
    **{unit: pa.array(HOURS, pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
    "date": pa.array([moment.date() for moment in HOURS], pa.date32()),
    "date64": pa.array([moment.date() for moment in HOURS], pa.date64()),
    **{
        zone: pa.array(MICROSECONDS, pa.timestamp("us", tz=zone))
        for zone in ("UTC", "Pacific/Kiritimati", "Etc/GMT+12", "EST5EDT", "-00:00")
    },
}


@pytest.mark.parametrize("case", TIMES)
def test_a_time_of_any_resolution_and_zone_is_read(snapshot, case):
    taken = snapshot(with_column("at", TIMES[case]))
    assert taken.time_min.year in (2023, 2024)
    assert all(taken.split_rows[split] for split in Split)


def times(*last: int) -> pa.Array:
    return pa.array([*MICROSECONDS[: ROWS - len(last)], *last], pa.timestamp("us"))


def moments(*last: datetime) -> pa.Array:
    return pa.array([*HOURS[: ROWS - len(last)], *last], pa.timestamp("us"))


YEARS = "data.time 'at' holds times outside of the years 2 to 9998"
REFUSED_TIMES = {
    "year 1": (moments(datetime(1, 1, 1)), YEARS),
    "the last moment of year 9999": (moments(datetime(9999, 12, 31, 23, 59, 59)), YEARS),
    "beyond the calendar": (times(2**62), YEARS),
    "before the calendar": (times(-(2**62)), YEARS),
    "the largest number": (times(2**63 - 1), YEARS),
    "far dates": (pa.array([*[m.date() for m in HOURS[1:]], date(9999, 12, 31)], pa.date32()), YEARS),
    "an offset": (pa.array(MICROSECONDS, pa.timestamp("us", tz="+05:30")), "has the time zone '+05:30'"),
    "a zone on Mars": (pa.array(MICROSECONDS, pa.timestamp("us", tz="Mars/Phobos")), "zone 'Mars/Phobos'"),
    "a text": (pa.array([str(m) for m in HOURS]), "data.time 'at' is String, expected Datetime or Date"),
    "a number": (pa.array(MICROSECONDS), "data.time 'at' is Int64, expected Datetime or Date"),
    "a time of day": (constant(time(3), pa.time64("us")), "data.time 'at' is Time"),
    "nulls": (pa.nulls(ROWS, pa.timestamp("us")), "is null in every row"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED_TIMES)
def test_a_time_that_calendars_cannot_hold_is_named(snapshot, case):
    values, message = REFUSED_TIMES[case]
    with pytest.raises(BadDataError) as caught:
        snapshot(with_column("at", values))
    assert message in str(caught.value)
    assert caught.value.action


@pytest.mark.parametrize("name", ["a.b", "feat^$", "^", "$", "a:b", " ", "value", "split", "label2", "ä", "a\nb", "{x}", "%s", "col('x')", "Amount", "x" * 3000])  # fmt: skip
def test_a_column_of_any_name_is_itself(snapshot, name):
    taken = snapshot(with_column(name, constant(1.0, pa.float64())))
    assert measure(taken).values[f"values:{name}"] == ROWS


@pytest.mark.parametrize("name", ["*", "^.*$", "^am.*$", "^$", "", "__split__", "__block__", "__key__", "__rows__", "__day__", "__stratum__", "__time__", "__order__", "__partition_file__", "__index_level_0__"])  # fmt: skip
def test_a_column_whose_name_means_something_else_is_named(snapshot, name):
    with pytest.raises(BadDataError) as caught:
        snapshot(with_column(name, constant(1.0, pa.float64())))
    assert repr(name) in caught.value.evidence


def test_every_column_that_is_made_internally_has_a_name_that_is_refused():
    package = Path(parquet_files.__file__).parents[1]
    modules = (package / each for each in ("data", "detect_drift", "validate_data"))
    text = "".join(path.read_text() for folder in modules for path in folder.rglob("*.py"))
    used = {*re.findall(r'"(__[a-z_]+)"', text), *re.findall(r"\b(__[a-z]+__)=", text)}
    assert {"__split__", "__row", "__order__"} <= used
    assert used - {"__main__"} <= parquet_files.INTERNAL_COLUMNS


def test_an_index_of_pandas_with_a_role_is_read(snapshot):
    index = with_column("__index_level_0__", pa.array(range(ROWS)))
    assert snapshot(index, meta=("__index_level_0__",)).rows == ROWS


def test_two_columns_of_one_name_are_named(snapshot):
    rows = table()
    twice = pa.Table.from_arrays([*rows.columns, rows["amount"]], [*rows.column_names, "amount"])
    with pytest.raises(BadDataError, match=r"part\.parquet cannot be used") as caught:
        snapshot(twice)
    assert "the name 'amount' occurs more than once" in caught.value.evidence


def test_a_column_with_the_name_of_a_statistic_is_named(snapshot):
    rows = with_column("city.length", constant(1.0, pa.float64()))
    with pytest.raises(BadDataError, match=r"'city\.length' has the name of a statistic"):
        measure(snapshot(rows, text=("city",)))


LABELS = {
    "map": constant([("k", 1)], pa.map_(pa.string(), pa.int64())),
    "duration": constant(timedelta(hours=1), pa.duration("us")),
    "decimal256": constant(Decimal(1), pa.decimal256(60, 2)),
    "not a number": constant(float("nan"), pa.float64()),
    "null": pa.nulls(ROWS),
}


@pytest.mark.parametrize("case", LABELS)
def test_a_label_that_cannot_be_learned_is_named(snapshot, case):
    with pytest.raises(BadDataError, match="label"):
        measure(snapshot(with_column("label", LABELS[case])))


@pytest.mark.parametrize("kind", [pa.binary(), pa.list_(pa.int64())])
@pytest.mark.parametrize("role", ["group", "ids"])
def test_a_key_that_cannot_be_hashed_is_named(snapshot, kind, role):
    value = b"x" if kind == pa.binary() else [1]
    key = "key" if role == "group" else ("key",)
    with pytest.raises(BadDataError, match="cannot use 'key', which is"):
        snapshot(
            with_column("key", constant(value, kind)),
            **{"time": None, "meta": ("at",), "ids": (), role: key},
        )


@pytest.mark.parametrize("column", ["city", "label", "id"])
def test_texts_that_are_not_utf8_are_named(snapshot, column):
    offsets = pa.array(range(0, ROWS * 2 + 1, 2), pa.int32()).buffers()[1]
    texts = pa.Array.from_buffers(
        pa.string(), ROWS, [None, offsets, pa.py_buffer(b"\xff\xfe" * ROWS)]
    )
    with pytest.raises(BadDataError, match=r"part\.parquet cannot be decoded"):
        measure(snapshot(with_column(column, texts)))


def test_a_column_name_that_is_not_utf8(snapshot, tmp_path):
    snapshot(with_column("zzzz", constant(1.0, pa.float64())))
    path = tmp_path / "data" / "part.parquet"
    path.write_bytes(path.read_bytes().replace(b"zzzz", b"zz\xff\xfe"))
    data = DataSection(uri=str(path.parent), label="label", time="at")
    with pytest.raises(BadDataError, match=r"part\.parquet is not a complete Parquet file"):
        take_snapshot(data, SplitSection())


class Keys(encryption.KmsClient):
    """Hands out keys as they are."""

    def __init__(self, _):
        super().__init__()

    def wrap_key(self, key, name):
        return key.hex()

    def unwrap_key(self, key, name):
        return bytes.fromhex(key)


@pytest.mark.parametrize("is_footer_plain", [False, True])
def test_an_encrypted_file_is_recognised(tmp_path, is_footer_plain):
    rule = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"c": ["amount"]}, plaintext_footer=is_footer_plain
    )
    factory = encryption.CryptoFactory(Keys)
    secret = factory.file_encryption_properties(encryption.KmsConnectionConfig(), rule)
    with pq.ParquetWriter(
        tmp_path / "a.parquet", table().schema, encryption_properties=secret
    ) as w:
        w.write_table(table())
    with pytest.raises(BadDataError, match=r"a\.parquet is encrypted"):
        measure(
            take_snapshot(DataSection(uri=str(tmp_path), label="label", time="at"), SplitSection())
        )


def test_a_file_that_is_replaced_while_it_is_read_is_named(snapshot, tmp_path):
    dataset = Dataset(snapshot(table()))
    batches = dataset.labelled_batches(50)
    next(batches)
    pl.from_arrow(table().slice(3)).write_parquet(tmp_path / "data" / "part.parquet")
    with pytest.raises(BadDataError, match=r"part\.parquet changed while it was read"):
        list(batches)


def test_row_groups_without_rows_are_no_obstacle(tmp_path):
    with pq.ParquetWriter(tmp_path / "a.parquet", table().schema) as writer:
        for rows in (table().slice(0, 0), table(), table().slice(0, 0)):
            writer.write_table(rows)
    data = DataSection(uri=str(tmp_path), label="label", time="at", ids=("id",))
    assert take_snapshot(data, SplitSection()).rows == ROWS


def test_integers_of_128_bits_are_reported_as_unreadable(tmp_path):
    rows = pl.from_arrow(table()).with_columns(big=pl.lit(7, pl.Int128))
    rows.write_parquet(tmp_path / "a.parquet")
    data = DataSection(uri=str(tmp_path), label="label", time="at", ids=("id",))
    with pytest.raises(BadDataError, match=r"a\.parquet has a type that cannot be read"):
        take_snapshot(data, SplitSection())


@pytest.mark.full
def test_five_thousand_columns(snapshot):
    wide = {f"f{index}": [float(index + row % 7) for row in range(ROWS)] for index in range(5000)}
    rows = pa.table({**{name: table()[name] for name in table().column_names}, **wide})
    assert measure(snapshot(rows)).values["rows"] == ROWS
