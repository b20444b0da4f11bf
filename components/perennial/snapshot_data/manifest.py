"""Takes a snapshot: lists the partitions, pins their bytes and checks that they are one table."""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from perennial.clients.object_store import (
    ConflictError,
    ObjectStore,
    StoredObject,
    open_store,
)
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.environment import data_cache
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.parquet_files import read_footer, readable
from perennial.data.partitions import Listing, find_partitions, refuse_hidden_parquet
from perennial.data.splits import check_splits, with_split_rows
from perennial.snapshot_data.schema import Partition, check_roles, common_columns

# Pinning waits for the store more than it computes; boto3 pools ten connections by default.
_PINNING_THREADS = 8
logger = logging.getLogger(__name__)


def take_snapshot(
    data: DataSection,
    split: SplitSection,
    cache: Path | None = None,
    listing: Listing | None = None,
) -> Snapshot:
    """Pin what the dataset holds now.

    Args:
        data: Where the dataset is and what its columns mean.
        split: The rule that assigns rows to splits.
        cache: Where files of a remote store are kept; None for this machine's default.
        listing: What `list_partitions` found; None to list now.

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
    """Two partitions of equal bytes count every row twice; only rows without a time or an id may.

    Raises:
        BadDataError: there are such partitions.
    """
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
        footer = read_footer(path)
    if footer.size_bytes != item.size_bytes:
        raise BadDataError(
            f"the partition {uri} changed while it was read",
            evidence=f"it was listed with {item.size_bytes:,} bytes; {footer.size_bytes:,} came",
            action="write partitions under a temporary name and rename them when complete",
        )
    if footer.rows == 0:
        raise BadDataError(
            f"the partition {uri} holds no rows",
            evidence=f"its footer states 0 rows in {item.size_bytes:,} bytes",
            action="remove it, or find out why its writer had nothing to write",
        )
    file = DataFile(uri=uri, size_bytes=footer.size_bytes, sha256=footer.sha256, rows=footer.rows)
    return Partition(file, footer.columns)


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
