"""Take a snapshot: list the partitions, pin their bytes and check that they are one table."""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cache as cached
from pathlib import Path
from typing import NamedTuple

import polars as pl

from perennial.clients.object_store import ConflictError, ObjectStore, open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.parquet_files import Partition
from perennial.data.partition_index import (
    INDEX,
    index_key,
    known_entries,
    listed_table,
    read_index,
    update_index,
)
from perennial.data.partitions import Listing, find_partitions, refuse_hidden_parquet
from perennial.data.splits import SUMMARY, check_splits, with_split_rows
from perennial.snapshot_data.pinning import pin_all
from perennial.snapshot_data.roles import check_roles, nearest, suggestion

logger = logging.getLogger(__name__)


def common_columns(partitions: Sequence[Partition]) -> dict[str, str]:
    """Return the columns that every partition has, in the order of the first.

    Raises:
        BadDataError: a partition differs from most; each difference is listed.
    """
    # Judged against the majority: a bad first partition must not blame all the others. Of two
    # partitions, the larger one is right: what is appended is mostly small.
    counts, rows = Counter[frozenset[tuple[str, str]]](), Counter[frozenset[tuple[str, str]]]()
    for partition in partitions:
        counts[frozenset(partition.columns.items())] += 1
        rows[frozenset(partition.columns.items())] += partition.file.rows
    usual = max(counts, key=lambda columns: (counts[columns], rows[columns]))
    expected = next(dict(part.columns) for part in partitions if set(part.columns.items()) == usual)
    problems = [text for partition in partitions for text in _differences(expected, partition)]
    if problems:
        raise BadDataError(
            f"{len(partitions) - counts[usual]} of {len(partitions)} partitions do not have the "
            "columns of the others",
            evidence="; ".join(problems[:10]) + ("; …" if len(problems) > 10 else ""),
            action="write these partitions again with the usual columns; to change the columns "
            "permanently, write the whole dataset under a new data.uri",
        )
    return expected


def _differences(expected: Mapping[str, str], partition: Partition) -> Iterator[str]:
    found = partition.columns
    extra = [name for name in found if name not in expected]
    for name, dtype in expected.items():
        if name not in found:
            yield (
                f"{partition.file.uri} lacks column {name!r} ({dtype})"
                f"{suggestion(name, extra, 'it has')}"
            )
        elif found[name] != dtype:
            yield f"{partition.file.uri} has {name!r} as {found[name]}, expected {dtype}"
    renamed = {match for name in set(expected) - set(found) for match in nearest(name, extra)}
    for name in extra:
        if name not in renamed:
            yield f"{partition.file.uri} has the unexpected column {name!r} ({found[name]})"


class TakenSnapshot(NamedTuple):
    """A snapshot, and what was learned on the way."""

    snapshot: Snapshot
    summaries: pl.DataFrame
    """`RowSummary` of each partition, in order."""
    opened: int
    """Partitions that were read; the others were known."""


def take_snapshot(
    data: DataSection,
    split: SplitSection,
    cache: Path | None = None,
    listing: Listing | None = None,
    index_store: ObjectStore | None = None,
) -> Snapshot:
    """Pin what the dataset holds now, as `take_indexed_snapshot`."""
    return take_indexed_snapshot(data, split, cache, listing, index_store).snapshot


