"""Take a snapshot: list the partitions, pin their bytes and check that they are one table."""

import difflib
import json
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perennial.clients.object_store import ConflictError, ObjectStore, StoredObject, open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.parquet_files import Partition, read_partition, readable
from perennial.data.partitions import Listing, find_partitions, refuse_hidden_parquet
from perennial.data.splits import check_splits, with_split_rows

logger = logging.getLogger(__name__)

_TIME_TYPES = ("Datetime", "Date")
# Keys are hashed as texts, which these have none of.
_NO_KEYS = ("Map", "List", "Array", "Binary", "Duration", "Object")
_SHOWN_COLUMNS, _SHOWN_NAME = 50, 60
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def common_columns(partitions: Sequence[Partition]) -> dict[str, str]:
    """The columns that every partition has, in the order of the first; their order may differ.

    Raises:
        BadDataError: a partition differs from most; each difference is listed.
    """
    # Judged against the majority: a bad first partition must not blame all the others.
    counts = Counter(frozenset(partition.columns.items()) for partition in partitions)
    usual = counts.most_common(1)[0][0]
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


def check_roles(data: DataSection, split: SplitSection, columns: Mapping[str, str]) -> None:
    """Check that the contract's columns exist with a usable type."""
    problems = [*_missing_columns(data, columns)] or [*_type_problems(data, split, columns)]
    if problems:
        raise BadDataError(
            "the contract's [data] and [split] do not fit the dataset's columns",
            evidence="; ".join(problems),
            action=_correct_columns(data, columns),
        )


def _correct_columns(data: DataSection, columns: Mapping[str, str]) -> str:
    """Return the lines of [data] with the nearest columns, and the columns that there are."""
    lines = []
    for role, names in _named_columns(data):
        if role == "available_at" or all(name in columns for name in names):
            continue
        near = [([name] if name in columns else _nearest(name, columns)) for name in names]
        if not all(near):
            continue
        written = [each[0] for each in near]
        value = written[0] if role in ("label", "time", "group") else written
        lines.append(f"{role} = {json.dumps(value, ensure_ascii=False)}  # in [data]")
    known = f"the dataset has {_shown(columns)}"
    return f"write {' and '.join(lines)}; {known}" if lines else f"correct the contract; {known}"


def _shown(columns: Mapping[str, str]) -> str:
    names = [name[:_SHOWN_NAME] for name in columns]
    more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    return ", ".join(names[:_SHOWN_COLUMNS]) + more


def role_of(snapshot: Snapshot, column: str) -> str:
    """Return the role of a column, as shown to people."""
    data = snapshot.data
    if column in snapshot.task_columns.features:
        known_at = data.available_at.get(column)
        role = "feature, free text" if column in data.text else "feature"
        return f"{role}, known at {known_at}" if known_at else role
    roles = [role for role, names in _named_columns(data) if column in names]
    return ", ".join(roles) or "unused"


def _named_columns(data: DataSection) -> Iterator[tuple[str, Sequence[str]]]:
    yield "label", (data.label,)
    yield "time", (data.time,) if data.time else ()
    yield "group", (data.group,) if data.group else ()
    yield "ids", data.ids
    yield "meta", data.meta
    yield "features", data.features
    yield "text", data.text
    yield "available_at", (*data.available_at, *data.available_at.values())


def _differences(expected: Mapping[str, str], partition: Partition) -> Iterator[str]:
    found = partition.columns
    extra = [name for name in found if name not in expected]
    for name, dtype in expected.items():
        if name not in found:
            yield (
                f"{partition.file.uri} lacks column {name!r} ({dtype})"
                f"{_suggestion(name, extra, 'it has')}"
            )
        elif found[name] != dtype:
            yield f"{partition.file.uri} has {name!r} as {found[name]}, expected {dtype}"
    renamed = {match for name in set(expected) - set(found) for match in _nearest(name, extra)}
    for name in extra:
        if name not in renamed:
            yield f"{partition.file.uri} has the unexpected column {name!r} ({found[name]})"


def _missing_columns(data: DataSection, columns: Mapping[str, str]) -> Iterator[str]:
    for role, names in _named_columns(data):
        for name in names:
            if name not in columns:
                yield f"data.{role} names {name!r}{_suggestion(name, columns, 'did you mean')}"


