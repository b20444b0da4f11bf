"""Splits: rows of each split, from summaries of partitions, and an error for an empty one."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import polars as pl

from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.errors import BadDataError, join_names
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import (
    ZONE,
    Dataset,
    has_label,
    scan_files,
    split_expression,
    window_start,
)

_PER_DAY = {"d": 1, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
# A year less than Python's at either end: time zones and blocks reach beyond a moment.
FIRST_DAY, LAST_DAY = date(2, 1, 1), date(9998, 12, 31)
_SMALL_BYTES = 1_000_000
_PERIOD_DAYS = {"week": 7, "month": 31, "quarter": 92, "year": 366}
# Of more groups, a hash leaves no split empty.
MOST_GROUPS, SALTS = 200, 64
_DAY = pl.Struct({"day": pl.Int32, "split": pl.String, "rows": pl.Int64})
SUMMARY: Mapping[str, Any] = {
    "rows_read": pl.Int64, "time_min": pl.Int64, "time_max": pl.Int64, "days": pl.List(_DAY),
}  # fmt: skip
"""Columns of a table of `RowSummary`."""


class RowSummary(TypedDict):
    """Counts and times of a partition's rows, of which those of a snapshot are made."""

    rows_read: int
    time_min: int | None
    """The first moment as a number, in the column's own unit; a Date's in days."""
    time_max: int | None
    days: list[dict[str, Any]]
    """`day` (days since 1970, in the column's own zone; null where the time is), `split` and `rows`
    with a label."""


def summarize_rows(
    path: Path, data: DataSection, split: SplitSection, columns: Mapping[str, str]
) -> RowSummary:
    """Summarize one partition, so that a snapshot can be counted without reading it again.

    Windows (`train_days`, `test_days`) depend on the newest day of all partitions, so rows are
    counted by day.
    """
    rows = scan_files([path])
    # Bounded memory is worth its start where there are many rows.
    is_small = path.stat().st_size < _SMALL_BYTES
    engine: Literal["streaming", "in-memory"] = "in-memory" if is_small else "streaming"
    time = pl.col(data.time) if data.time else pl.lit(None, pl.Date)
    ends = rows.select(
        pl.len(), low=time.min().to_physical(), high=time.max().to_physical()
    ).collect(engine=engine)
    summary = RowSummary(rows_read=ends[0, 0], time_min=ends[0, 1], time_max=ends[0, 2], days=[])
    if data.time and _beyond(summary, columns[data.time]):
        return summary  # its days are beyond what polars can compute
    counts = (
        rows.filter(has_label(data, columns))
        .select(day=time.dt.date().to_physical(), split=split_expression(data, split))
        .drop_nulls("split")
        .group_by("day", "split")
        .agg(rows=pl.len().cast(pl.Int64))
        .collect(engine=engine)
        .sort("day", "split", nulls_last=True)
    )
    return {**summary, "days": counts.to_dicts()}


def summarize_partitions(snapshot: Snapshot) -> pl.DataFrame:
    """Summarize every partition of a snapshot, in its order."""
    dataset = Dataset(snapshot)
    found = [
        summarize_rows(dataset.fetch(file), snapshot.data, snapshot.split, snapshot.columns)
        for file in snapshot.files
    ]
    return pl.DataFrame(found, schema=SUMMARY)


def with_split_rows(snapshot: Snapshot, summaries: pl.DataFrame | None = None) -> Snapshot:
    """Return the snapshot with its first and last moment and the rows that each split selects.

    `summaries` has a `RowSummary` for each partition, in order; None to read them all.
    """
    if summaries is None:
        summaries = summarize_partitions(snapshot)
    _check_rows(snapshot, summaries["rows_read"])
    if snapshot.data.time:
        _check_years(snapshot, summaries)
        kind = snapshot.columns[snapshot.data.time]
        low, high = (_moment(end, kind) for end in _ends(summaries))
        snapshot = snapshot.model_copy(update={"time_min": low, "time_max": high})
    selected = _selected_days(snapshot, summaries)
    rows = dict(selected.group_by("split").agg(_ROWS.sum()).iter_rows())
    counted = snapshot.model_copy(
        update={
            "files": _counted_files(snapshot, summaries, selected),
            "split_rows": {split: rows.get(split.value, 0) for split in Split},
        }
    )
    return counted.model_copy(update={"counted_by": counted.counting_rule()})


