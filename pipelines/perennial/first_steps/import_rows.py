"""Import rows: appends a file, or a pandas frame, to a contract's dataset as a partition."""

import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path

import pandas as pd
import polars as pl

from perennial.clients.object_store import ObjectStore, open_store
from perennial.contract import load_contract
from perennial.contracts.data import DataSection
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.data.parquet_files import readable
from perennial.data.partitions import Listing, find_key_problem, find_partitions
from perennial.engine.serving.pyfunc import typed_rows
from perennial.first_steps.draft import ROW_ID, Kind
from perennial.first_steps.series import HISTORY, with_history
from perennial.first_steps.source_rows import readable_source, scan_rows
from perennial.first_steps.written_dates import parse_written_values
from perennial.reports.text import counted

TEXTS = (pl.String, pl.Categorical, pl.Enum)


def import_rows(contract: Path, rows: Path | pd.DataFrame, name: str = "") -> Iterator[str]:
    """Write rows as a new partition, in the types of the dataset's newest one.

    Yields what was written and left out, for people.

    Args:
        contract: File of the contract; the rows go below its `data.uri`.
        rows: A CSV, JSON Lines or Parquet file, a folder of them, or a pandas frame.
        name: Name of the partition without ending; by default that of the file.

    Raises:
        PerennialError: a partition has that name, none would be read under it, or the rows have
            none.
        BadDataError: a column is missing, or its values do not fit the dataset's type.
    """
    data = load_contract(contract).data
    store = open_store(data.uri)
    listing = find_partitions(store)
    key = _choose_key(rows, name, data.uri, listing)
    with tempfile.TemporaryDirectory() as folder:
        newest = _newest_schema(store, listing, Path(folder))
        with readable_source(rows if isinstance(rows, Path) else Path("the frame")):
            classes = list[str]()
            if (
                newest
                and isinstance(rows, Path)
                and rows.is_dir()
                and _kind(data, newest) == "image"
            ):
                labels = _read_columns(store, listing, Path(folder), [data.label])[data.label]
                classes = labels.drop_nulls().cast(pl.String).unique().sort().to_list()
            parsed, notes = _parse(rows, data, newest or pl.Schema(), classes)
            given = parsed.collect()
        if given.is_empty():
            raise BadDataError("there are no rows to import", action="name a file with rows")
        yield from notes
        if ROW_ID in data.ids and newest and ROW_ID not in given.columns:
            # `init` counted the rows where nothing else identifies them.
            counted_on = _read_columns(store, listing, Path(folder), [ROW_ID])
            largest = counted_on.select(pl.col(ROW_ID).max()).item()
            given = given.with_row_index(ROW_ID, 0 if largest is None else int(largest) + 1)
            yield f"ids: {ROW_ID!r}, added: it goes on from the rows that are there"
        if data.time and newest and HISTORY in newest and HISTORY not in given.columns:
            columns = [data.time, data.label, HISTORY]
            known = _read_columns(store, listing, Path(folder), columns)
            given = _add_history(given, known, data.time, data.label)
        schema = newest or given.schema
        named = [data.label, *filter(None, [data.time, data.group]), *data.ids, *data.features]
        _require_columns(given, [*schema, *named])
        _refuse_two_readings(given, schema)
        yield from _note_lost_zones(given, schema)
        table = typed_rows(given.to_pandas(use_pyarrow_extension_array=True), schema)
        file = Path(folder) / "rows.parquet"
        table.write_parquet(file)
        store.upload(key, file)
    size = f"{counted(table.height, 'row')}, {counted(table.width, 'column')}"
    yield f"wrote {data.uri.rstrip('/')}/{key}: {size}"
    if left := [column for column in given.columns if column not in schema]:
        yield f"left out, as the dataset has no such columns: {', '.join(left)}"


def _choose_key(rows: Path | pd.DataFrame, name: str, uri: str, listing: Listing) -> str:
    """Return the key of the new partition, which none has yet."""
    if not (name or isinstance(rows, Path)):
        raise PerennialError("rows of a frame need a name", action='write name="2025-01"')
    key = f"{name or Path(str(rows)).stem}.parquet"
    if problem := find_key_problem(key):
        raise PerennialError(
            f"rows under the name {key} would never be read",
            evidence=problem,
            action="name the partition: --name NAME",
        )
    if any(item.key == key for item in listing.partitions):
        raise PerennialError(
            f"{uri} has a partition {key} already",
            evidence="nothing was written",
            action="name the new one: --name NAME; partitions are never replaced",
        )
    return key


