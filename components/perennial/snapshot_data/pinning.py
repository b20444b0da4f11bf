"""Pinning: reads partitions once: their bytes' digest, their footer and a summary of their rows."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from perennial.clients.object_store import ObjectStore, StoredObject, open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.environment import KUBERNETES_HOST, data_cache
from perennial.contracts.errors import BadDataError
from perennial.data.executor import open_executor
from perennial.data.parquet_files import decodable, read_footer, readable
from perennial.data.partition_index import INDEX
from perennial.data.splits import RowSummary, summarize_rows
from perennial.data.verified_files import record_verified
from perennial.snapshot_data.roles import check_roles

# Reading waits for the store more than it computes; boto3 pools ten connections by default.
_THREADS = 8
# What one task of the executor reads: to start a process costs about as much as 250 small files.
_BATCH_FILES, _BATCH_BYTES = 250, 1_000_000_000


def pin_all(
    data: DataSection,
    split: SplitSection,
    items: Sequence[StoredObject],
    cache: Path | None = None,
) -> pl.DataFrame:
    """Read partitions, in the processes of an executor if there are many.

    Returns:
        A table with the columns of `INDEX`, in the order of `items`.

    Raises:
        BadDataError: a partition is gone, has changed, cannot be read or has no rows.
    """
    batches = [*_batches(items)]
    if not batches:
        return pl.DataFrame(schema=INDEX)
    with open_executor(len(batches)) as executor:
        pin = partial(_pin_batch, data, split, cache or data_cache())
        return pl.concat(executor.map(pin, batches))


def _batches(items: Sequence[StoredObject]) -> Iterator[Sequence[StoredObject]]:
    batch: list[StoredObject] = []
    for item in items:
        size = sum(each.size_bytes for each in batch) + item.size_bytes
        if batch and (len(batch) == _BATCH_FILES or size > _BATCH_BYTES):
            yield batch
            batch = []
        batch.append(item)
    if batch:
        yield batch


def _pin_batch(
    data: DataSection, split: SplitSection, cache: Path, items: Sequence[StoredObject]
) -> pl.DataFrame:
    store = open_store(data.uri)
    with ThreadPoolExecutor(_THREADS) as pool:
        entries = pool.map(partial(_pin, data, split, cache, store), items)
        return pl.DataFrame([*entries], schema=INDEX)


def _pin(
    data: DataSection, split: SplitSection, cache: Path, store: ObjectStore, item: StoredObject
) -> dict[str, Any]:
    uri = f"{store.uri}/{item.key}"
    with readable(uri):
        path, sha256 = store.fetch_pinned(item, cache)
        rows, columns = read_footer(path)
    if rows == 0:
        raise BadDataError(
            f"the partition {uri} holds no rows",
            evidence=f"its footer states 0 rows in {item.size_bytes:,} bytes",
            action="remove it, or find out why its writer had nothing to write",
        )
    summary = _summary(path, uri, data, split, columns)
    if not path.is_relative_to(cache):
        store.check_version(item)  # it is the original, which could have been replaced meanwhile
    # In a pod nothing reads the copy again, and what a pod writes may not exceed its `scratch`.
    if path.is_relative_to(cache) and os.environ.get(KUBERNETES_HOST):
        path.unlink(missing_ok=True)
    else:
        record_verified(path, sha256, cache)
    listed = {"key": item.key, "size_bytes": item.size_bytes, "version": item.version}
    return {**listed, "sha256": sha256, "rows": rows, "columns": json.dumps(columns), **summary}


def _summary(
    path: Path,
    uri: str,
    data: DataSection,
    split: SplitSection,
    columns: Mapping[str, str],
) -> RowSummary | dict[str, None]:
    """Summarize rows; nothing where columns do not fit, which the snapshot's checks explain."""
    try:
        check_roles(data, split, columns)
    except BadDataError:
        return dict.fromkeys(RowSummary.__annotations__)
    with decodable(uri):
        return summarize_rows(path, data, split, columns)