def _counted_files(
    snapshot: Snapshot, summaries: pl.DataFrame, selected: pl.DataFrame
) -> tuple[DataFile, ...]:
    """Return the files with the splits that select rows of them, and the days of their rows."""
    splits: list[set[str]] = [set() for _ in snapshot.files]
    for place, split in selected.select("file", "split").unique().iter_rows():
        splits[place].add(split)
    days: Sequence[Sequence[date | None]] = [(None, None)] * len(snapshot.files)
    if snapshot.data.time:
        unit = _unit(snapshot.columns[snapshot.data.time])
        kind = pl.Date() if unit == "d" else pl.Datetime(unit)
        moments = summaries.select(pl.col("time_min", "time_max").cast(kind).cast(pl.Date))
        days = moments.rows()
    return tuple(
        file.model_copy(
            update={
                "splits": tuple(each for each in Split if each.value in splits[place]),
                "days": None if days[place][0] is None else tuple(days[place]),
            }
        )
        for place, file in enumerate(snapshot.files)
    )


_ROWS = pl.col("rows")


def _selected_days(snapshot: Snapshot, summaries: pl.DataFrame) -> pl.DataFrame:
    """Return `file`, `split`, `day` and `rows` of what the windows select.

    As `selected_split` does; `file` is a place in the snapshot.
    """
    days = summaries.select("days").with_row_index("file").explode("days").drop_nulls("days")
    days = days.unnest("days")
    if snapshot.data.time is None or snapshot.time_max is None:
        return days
    is_test = pl.col("split") == Split.TEST.value
    for width, inside in (
        (snapshot.split.train_days, ~is_test),
        (snapshot.split.test_days, is_test),
    ):
        if width is not None:
            first = window_start(snapshot, width).to_physical()
            days = days.filter(~inside | (pl.col("day") >= first))
    return days


def _check_rows(snapshot: Snapshot, found: pl.Series) -> None:
    """Check that as many rows can be read as the footers state."""
    if found.sum() == snapshot.rows:
        return
    wrong = [
        f"{file.uri} has {file.rows:,} rows by its footer, but {rows:,} can be read"
        for file, rows in zip(snapshot.files, found, strict=True)
        if rows != file.rows
    ]
    raise BadDataError(
        f"{found.sum():,} rows can be read, but by the footers there are {snapshot.rows:,}",
        evidence="; ".join(wrong[:3]),
        action="write these partitions again",
    )


def _check_years(snapshot: Snapshot, summaries: pl.DataFrame) -> None:
    """Check that every time lies in years that calendars can compute with."""
    column = snapshot.data.time or ""
    kind = snapshot.columns[column]
    ends = summaries.select("time_min", "time_max")
    found = zip(snapshot.files, ends.iter_rows(named=True), strict=True)
    files = [file.uri for file, each in found if _beyond(each, kind)]
    if not files:
        return
    raise BadDataError(
        f"data.time {column!r} holds times outside of the years {FIRST_DAY.year} to "
        f"{LAST_DAY.year}",
        evidence=f"the lowest and the highest are {_years(_ends(summaries), _unit(kind))}, in "
        + join_names(files, 3),
        action="write null where the time is not known, not a placeholder date",
    )


def _beyond(ends: Mapping[str, Any], kind: str) -> bool:
    first, last = (
        (day - date(1970, 1, 1)).days * _PER_DAY[_unit(kind)] for day in (FIRST_DAY, LAST_DAY)
    )
    values = [each for each in (ends["time_min"], ends["time_max"]) if each is not None]
    return not all(first <= each <= last for each in values)


def _unit(kind: str) -> Literal["d", "ms", "us", "ns"]:
    """Return the unit of a column's type, as polars writes it: "d" of Date."""
    found = re.search(r"time_unit='(\w+)'", kind)
    return cast(Literal["ms", "us", "ns"], found[1]) if found else "d"


def _moment(number: int | None, kind: str) -> datetime | None:
    """Return a moment from its number in the column's type.

    A Date column's day is its midnight; moments with a zone are in UTC, equal for every reader.
    """
    zone = ZONE.search(kind)
    unit = _unit(kind)
    dtype = pl.Date() if unit == "d" else pl.Datetime(unit, zone[1] if zone else None)
    found: datetime | date | None = pl.Series([number], dtype=pl.Int64).cast(dtype).item()
    if found is None:
        return None
    if not isinstance(found, datetime):
        return datetime(found.year, found.month, found.day)
    return found.astimezone(UTC) if found.tzinfo else found


def _ends(summaries: pl.DataFrame) -> Sequence[Any]:
    """Return the first and the last moment of all partitions, as numbers."""
    return summaries.select(pl.col("time_min").min(), pl.col("time_max").max()).row(0)


def _years(numbers: Sequence[int], unit: str) -> str:
    """About which years these are; they may be beyond what a calendar can show."""
    years = [1970 + math.floor(value / _PER_DAY[unit] / 365.2425) for value in numbers]
    return " and ".join(f"about the year {year}" for year in years)