def _parse(
    rows: Path | pd.DataFrame, data: DataSection, known: pl.Schema, classes: Collection[str]
) -> tuple[pl.LazyFrame, list[str]]:
    """Return rows as `init` reads them, and notes; the dataset's texts stay as they are written."""
    texts = [name for name, dtype in known.items() if dtype in TEXTS]
    if isinstance(rows, Path):
        table, notes = scan_rows(_kind(data, known), rows, texts, classes)
    else:
        table, notes = pl.from_pandas(rows).lazy(), []
    # Datasets of earlier versions hold times of day.
    clocks = [name for name, dtype in known.items() if dtype == pl.Time]
    table, more = parse_written_values(table, leave=[*texts, *clocks])
    return table, [*notes, *more]


def _kind(data: DataSection, known: pl.Schema) -> Kind:
    """Return the kind of data that `init` read the dataset as."""
    if data.text:
        return "text"
    types = [dtype for name, dtype in known.items() if name in data.features]
    is_picture = any(dtype == pl.Binary or dtype.is_nested() for dtype in types)
    return "image" if is_picture else "table"


def _refuse_two_readings(rows: pl.DataFrame, schema: pl.Schema) -> None:
    """Raise where a time is still a text such as 1/2/2025, which a conversion would guess."""
    for name, dtype in schema.items():
        if dtype.is_temporal() and rows.schema[name] == pl.String:
            unread = rows[name].filter(rows[name].str.contains(r"^\s*\d{1,2}[/.-]\d{1,2}[/.-]\d"))
            if len(unread):
                raise BadDataError(
                    f"the dates of {name!r} can be read in two ways",
                    evidence=f"such as {unread[0]!r}",
                    action="write them as 2025-01-31",
                )


def _note_lost_zones(rows: pl.DataFrame, schema: pl.Schema) -> Iterator[str]:
    """Yield the times with an offset that go to a column without one."""
    for name, dtype in schema.items():
        is_plain = dtype == pl.Date or (isinstance(dtype, pl.Datetime) and not dtype.time_zone)
        if is_plain and getattr(rows.schema[name], "time_zone", None):
            yield f"times: {name!r} has offsets, and the dataset none: written as UTC; is it right?"


def _newest_schema(store: ObjectStore, listing: Listing, folder: Path) -> pl.Schema | None:
    """Return the columns of the newest partition, by name; None if there is none."""
    if not listing.partitions:
        return None
    newest = store.fetch(listing.partitions[-1].key, folder)
    with readable(f"{listing.uri}/{listing.partitions[-1].key}"):
        return pl.Schema(pl.read_parquet_schema(newest))


def _read_columns(
    store: ObjectStore, listing: Listing, folder: Path, columns: list[str]
) -> pl.DataFrame:
    """Return columns of all partitions."""
    parts = []
    for partition in listing.partitions:
        with readable(f"{listing.uri}/{partition.key}"):
            parts.append(pl.read_parquet(store.fetch(partition.key, folder), columns=columns))
    return pl.concat(parts, how="vertical_relaxed")


def _add_history(given: pl.DataFrame, known: pl.DataFrame, time: str, label: str) -> pl.DataFrame:
    """Return the new rows of a series with the values before each, as `init` wrote them."""
    _require_columns(given, [time, label])
    own = given.cast({time: known.schema[time], label: known.schema[label]})
    length = known[HISTORY].list.len()[0]
    before = known.filter(pl.col(time) < own[time].min()).sort(time).tail(length)
    rows = pl.concat([before.drop(HISTORY), own], how="diagonal")
    return with_history(rows.lazy(), time, label, length).collect()


def _require_columns(rows: pl.DataFrame, names: list[str]) -> None:
    if missing := [name for name in dict.fromkeys(names) if name not in rows.columns]:
        raise BadDataError(
            f"the rows lack the columns {', '.join(missing)}",
            evidence=f"they have: {', '.join(rows.columns)}",
            action="add them; a value that is not known is empty (null)",
        )
