"""Dataset: streams the rows of a snapshot, split by split, verified against its pinned digests."""

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import cast

import numpy as np
import polars as pl

from perennial.clients.object_store import (
    LocalObjectStore,
    StoredObject,
    copy_of,
    open_store,
    sha256_of_file,
)
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import DataFile, Snapshot, as_utc
from perennial.data.parquet_files import LIBRARY_ERRORS, decodable
from perennial.data.verified_files import is_verified, record_verified

SPLIT_COLUMN = "__split__"
FILE_COLUMN = "__partition_file__"
_PERIODS = {"week": "1w", "month": "1mo", "quarter": "1q", "year": "1y"}
# Values of these columns take kilobytes each: 2,048 pictures of 100 kB are 0.2 GB.
_WIDE_TYPES = ("Binary", "List", "Array")
_WIDE_ROWS = 2_048
# Reading waits for the store more than it computes; boto3 pools ten connections by default.
_FETCHING_THREADS = 8
ZONE = re.compile(r"time_zone='([^']+)'")


class Dataset:
    """The rows of a snapshot.

    Nothing is opened before rows are asked for. Whatever reads rows raises BadDataError if a file
    is gone or is not the one that the snapshot pinned.
    """

    def __init__(self, snapshot: Snapshot, cache: Path | None = None) -> None:
        self.snapshot = snapshot
        self._cache = cache or data_cache()
        self._store = functools.cache(open_store)
        self._paths: dict[int, Path] = {}
        self._stamps: dict[Path, tuple[int, int, int]] = {}

    def scan(
        self,
        split: Split | None = None,
        *,
        with_file: bool = False,
        files: Sequence[int] | None = None,
    ) -> pl.LazyFrame:
        """Return a query of all columns of one split, or of every row, in file order.

        Only partitions that may hold such rows are fetched; with `files`, only those in these
        places of the snapshot are read. `with_file` adds the position of each row's file in the
        snapshot, as `FILE_COLUMN`.
        """
        columns, every = list(self.snapshot.columns), range(len(self.snapshot.files))
        wanted = set(every if split is None else self.snapshot.files_of(split))
        wanted &= set(every if files is None else files)
        # Without any, the query of no rows still needs a file to have columns.
        paths = self._fetch_at(sorted(wanted) or [0])
        if with_file:
            names = {str(path): place for place, path in paths.items()}
            position = pl.col(FILE_COLUMN).replace_strict(names, return_dtype=pl.Int64)
            frame = scan_files([*paths.values()], FILE_COLUMN).select(*columns, position)
        else:
            frame = scan_files([*paths.values()]).select(columns)
        if not wanted:
            frame = frame.clear()
        if split is None:
            return frame
        return frame.filter(selected_split(self.snapshot) == split.value)

    def schema(self) -> pl.Schema:
        """Return the columns' types, which all partitions have, from the newest alone."""
        return self.scan(files=[len(self.snapshot.files) - 1]).collect_schema()

    def collect(self, query: pl.LazyFrame) -> pl.DataFrame:
        """The result of a query on `scan`, computed without holding the dataset in memory."""
        with self._decoded():
            found = query.collect(engine="streaming")
        self._check_unchanged()
        return found

    def batches(
        self,
        split: Split,
        rows: int,
        *,
        together: int = 1,
        part: slice | None = None,
        columns: list[str] | None = None,
    ) -> Iterator[pl.DataFrame]:
        """The rows of one split in file order, `batch_rows` at a time, the last with what is left.

        `together` neighbours stay in one batch; `part` selects rows from start to stop. Only the
        named columns are read, if any are named.
        """
        frame = self.scan(split)
        if columns is not None:
            frame = frame.select(columns)
        if part is not None:
            frame = frame.slice(part.start, part.stop - part.start)
        yield from self._stream(frame, self.batch_rows(rows, together))

    def batch_rows(self, rows: int, together: int = 1) -> int:
        """Return the rows of a batch: `rows`, or fewer where each may take kilobytes."""
        types = self.snapshot.columns.values()
        if self.snapshot.data.text or any(each.startswith(_WIDE_TYPES) for each in types):
            rows = min(rows, _WIDE_ROWS)
        return max(rows // together, 1) * together

    def count(self, split: Split) -> int:
        """The number of rows of one split."""
        return int(self.collect(self.scan(split).select(pl.len())).item())

    def count_by_file(self, split: Split) -> list[int]:
        """The number of rows of one split in each file, in the order of the snapshot."""
        rows = self.scan(split, with_file=True).group_by(FILE_COLUMN).len()
        counts = dict(self.collect(rows).iter_rows())
        return [counts.get(place, 0) for place in range(len(self.snapshot.files))]

    def labelled_batches(self, rows: int, *, with_file: bool = False) -> Iterator[pl.DataFrame]:
        """Every row in file order, with its split's name, or null for none, in `SPLIT_COLUMN`."""
        split = selected_split(self.snapshot).alias(SPLIT_COLUMN)
        frame = self.scan(with_file=with_file).with_columns(split)
        yield from self._stream(frame, self.batch_rows(rows))

    def column_batches(self, columns: list[str], rows: int) -> Iterator[pl.DataFrame]:
        """Some columns of every row, labelled or not, in file order."""
        yield from self._stream(self.scan().select(columns), self.batch_rows(rows))

    def _stream(self, frame: pl.LazyFrame, rows: int) -> Iterator[pl.DataFrame]:
        batches = frame.collect_batches(chunk_size=rows, maintain_order=True)
        while True:
            with self._decoded():
                batch = next(batches, None)
            if batch is None:
                break
            for start in range(0, batch.height, rows):
                yield batch.slice(start, rows)
        self._check_unchanged()

    @contextmanager
    def _decoded(self) -> Iterator[None]:
        """Explain what polars raises; files that were replaced meanwhile come first."""
        try:
            yield
        except LIBRARY_ERRORS as error:
            self._check_unchanged()
            # One file after the other, to name the one that is damaged.
            for place, path in self._paths.items():
                with decodable(self.snapshot.files[place].uri):
                    scan_files([path]).collect(engine="streaming")
            raise BadDataError(
                "the partitions cannot be read together", evidence=str(error)
            ) from error

    def _check_unchanged(self) -> None:
        for place, path in self._paths.items():
            if self._stamps[path] != _stamp(path):
                raise BadDataError(
                    f"{self.snapshot.files[place].uri} changed while it was read",
                    evidence="its size or its time of change is another than at the start",
                    action="write partitions once; corrections go into a new partition",
                )

    def fetch_all(self) -> None:
        """Fetch and verify every file."""
        self._fetch_at(range(len(self.snapshot.files)))

    def _fetch_at(self, places: Sequence[int]) -> dict[int, Path]:
        """Return the local files in these places of the snapshot, which are fetched once."""
        missing = [place for place in places if place not in self._paths]
        with ThreadPoolExecutor(_FETCHING_THREADS) as pool:
            found = pool.map(self.fetch, [self.snapshot.files[place] for place in missing])
            self._paths.update(zip(missing, found, strict=True))
        return {place: self._paths[place] for place in places}

    def fetch(self, file: DataFile) -> Path:
        """A local file with the content that the snapshot pinned.

        Raises:
            BadDataError: the file is gone, or has another content now.
        """
        path = self._fetched(file)
        self._stamps[path] = _stamp(path)
        return path

    def _fetched(self, file: DataFile) -> Path:
        root, key = locate(self.snapshot, file)
        store = self._store(root)
        item = StoredObject(key, file.size_bytes)
        copy = copy_of(file.uri, file.sha256, self._cache)
        here = store.root / key if isinstance(store, LocalObjectStore) else copy
        if is_verified(here, file.sha256, self._cache):
            return here
        if here == copy and here.is_file() and sha256_of_file(here) == file.sha256:
            record_verified(here, file.sha256, self._cache)
            return here
        try:
            path, found = store.fetch_pinned(item, self._cache, file.sha256)
        except BadDataError:
            if store.find(key).size_bytes == file.size_bytes:
                raise
            # It has another size now, which is the error to report.
            found = ""
        if found != file.sha256:
            now = store.find(key)
            raise BadDataError(
                f"{file.uri} changed after the snapshot was taken",
                evidence=f"expected {file.size_bytes:,} bytes with SHA-256 {file.sha256[:12]}…; "
                f"there are {now.size_bytes:,} bytes now, version {now.version or 'unknown'}",
                action="put the original file back: partitions of the dataset are written once; "
                "corrections go into a new partition",
            )
        record_verified(path, found, self._cache)
        return path


def locate(snapshot: Snapshot, file: DataFile) -> tuple[str, str]:
    """Return the store of a partition, and its key there."""
    root = snapshot.data.uri.rstrip("/")
    key = file.uri.removeprefix(f"{root}/")
    if key == file.uri:  # a snapshot of a place that has moved since
        root, _, key = file.uri.rpartition("/")
    return root, key


def scan_files(paths: list[Path], file_column: str | None = None) -> pl.LazyFrame:
    """The rows of files; their names are not patterns and add only the column asked for."""
    return pl.scan_parquet(
        paths,
        glob=False,
        hive_partitioning=False,
        missing_columns="raise",
        extra_columns="ignore",
        include_file_paths=file_column,
    )


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        info = path.stat()
    except OSError:
        return (0, 0, 0)
    return (info.st_ino, info.st_size, info.st_mtime_ns)


def selected_split(snapshot: Snapshot) -> pl.Expr:
    """The split's name for each row that is used: it has a label and lies within the window.

    `train_days` and `test_days` select whole days, the newest first, so that no day is cut.
    """
    data = snapshot.data
    name = split_expression(data, snapshot.split)
    used = has_label(data, snapshot.columns)
    if data.time:
        used &= within_window(name, pl.col(data.time).dt.date(), snapshot)
    return pl.when(used).then(name)


def count_seen_rows(dataset: Dataset, then: Snapshot) -> int | None:
    """Return how many test rows of a dataset were training or validation rows of a snapshot.

    The columns of its split rule count as of the type that they had. None if the rule cannot be
    applied: a column that it needs is gone.
    """
    data = then.data
    needed = {data.label, *(name for name in (data.time, data.group) if name), *data.ids}
    if needed - set(dataset.snapshot.columns):
        return None
    seen = selected_split(then).is_in([Split.TRAIN.value, Split.VALIDATION.value])
    if data.time and then.time_max is not None:
        seen &= pl.col(data.time).dt.epoch("us") <= pl.lit(then.time_max).dt.epoch("us")
    now = dataset.snapshot.columns
    before = [_as_before(name, now[name], then.columns.get(name, now[name])) for name in needed]
    rows = dataset.scan(Split.TEST).with_columns(before)
    return int(rows.select(seen.sum()).collect().item())


def _as_before(name: str, now: str, then: str) -> pl.Expr:
    """Return a column as it was when it had another type: of times, the moments in its zone."""
    column, zone = pl.col(name), ZONE.search(then)
    if now == then:
        return column
    if then.startswith("Datetime"):
        moment = column.cast(pl.Datetime("us")) if now == "Date" else column
        if not ZONE.search(now):
            moment = moment.dt.replace_time_zone("UTC")
        known = moment.dt.convert_time_zone(zone[1] if zone else "UTC")
        return known if zone else known.dt.replace_time_zone(None)
    kind = getattr(pl, then, pl.String)  # a type with parameters is read as text
    return column.cast(kind, strict=False)


def within_window(name: pl.Expr, day: pl.Expr, snapshot: Snapshot) -> pl.Expr:
    """Whether a row is in the window of its split: `train_days` or `test_days` up to the newest.

    Days are in the time column's own zone; a snapshot without a newest time has every row in them.
    """
    used = pl.lit(True)
    if snapshot.time_max is not None:
        for days, is_inside in (
            (snapshot.split.train_days, name != Split.TEST.value),
            (snapshot.split.test_days, name == Split.TEST.value),
        ):
            if days is not None:
                used &= ~is_inside | (day >= window_start(snapshot, days))
    return used


def window_start(snapshot: Snapshot, days: int) -> pl.Expr:
    """The first of the newest `days` days; the snapshot has a newest moment."""
    newest = pl.lit(as_utc(cast("datetime", snapshot.time_max)).replace(tzinfo=None))
    return _local_day(newest, snapshot) - timedelta(days=days - 1)


def has_label(data: DataSection, columns: Mapping[str, str]) -> pl.Expr:
    """Whether each row has a label; rows without one are in no split."""
    label = pl.col(data.label)
    is_float = columns.get(data.label, "").startswith("Float")
    return label.is_not_null() & label.is_not_nan() if is_float else label.is_not_null()


def split_expression(data: DataSection, split: SplitSection) -> pl.Expr:
    """The split's name for each row, from the row alone: growing data moves no row.

    Under `time` calendar days, in the column's own time zone, are never cut, so that blocks of
    time stay whole. Rows without the needed column value get null and belong to no split.

    Raises:
        BadDataError: the method needs a column role that the data section does not name.
    """
    method = split.resolved_method(data)
    if method == "time" and data.time:
        position = _position_in_period(data, split)
    elif method == "group" and data.group:
        position = _stable_uniform(pl.col(data.group), split.salt, repeats=True)
    elif method == "hash" and data.ids:
        # The separator keeps the ids ("a", "bc") and ("ab", "c") apart.
        key = pl.concat_str([pl.col(name).cast(pl.String) for name in data.ids], separator="\x1f")
        position = _stable_uniform(key, split.salt, repeats=False)
    else:
        raise _lacks_column(method)
    test_start = 1.0 - split.test_fraction
    # A hair below the boundary counts as on it: 21/28 must not depend on rounding.
    margin = 1e-9
    return (
        pl.when(position.is_null())
        .then(None)
        .when(position < test_start - split.validation_fraction - margin)
        .then(pl.lit(Split.TRAIN.value))
        .when(position < test_start - margin)
        .then(pl.lit(Split.VALIDATION.value))
        .otherwise(pl.lit(Split.TEST.value))
    )


def _position_in_period(data: DataSection, split: SplitSection) -> pl.Expr:
    """The share of its calendar period that passed before the day of each row."""
    # Dates, not times: a day of 23 hours at the start of summer time still counts as a day.
    day = pl.col(data.time or "").dt.date()
    if split.period == "week":
        return (day.dt.weekday().cast(pl.Float64) - 1) / 7
    if split.period == "month":  # forty times faster than by `period_start`
        return (day.dt.day().cast(pl.Float64) - 1) / day.dt.days_in_month()
    start = period_start(data, split)
    length = start.dt.offset_by(_PERIODS[split.period]) - start
    return (day - start).dt.total_days() / length.dt.total_days()


def period_start(data: DataSection, split: SplitSection) -> pl.Expr:
    """The first day of the calendar period that each row lies in, which `split.period` cuts."""
    return pl.col(data.time or "").dt.date().dt.truncate(_PERIODS[split.period])


def days_of_periods(starts: pl.Series, split: SplitSection) -> tuple[date, date]:
    """Return the first day of the first of these periods, and the last of the last."""
    end = starts.dt.offset_by(_PERIODS[split.period]).max()
    return cast("date", starts.min()), cast("date", end) - timedelta(days=1)


def block_start(data: DataSection) -> pl.Expr:
    """The first day of the block of time that each row lies in, on a grid that starts in 1970.

    The grid depends on nothing but `data.block_days`, so the blocks of two snapshots line up.
    """
    epoch = date(1970, 1, 1)
    day = (pl.col(data.time or "").dt.date() - epoch).dt.total_days()
    length = data.block_days
    return pl.lit(epoch) + pl.duration(days=day // length * length)


def block_key(data: DataSection) -> pl.Expr:
    """Each row's block: the first day of its block of time or, without a time, its file.

    Files are numbered as in the snapshot; `Dataset.scan` must have been asked for them.
    """
    return block_start(data) if data.time else pl.col(FILE_COLUMN)


def _lacks_column(method: str) -> BadDataError:
    role = {"time": "time", "group": "group", "hash": "ids"}[method]
    return BadDataError(
        f"split.method = {method!r} needs data.{role}",
        evidence=f"data.{role} is not set, so nothing stable tells one row's split",
        action=f"name the column{'s' if role == 'ids' else ''} under data.{role}, or data.time for "
        "a split by time",
    )


def _local_day(moment: pl.Expr, snapshot: Snapshot) -> pl.Expr:
    """The calendar day of a moment, given in UTC, in the time column's own zone."""
    zone = ZONE.search(snapshot.columns[snapshot.data.time or ""])
    if zone is None:
        return moment.dt.date()
    return moment.dt.replace_time_zone("UTC").dt.convert_time_zone(zone[1]).dt.date()


def _stable_uniform(key: pl.Expr, salt: str, *, repeats: bool) -> pl.Expr:
    """A number in [0, 1) from each key; unlike polars' own hash, the same in every version.

    Where keys are expected to repeat, each is hashed once.
    """
    # The salt is hashed once; each key continues from a copy of that state.
    salted = hashlib.blake2b(f"{salt}\x1f".encode(), digest_size=8)

    def digest(value: bytes) -> bytes:
        found = salted.copy()
        found.update(value)
        return found.digest()

    def uniform(keys: pl.Series) -> pl.Series:
        is_direct = not repeats and not keys.null_count()
        hashed = keys if is_direct else keys.drop_nulls().unique()
        digests = b"".join(map(digest, hashed.cast(pl.Binary).to_list()))
        numbers = pl.Series(np.frombuffer(digests, ">u8").astype(np.float64) / 2.0**64)
        if is_direct:
            return numbers.alias(keys.name)
        # Without a key polars replaces nothing, the type included.
        return keys.replace_strict(hashed, numbers, return_dtype=pl.Float64).cast(pl.Float64)

    return key.cast(pl.String).map_batches(uniform, pl.Float64, is_elementwise=True)
