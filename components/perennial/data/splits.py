"""Splits: rows of each split, and an error that explains an empty one."""

import math
from datetime import UTC, date, datetime
from pathlib import Path

import polars as pl

from perennial.contracts.data import Split
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import SPLIT_COLUMN, Dataset, block_start, selected_split

_PER_DAY = {"d": 1, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
# A year less than Python's at either end: time zones and blocks reach beyond a moment.
FIRST_DAY, LAST_DAY = date(2, 1, 1), date(9998, 12, 31)


def with_split_rows(snapshot: Snapshot, cache: Path | None = None) -> Snapshot:
    """The snapshot with its first and last moment and the rows that each split selects."""
    dataset = Dataset(snapshot, cache)
    if snapshot.data.time:
        time = pl.col(snapshot.data.time)
        ends = dataset.collect(dataset.scan().select(low=time.min(), high=time.max()))
        _check_years(dataset, ends)
        low, high = ends.row(0)
        window = {"time_min": _moment(low), "time_max": _moment(high)}
        snapshot = snapshot.model_copy(update=window)
    split = selected_split(snapshot).alias(SPLIT_COLUMN)
    counts = dataset.collect(dataset.scan().select(split).group_by(SPLIT_COLUMN).len())
    rows = dict(counts.iter_rows())
    _check_rows(dataset, sum(rows.values()))
    return snapshot.model_copy(
        update={"split_rows": {split: rows.get(split.value, 0) for split in Split}}
    )


def _check_rows(dataset: Dataset, found: int) -> None:
    """Check that as many rows can be read as the footers state."""
    if found == dataset.snapshot.rows:
        return
    rows = dataset.rows_by_file()
    wrong = [
        f"{file.uri} has {file.rows:,} rows by its footer, but {rows[file.uri]:,} can be read"
        for file in dataset.snapshot.files
        if rows[file.uri] != file.rows
    ]
    raise BadDataError(
        f"{found:,} rows can be read, but by the footers there are {dataset.snapshot.rows:,}",
        evidence="; ".join(wrong[:3]),
        action="write these partitions again",
    )


def _check_years(dataset: Dataset, ends: pl.DataFrame) -> None:
    """Check that every time lies in years that calendars can compute with."""
    column = dataset.snapshot.data.time or ""
    dtype = ends.schema["low"]
    unit = dtype.time_unit if isinstance(dtype, pl.Datetime) else "d"
    first, last = ((day - date(1970, 1, 1)).days * _PER_DAY[unit] for day in (FIRST_DAY, LAST_DAY))
    beyond = ~pl.col(column).to_physical().is_between(first, last)
    numbers = [value for value in ends.select(pl.all().to_physical()).row(0) if value is not None]
    if all(first <= value <= last for value in numbers):
        return
    files = dataset.files_with(beyond)
    raise BadDataError(
        f"data.time {column!r} holds times outside of the years {FIRST_DAY.year} to "
        f"{LAST_DAY.year}",
        evidence=f"the lowest and the highest are {_years(numbers, unit)}, in "
        + ", ".join(files[:3])
        + (f" and {len(files) - 3} more" if len(files) > 3 else ""),
        action="write null where the time is not known, not a placeholder date",
    )


def _years(numbers: list[int], unit: str) -> str:
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
    snapshot: Snapshot, cache: Path | None = None
) -> dict[str, list[tuple[date, int]]]:
    """Rows of each split per block of time, in time order, zero included; empty without a time."""
    if not snapshot.data.time:
        return {}
    dataset = Dataset(snapshot, cache)
    block = block_start(snapshot.data).alias("block")
    rows = dataset.scan().select(block, selected_split(snapshot).alias("split")).drop_nulls()
    counts = dataset.collect(rows.group_by("split", "block").len())
    found = {(split, day): rows for split, day, rows in counts.iter_rows()}
    days = sorted({day for _, day in found})
    return {
        split.value: [(day, found.get((split.value, day), 0)) for day in days] for split in Split
    }


def _moment(value: datetime | date | None) -> datetime | None:
    """A Date column's day as its midnight; moments with a zone in UTC, equal for every reader."""
    if value is None:
        return None
    if not isinstance(value, datetime):
        return datetime(value.year, value.month, value.day)
    return value.astimezone(UTC) if value.tzinfo else value


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
        advice.append("give more history or choose a shorter split.period")
    else:
        advice.append("give more rows, or check that the column takes many values")
    windows = [f"split.{name}" for name in ("train_days", "test_days") if getattr(split, name)]
    if windows:
        advice.append(f"raise {' or '.join(windows)}")
    return "; ".join(advice)