def check_splits(snapshot: Snapshot) -> None:
    """Check that every split has rows."""
    empty = [split.value for split, rows in snapshot.split_rows.items() if rows == 0]
    if empty:
        counts = ", ".join(f"{split.value} {rows:,}" for split, rows in snapshot.split_rows.items())
        raise BadDataError(
            f"no row falls into the split{'s' if len(empty) > 1 else ''} {' and '.join(empty)}",
            evidence=f"rows: {counts}, of {snapshot.rows:,}; {_rule(snapshot)}",
            action=_remedy(snapshot),
        )


def rows_by_block(
    snapshot: Snapshot, summaries: pl.DataFrame | None = None
) -> dict[str, list[tuple[date, int]]]:
    """Return the rows of each split per block of time, in time order, zero included.

    Empty without a time column. The snapshot has its first and last moment.
    """
    if not snapshot.data.time:
        return {}
    if summaries is None:
        summaries = summarize_partitions(snapshot)
    length = snapshot.data.block_days
    block = pl.col("day") // length * length
    selected = _selected_days(snapshot, summaries).drop_nulls("day")
    counts = selected.group_by("split", block.cast(pl.Int32).cast(pl.Date)).agg(_ROWS.sum())
    found = {(split, day): rows for split, day, rows in counts.iter_rows()}
    days = sorted({day for _, day in found})
    return {
        split.value: [(day, found.get((split.value, day), 0)) for day in days] for split in Split
    }


def _rule(snapshot: Snapshot) -> str:
    split, data = snapshot.split, snapshot.data
    validation, test = split.validation_fraction, split.test_fraction
    train = 1.0 - validation - test
    shares = f"{train:.0%} train, {validation:.0%} validation, {test:.0%} test"
    method = split.resolved_method(data)
    if method != "time":
        key = data.group if method == "group" else " and ".join(data.ids)
        return f"the hash of {key} decides: {shares}"
    if snapshot.time_min is None or snapshot.time_max is None:
        return f"data.time {data.time!r} is null in every row"
    return (
        f"every {split.period} is cut in order into {shares}, and the data runs from "
        f"{snapshot.time_min:%Y-%m-%d} to {snapshot.time_max:%Y-%m-%d}"
    )


def _remedy(snapshot: Snapshot) -> str:
    split, data = snapshot.split, snapshot.data
    advice = [f"check that {data.label!r} is filled: rows without a label are in no split"]
    if split.resolved_method(data) == "time":
        first, last = snapshot.time_min, snapshot.time_max
        days = (last - first).days if first and last else 0
        # A year that is cut by month has too few times in each; ten days are no whole month.
        way = "longer" if days >= _PERIOD_DAYS[split.period] else "shorter"
        advice.append(f"give more history or choose a {way} split.period")
    elif proposal := _propose_salt(snapshot):
        advice = [proposal]
    else:
        advice.append("give more rows, or check that the column takes many values")
    windows = [f"split.{name}" for name in ("train_days", "test_days") if getattr(split, name)]
    if windows:
        advice.append(f"raise {' or '.join(windows)}")
    return "; ".join(advice)


def _propose_salt(snapshot: Snapshot) -> str:
    """Propose a salt by which few groups fill every split; empty if there are many, or none does.

    The hash of a few groups may leave a split empty, and what it gives differs much from the
    shares. No model is in use while a split is empty, so that the salt may still be chosen.
    """
    split, data = snapshot.split, snapshot.data
    if split.resolved_method(data) != "group" or data.group is None:
        return ""
    dataset = Dataset(snapshot)
    labelled = dataset.scan().filter(has_label(data, snapshot.columns))
    groups = dataset.collect(
        labelled.drop_nulls(data.group)
        .group_by(data.group)
        .agg(pl.len().cast(pl.Int64).alias("rows"))
    )
    if len(Split) > groups.height or groups.height > MOST_GROUPS:
        return ""
    validation, test = split.validation_fraction, split.test_fraction
    wanted = dict(zip(Split, (1 - validation - test, validation, test), strict=True))
    found: list[tuple[float, str, dict[str, int]]] = []
    for number in range(1, SALTS + 1):
        changed = split.model_copy(update={"salt": str(number)})
        divided = groups.group_by(split_expression(data, changed).alias("split")).agg(_ROWS.sum())
        rows = dict(divided.iter_rows())
        if len(rows) == len(Split):
            total = sum(rows.values())
            off = max(abs(rows[each] / total / share - 1) for each, share in wanted.items())
            found.append((off, changed.salt, rows))
    if not found:
        return ""
    _, salt, rows = min(found, key=lambda each: each[0])
    counts = ", ".join(f"{each.value} {rows[each]:,}" for each in Split)
    return (
        f'set split.salt = "{salt}", by which the hash divides these {groups.height} values '
        f"into rows: {counts}; with many values of {data.group!r} it needs none"
    )
