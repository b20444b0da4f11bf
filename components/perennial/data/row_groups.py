"""Row groups: which rows of a split each holds, known before any is read, and reading one alone.

Partitions are immutable, so what is found out about one is kept in the object store, under the
digest of its bytes and that of the split's rule: a run looks at new partitions only.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import date
from functools import lru_cache, partial
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO, ClassVar, cast

import polars as pl
import pyarrow.parquet as pq
from pydantic import JsonValue

from perennial.clients.object_store import (
    LocalObjectStore,
    ObjectStore,
    StoredObject,
    open_store,
)
from perennial.contracts.artifact import Artifact
from perennial.contracts.data import Split
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import BadDataError
from perennial.contracts.section import Section, digest_of
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import (
    SPLIT_COLUMN,
    Dataset,
    locate,
    scan_files,
    selected_split,
    window_start,
)
from perennial.data.executor import open_executor
from perennial.data.parquet_files import decodable, readable

logger = logging.getLogger(__name__)
_ROWS_OF_PROCESS = 500_000  # fewer take less time than a process to start
_READERS = 8  # partitions looked at together: reading waits for the store, hashing for a core
_CHUNK = 1 << 22
_DAY = "__day__"
_TAIL = 8  # bytes: the length of the footer, and PAR1
_KNOWN_SOURCES = 256  # partitions whose version and footer a reader remembers


class RowGroup(Section):
    """A row group of a partition, and the rows of each split in it."""

    start: int
    """Number of its first row in the partition."""
    rows: int
    """Rows of all splits."""
    first_byte: int
    """Offset of its pages in the file."""
    last_byte: int
    """Offset behind its pages."""
    sha256: str
    """Digest of its pages."""
    counts: dict[Split, dict[str, int]]
    """Split → calendar day → rows; the day is empty where it is null or no window is set."""


class PartitionIndex(Artifact):
    """The row groups of one partition under one rule of splitting; one object in the store."""

    file_name: ClassVar[str] = "row_groups.json"

    groups: tuple[RowGroup, ...]


@dataclass(frozen=True)
class SelectedGroup:
    """A row group with the rows that one split selects in it.

    Attributes:
        file: Position of its partition in the snapshot.
        index: Its number in the partition.
        group: Where it lies.
        selected: Rows of the split.
    """

    file: int
    index: int
    group: RowGroup
    selected: int


def select_groups(
    snapshot: Snapshot, indexes: Sequence[PartitionIndex], split: Split
) -> list[SelectedGroup]:
    """Return every row group with the number of rows that a split selects, in file order.

    Raises:
        BadDataError: they are not as many as the snapshot counted.
    """
    first = _first_day(snapshot, split)
    found = [
        SelectedGroup(number, index, group, _selected(group, split, first))
        for number, each in enumerate(indexes)
        for index, group in enumerate(each.groups)
    ]
    rows, expected = sum(each.selected for each in found), snapshot.split_rows[split]
    if rows != expected:
        raise BadDataError(
            f"the {split} split does not have the rows that the snapshot counted",
            evidence=f"expected {expected:,}, found {rows:,}",
            action="take a new snapshot; partitions of the data set must never be rewritten",
        )
    return found


def _selected(group: RowGroup, split: Split, first: date | None) -> int:
    days = group.counts.get(split, {})
    return sum(
        n for day, n in days.items() if first is None or (day and date.fromisoformat(day) >= first)
    )


def _first_day(snapshot: Snapshot, split: Split) -> date | None:
    """Return the first day of the split's window; None without a window."""
    rule = snapshot.split
    days = rule.test_days if split is Split.TEST else rule.train_days
    if days is None or not snapshot.data.time or snapshot.time_max is None:
        return None
    return cast("date", pl.select(window_start(snapshot, days)).item())