def _type_problems(
    data: DataSection, split: SplitSection, columns: Mapping[str, str]
) -> Iterator[str]:
    if data.time and not columns[data.time].startswith(_TIME_TYPES):
        yield f"data.time {data.time!r} is {columns[data.time]}, expected Datetime or Date"
    for column in data.text:
        if columns[column] != "String":
            yield f"data.text {column!r} is {columns[column]}, expected String"
    for feature, column in data.available_at.items():
        if data.time and columns[column] != columns[data.time]:
            yield (
                f"data.available_at.{feature} {column!r} is {columns[column]} but data.time is "
                f"{columns[data.time]}: they cannot be compared"
            )
    if not Snapshot(
        data=data, split=split, files=(), columns=dict(columns), rows=0, split_rows={}
    ).task_columns.features:
        yield "no column is left as a feature"
    yield from _index_problems(data, columns)
    method = split.resolved_method(data)
    role = "ids" if method == "hash" else method
    names = dict(_named_columns(data))[role]
    for key in names if method != "time" else ():
        if columns[key].startswith(_NO_KEYS):
            yield f"split.method {method!r} cannot use {key!r}, which is {columns[key]}"
    if not names:
        yield f"split.method is {method!r} but data.{role} is not set"
    for window in ("train_days", "test_days"):
        if getattr(split, window) is not None and data.time is None:
            yield f"split.{window} is set but data.time is not"


def _index_problems(data: DataSection, columns: Mapping[str, str]) -> Iterator[str]:
    """An index that pandas wrote is the order of the rows, which must not be learned from."""
    named = {name for _, names in _named_columns(data) for name in names}
    for name in columns:
        if _PANDAS_INDEX.fullmatch(name) and name not in named and not data.features:
            yield (
                f"{name!r} is an index that pandas wrote and would be a feature: write the data "
                "with index=False, or name it under data.meta"
            )


def _suggestion(name: str, candidates: Iterable[str], words: str) -> str:
    return "".join(f", {words} {match!r}" for match in _nearest(name, candidates))


def _nearest(name: str, candidates: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)


# Pinning waits for the store more than it computes; boto3 pools ten connections by default.
_PINNING_THREADS = 8


def take_snapshot(
    data: DataSection,
    split: SplitSection,
    cache: Path | None = None,
    listing: Listing | None = None,
) -> Snapshot:
    """Pin what the dataset holds now.

    Raises:
        BadDataError: the dataset cannot be trained on; the message names partition and column.
    """
    store = open_store(data.uri)
    found = (listing or list_partitions(store)).partitions
    with ThreadPoolExecutor(_PINNING_THREADS) as pool:
        partitions = list(pool.map(lambda item: pin(store, item, cache or data_cache()), found))
    _refuse_copies(data, partitions)
    columns = common_columns(partitions)
    check_roles(data, split, columns)
    snapshot = Snapshot(
        data=data,
        split=split,
        files=tuple(partition.file for partition in partitions),
        # By name, as they come back from JSON: the order of columns must not depend on who reads.
        columns=dict(sorted(columns.items())),
        rows=sum(partition.file.rows for partition in partitions),
        split_rows={},
    )
    counted = with_split_rows(snapshot, cache)
    check_splits(counted)
    return counted


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
    """The dataset's files in order of their keys, and what else lies there, which is logged.

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


def pin(store: ObjectStore, item: StoredObject, cache: Path) -> Partition:
    """Read one partition's bytes and footer.

    Raises:
        BadDataError: it cannot be read, is not a complete Parquet file, or has no rows.
    """
    uri = f"{store.uri}/{item.key}"
    with readable(uri):
        path = store.fetch(item.key, cache)
        partition = read_partition(path, uri)
    file = partition.file
    if file.size_bytes != item.size_bytes:
        raise BadDataError(
            f"the partition {uri} changed while it was read",
            evidence=f"it was listed with {item.size_bytes:,} bytes; {file.size_bytes:,} came",
            action="write partitions under a temporary name and rename them when complete",
        )
    if file.rows == 0:
        raise BadDataError(
            f"the partition {uri} holds no rows",
            evidence=f"its footer states 0 rows in {item.size_bytes:,} bytes",
            action="remove it, or find out why its writer had nothing to write",
        )
    return partition


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