def take_indexed_snapshot(
    data: DataSection,
    split: SplitSection,
    cache: Path | None = None,
    listing: Listing | None = None,
    index_store: ObjectStore | None = None,
) -> TakenSnapshot:
    """Pin what the dataset holds now, and read only partitions that are new.

    `listing` are the dataset's files, if they have been listed. `index_store` keeps the index of
    known partitions; without one, every partition is read.

    Raises:
        BadDataError: the dataset cannot be trained on; the message names partition and column.
    """
    store = open_store(data.uri)
    found = (listing or list_partitions(store)).partitions
    listed, key = listed_table(found), index_key(data, split)
    index = read_index(index_store, key) if index_store else pl.DataFrame(schema=INDEX)
    known = known_entries(index, listed)
    opened = set(listed["key"]) - set(known["key"])
    pinned = pin_all(data, split, [each for each in found if each.key in opened], cache)
    entries = pl.concat([known, pinned]).sort("key")
    if index_store:
        # Not kept: objects that a later write may leave with this version, and those whose columns
        # did not fit the contract, so that they have no summary.
        kept = {each.key for each in found if store.keeps_version(each)}
        lasting = pl.col("key").is_in(kept) & pl.col("rows_read").is_not_null()
        update_index(index_store, key, entries.filter(lasting), listed, index)
    partitions = [*_partitions(store.uri, entries)]
    _refuse_copies(data, partitions)
    columns = common_columns(partitions)
    check_roles(data, split, columns)
    snapshot = Snapshot(
        data=data,
        split=split,
        files=tuple(partition.file for partition in partitions),
        # By name, as they come back from JSON: the order of columns must not depend on who reads.
        columns=dict(sorted(columns.items())),
        rows=int(entries["rows"].sum()),
        split_rows={},
    )
    summaries = entries.select(*SUMMARY)
    counted = with_split_rows(snapshot, summaries)
    check_splits(counted)
    return TakenSnapshot(counted, summaries, len(opened))


def _partitions(uri: str, entries: pl.DataFrame) -> Iterator[Partition]:
    columns_of = cached(json.loads)  # partitions have equal columns
    for each in entries.select("key", "size_bytes", "sha256", "rows", "columns").iter_rows():
        key, size, sha256, rows, columns = each
        file = DataFile(uri=f"{uri}/{key}", size_bytes=size, sha256=sha256, rows=rows)
        yield Partition(file, columns_of(columns))


def _refuse_copies(data: DataSection, partitions: Sequence[Partition]) -> None:
    """Refuse partitions of equal bytes, whose rows count twice; rows without time and id may."""
    first: dict[str, DataFile] = {}
    for file in (partition.file for partition in partitions):
        known = first.setdefault(file.sha256, file)
        if known is file:
            continue
        if not (data.ids or data.time):
            logger.warning("partition=%s has the bytes of %s", file.uri, known.uri)
            continue
        raise BadDataError(
            f"two partitions of {data.uri} hold the same bytes, so that their rows count twice",
            evidence=f"{known.uri} and {file.uri}, SHA-256 {file.sha256[:12]}…",
            action="remove one of them",
        )


def list_partitions(store: ObjectStore) -> Listing:
    """Return the dataset's files in order of their keys, and what else lies there, which is logged.

    Raises:
        BadDataError: there is none, or something else may hold rows that would be lost.
    """
    listing = find_partitions(store)
    for line in listing.ignored_lines():
        logger.info("dataset=%s %s", store.uri, line)
    if not listing.partitions:
        raise BadDataError(
            f"data.uri {store.uri} holds no partitions",
            evidence=f"no *.parquet among {listing.num_ignored} files there: "
            + "; ".join(listing.ignored_lines())
            if listing.ignored
            else "the folder does not exist or is empty",
            action="check data.uri, and that the data has been written",
        )
    refuse_hidden_parquet(store, listing)
    return listing


def store_snapshot(snapshot: Snapshot, store: ObjectStore) -> str:
    """Store the snapshot permanently under its digest; storing it again changes nothing.

    Returns:
        The key.

    Raises:
        BadDataError: another value lies there under this digest.
    """
    digest = snapshot.digest()
    key = f"snapshots/{digest}/{Snapshot.file_name}"
    try:
        store.replace(key, snapshot.to_json().encode(), previous=None)
    except ConflictError as error:
        stored = store.read(key)
        # A copy of the dataset elsewhere has the same digest: the first one stays stored.
        if stored is None or Snapshot.from_json(stored).digest() != digest:
            raise BadDataError(
                f"{store.uri}/{key} does not match its name",
                action="find out who wrote there; snapshots are never changed",
            ) from error
    return key