def index_partitions(snapshot: Snapshot, store: ObjectStore) -> list[PartitionIndex]:
    """Return what is known of each partition; partitions that are new to the store are read once.

    Raises:
        BadDataError: a partition is gone, damaged, or not the file that the snapshot pinned.
    """
    prefix = index_prefix(snapshot)
    keys = [f"{prefix}{file.sha256}.json" for file in snapshot.files]
    with ThreadPoolExecutor(_READERS, "row-groups") as readers:
        found = list(readers.map(partial(_stored_index, store), keys))
    new = [place for place, each in enumerate(found) if each is None]
    for place, index in _index_new(snapshot, store, new):
        found[place] = index
    return [each for each in found if each is not None]


def _index_new(
    snapshot: Snapshot, store: ObjectStore, places: Sequence[int]
) -> Iterator[tuple[int, PartitionIndex]]:
    """Yield the places in the snapshot of new partitions with their indexes.

    Large ones are indexed in processes.
    """
    if not places:
        return
    rows = sum(snapshot.files[place].rows for place in places)
    count = min(len(places), rows // _ROWS_OF_PROCESS + 1)
    parts = [places[start::count] for start in range(count)]
    files = [[snapshot.files[place] for place in part] for part in parts]
    index = partial(_index_batch, snapshot.model_copy(update={"files": ()}), store.uri)
    with open_executor(count) as executor:
        for part, found in zip(parts, executor.map(index, files), strict=True):
            yield from zip(part, found, strict=True)


def _index_batch(
    snapshot: Snapshot, store_uri: str, files: Sequence[DataFile]
) -> list[PartitionIndex]:
    """Index partitions, and store what was found."""
    store, prefix, cache = open_store(store_uri), index_prefix(snapshot), data_cache()
    cache.mkdir(parents=True, exist_ok=True)

    def index(file: DataFile) -> PartitionIndex:
        # Verified as a whole, once; the copy of a remote one is not kept.
        with TemporaryDirectory(dir=cache) as folder:
            found = _index(snapshot, file, Dataset(snapshot, Path(folder)).fetch(file))
        # Without a condition: whoever indexes this partition at the same time writes equal bytes.
        store.write(f"{prefix}{file.sha256}.json", found.to_json().encode())
        return found

    with ThreadPoolExecutor(_READERS, "row-groups") as readers:
        return list(readers.map(index, files))


def _stored_index(store: ObjectStore, key: str) -> PartitionIndex | None:
    """Read an index; one that is missing, damaged or of another version is None: made again."""
    content = store.read(key)
    try:
        return None if content is None else PartitionIndex.from_json(content)
    except ValueError as error:
        logger.warning("index=%s/%s cannot be read and is made again: %s", store.uri, key, error)
        return None


def index_prefix(snapshot: Snapshot) -> str:
    """Return the prefix of the indexes of a dataset's partitions under its rule of splitting.

    It is named by what decides the split of a row, without the windows, which select whole days.
    """
    data, rule = snapshot.data, snapshot.split
    needed = {data.label, *([data.time] if data.time else [])}
    settings: dict[str, JsonValue] = {
        "split": rule.model_copy(update={"train_days": None, "test_days": None}).to_json(),
        "columns": {name: snapshot.columns.get(name) for name in sorted(needed)},
        "roles": [data.label, data.time, data.group, list(data.ids)],
        "has_windows": _has_windows(snapshot),
    }
    return f"row-groups/{digest_of(settings)[:16]}/"


def _has_windows(snapshot: Snapshot) -> bool:
    rule = snapshot.split
    return bool(snapshot.data.time) and (rule.train_days or rule.test_days) is not None


def _index(snapshot: Snapshot, file: DataFile, path: Path) -> PartitionIndex:
    with readable(file.uri), path.open("rb") as stream:
        ranges = _byte_ranges(pq.read_metadata(stream))
        digests = [_digest(stream, first, last) for _, first, last in ranges]
    rows = [rows for rows, _, _ in ranges]
    counts = _counts(snapshot, path, file, rows)
    return PartitionIndex(
        groups=tuple(
            RowGroup(
                start=sum(rows[:index]),
                rows=rows[index],
                first_byte=first,
                last_byte=last,
                sha256=digests[index],
                counts=counts[index],
            )
            for index, (_, first, last) in enumerate(ranges)
        )
    )


def _byte_ranges(metadata: pq.FileMetaData) -> list[tuple[int, int, int]]:
    """Return each row group's rows, its first byte and the byte after its last."""
    found = []
    for index in range(metadata.num_row_groups):
        group = metadata.row_group(index)
        columns = [group.column(each) for each in range(group.num_columns)]
        # The dictionary page, where a column has one, lies before its data pages.
        firsts = [
            min(each.data_page_offset, each.dictionary_page_offset or each.data_page_offset)
            for each in columns
        ]
        lasts = [
            first + each.total_compressed_size for first, each in zip(firsts, columns, strict=True)
        ]
        found.append((group.num_rows, min(firsts), max(lasts)))
    return found


def _digest(stream: BinaryIO, first: int, last: int) -> str:
    found = hashlib.sha256()
    stream.seek(first)
    while first < last:
        chunk = stream.read(min(_CHUNK, last - first))
        if not chunk:
            break
        found.update(chunk)
        first += len(chunk)
    return found.hexdigest()


def _counts(
    snapshot: Snapshot, path: Path, file: DataFile, group_rows: Sequence[int]
) -> list[dict[Split, dict[str, int]]]:
    """Count the rows of each split per row group; reads only what the rule needs."""
    rule = snapshot.split.model_copy(update={"train_days": None, "test_days": None})
    split = selected_split(snapshot.model_copy(update={"split": rule})).alias(SPLIT_COLUMN)
    day = pl.lit("")
    if _has_windows(snapshot):
        day = pl.col(snapshot.data.time or "").dt.date().cast(pl.String).fill_null("")
    query = scan_files([path]).select(split, day.alias(_DAY))
    found: list[dict[Split, dict[str, int]]] = []
    start = 0
    with decodable(file.uri):
        for rows in group_rows:
            frame = query.slice(start, rows).drop_nulls(SPLIT_COLUMN)
            counts: dict[Split, dict[str, int]] = {}
            for name, of_day, n in frame.group_by(SPLIT_COLUMN, _DAY).len().collect().iter_rows():
                counts.setdefault(Split(name), {})[of_day] = n
            found.append(counts)
            start += rows
    return found


class RowGroupReader:
    """Reads single row groups of a snapshot, each verified by its digest."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        # Copies of a remote store's row groups lie there while they are decoded.
        self._cache = data_cache()
        self._cache.mkdir(parents=True, exist_ok=True)
        # For each reader: a cache on the method would keep all readers in memory.
        self._source = lru_cache(_KNOWN_SOURCES)(self._find_source)

    def read(self, groups: Sequence[SelectedGroup], split: Split) -> Iterator[pl.DataFrame]:
        """Yield the rows of a split in these row groups, all columns, in file order.

        Neighbours in one partition come together.

        Raises:
            BadDataError: a row group is damaged, rewritten or cannot be decoded.
        """
        for run in _neighbours([each for each in groups if each.selected]):
            file, expected = self.snapshot.files[run[0].file], sum(each.selected for each in run)
            with decodable(file.uri), self._place_for(file) as folder:
                found = self._query(run, split, Path(folder)).collect()
            if found.height != expected:
                raise _changed(
                    file,
                    f"row groups {run[0].index} to {run[-1].index} hold {found.height:,} rows of "
                    f"the {split} split instead of {expected:,}",
                )
            yield found

    def scan(self, groups: Sequence[SelectedGroup], split: Split, folder: Path) -> pl.LazyFrame:
        """Return a query of the rows of a split in these row groups, which are in file order.

        Copies of a remote store's row groups are written to the folder.
        """
        return pl.concat(self._query(run, split, folder) for run in _neighbours(groups))

    def _place_for(self, file: DataFile) -> AbstractContextManager[str]:
        """Return a folder for copies of a partition's row groups; a local one is read in place."""
        is_local = isinstance(open_store(locate(self.snapshot, file)[0]), LocalObjectStore)
        return nullcontext("") if is_local else TemporaryDirectory(dir=self._cache)

    def _query(self, run: Sequence[SelectedGroup], split: Split, folder: Path) -> pl.LazyFrame:
        rows = sum(each.group.rows for each in run)
        frame = scan_files([self._fetched(run, folder)]).select(list(self.snapshot.columns))
        is_selected = selected_split(self.snapshot) == split.value
        return frame.slice(run[0].group.start, rows).filter(is_selected)

    def _fetched(self, run: Sequence[SelectedGroup], folder: Path) -> Path:
        """Return a local file that holds these row groups, with the bytes that were indexed.

        Of a remote partition it has these bytes and the footer alone, at their places.
        """
        file = self.snapshot.files[run[0].file]
        source = self._source(run[0].file)
        is_local = isinstance(source.store, LocalObjectStore)
        path = Path(source.store.uri) / source.item.key
        if not is_local:
            path = folder / f"{run[0].file}-{run[0].index}.parquet"
        with readable(file.uri), nullcontext() if is_local else path.open("wb") as copy:
            if copy is not None:
                # At full length, because the footer holds offsets from the beginning of the file.
                copy.truncate(file.size_bytes)
                copy.seek(file.size_bytes - len(source.footer))
                copy.write(source.footer)
            for each in run:
                group = each.group
                content = source.read(group.first_byte, group.last_byte)
                if hashlib.sha256(content).hexdigest() != group.sha256:
                    raise _changed(
                        file,
                        f"row group {each.index}, bytes {group.first_byte:,} to "
                        f"{group.last_byte:,}, has another SHA-256 than when it was indexed",
                    )
                if copy is not None:
                    copy.seek(group.first_byte)
                    copy.write(content)
        return path

    def _find_source(self, number: int) -> "_Source":
        file = self.snapshot.files[number]
        place, key = locate(self.snapshot, file)
        store = open_store(place)
        item = store.find(key)
        if item.size_bytes != file.size_bytes:
            raise _changed(file, f"{file.size_bytes:,} bytes became {item.size_bytes:,}")
        if isinstance(store, LocalObjectStore):
            # Its row groups are verified by their digests; what lies around them does not matter.
            return _Source(store, StoredObject(key, item.size_bytes), b"")
        tail = store.read_range(item, file.size_bytes - _TAIL, file.size_bytes)
        length = int.from_bytes(tail[:4], "little") + _TAIL
        start = max(file.size_bytes - length, 0)
        return _Source(store, item, store.read_range(item, start, file.size_bytes))


@dataclass(frozen=True)
class _Source:
    """One version of a partition in its store, and its footer where it is remote."""

    store: ObjectStore
    item: StoredObject
    footer: bytes

    def read(self, start: int, stop: int) -> bytes:
        return self.store.read_range(self.item, start, stop)


def _neighbours(groups: Sequence[SelectedGroup]) -> list[list[SelectedGroup]]:
    """Runs of row groups that follow each other in one partition."""
    numbered = enumerate(groups)
    # In a run, the number of a row group less its place in the list is constant.
    runs = groupby(numbered, lambda found: (found[1].file, found[1].index - found[0]))
    return [[each for _, each in run] for _, run in runs]


def _changed(file: DataFile, evidence: str) -> BadDataError:
    return BadDataError(
        f"{file.uri} changed after the snapshot was taken, or is damaged",
        evidence=evidence,
        action="put the original file back: partitions of the dataset are written once; "
        "corrections go into a new partition",
    )
