"""Takes a snapshot: lists the partitions, pins their bytes and checks that they are one table."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
from polars import read_parquet_schema
from polars.exceptions import PolarsError
from pyarrow import ArrowException

from components.clients.environment import data_cache
from components.clients.object_store import (
    ConflictError,
    ObjectStore,
    StoredObject,
    open_store,
    sha256_of_file,
)
from components.contracts.data import DataSection, SplitSection
from components.contracts.errors import BadDataError
from components.contracts.snapshot import DataFile, Snapshot
from components.snapshot_data.schema import Partition, check_roles, common_columns
from components.snapshot_data.splits import check_splits, with_split_rows

# Pinning waits for the store more than it computes; boto3 pools ten connections by default.
_PINNING_THREADS = 8


def take_snapshot(data: DataSection, split: SplitSection, cache: Path | None = None) -> Snapshot:
    """Pin what the dataset holds now.

    Args:
        data: Where the dataset is and what its columns mean.
        split: The rule that assigns rows to splits.
        cache: Where files of a remote store are kept; None for this machine's default.

    Raises:
        BadDataError: the dataset cannot be trained on; the message names partition and column.
    """
    store = open_store(data.uri)
    found = list_partitions(store)
    with ThreadPoolExecutor(_PINNING_THREADS) as pool:
        partitions = list(pool.map(lambda item: pin(store, item, cache or data_cache()), found))
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


def list_partitions(store: ObjectStore) -> list[StoredObject]:
    """The dataset's Parquet files in order of their keys.

    Like other readers of datasets, this ignores files and folders whose name starts with `.` or
    `_`: writers keep their temporary files and markers there.

    Raises:
        BadDataError: there is none.
    """
    listed = store.list()
    partitions = [
        item
        for item in listed
        if item.key.endswith(".parquet")
        and not any(part.startswith(("_", ".")) for part in item.key.split("/"))
    ]
    if not partitions:
        others = ", ".join(item.key for item in listed[:3])
        raise BadDataError(
            f"data.uri {store.uri} holds no partitions",
            evidence=f"no *.parquet among {len(listed)} files there ({others}…)"
            if listed
            else "the folder does not exist or is empty",
            action="check data.uri, and that the data has been written",
        )
    return partitions


def pin(store: ObjectStore, item: StoredObject, cache: Path) -> Partition:
    """Read one partition's bytes and footer.

    Raises:
        BadDataError: it cannot be read, is no whole Parquet file, or holds no rows.
    """
    uri = f"{store.uri}/{item.key}"
    try:
        path = store.fetch(item.key, cache)
        digest = sha256_of_file(path)
        rows = pq.read_metadata(path).num_rows
        schema = read_parquet_schema(path)
    except PermissionError as error:
        raise BadDataError(
            f"cannot read the partition {uri}",
            evidence=str(error),
            action="give the user that runs the step read access to it",
        ) from error
    except (ArrowException, PolarsError) as error:
        raise BadDataError(
            f"the partition {uri} is no whole Parquet file",
            evidence=f"{item.size_bytes:,} bytes: {error}",
            action="write it again, under a temporary name first, renamed when it is complete",
        ) from error
    if rows == 0:
        raise BadDataError(
            f"the partition {uri} holds no rows",
            evidence=f"its footer says 0 rows in {item.size_bytes:,} bytes",
            action="remove it, or find out why its writer had nothing to write",
        )
    file = DataFile(uri=uri, size_bytes=path.stat().st_size, sha256=digest, rows=rows)
    return Partition(file, {name: str(dtype) for name, dtype in schema.items()})


def store_snapshot(snapshot: Snapshot, store: ObjectStore) -> str:
    """Keep the snapshot for ever under its digest; storing it again changes nothing.

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
        # A copy of the dataset elsewhere has the same digest: the first one stays on record.
        if stored is None or Snapshot.from_json(stored).digest() != digest:
            raise BadDataError(
                f"{store.uri}/{key} holds something else than its name says",
                action="find out who wrote there; snapshots are never changed",
            ) from error
    return key
