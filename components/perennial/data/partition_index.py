"""Partition index: what is known of a dataset's partitions, so that none is opened twice.

One object in the store for each dataset and split rule. It only saves work: a snapshot has the same
digest with it, without it, and whoever else writes to it.
"""

import hashlib
import io
import json
import logging
from collections.abc import Mapping
from typing import Any

import polars as pl

from perennial.clients.object_store import ObjectStore, StoredObject
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import OutageError, PerennialError
from perennial.data.splits import SUMMARY

logger = logging.getLogger(__name__)
# Raised when a column or the meaning of one changes.
_FORMAT = 1
_LISTED: Mapping[str, Any] = {"key": pl.String, "size_bytes": pl.Int64, "version": pl.String}
INDEX: Mapping[str, Any] = {
    **_LISTED, "sha256": pl.String, "rows": pl.Int64, "columns": pl.String, **SUMMARY,
}  # fmt: skip
"""Columns of the index: a listed object, its content, its footer (`columns` as JSON), its rows."""
_IDENTITY = list(_LISTED)


def index_key(data: DataSection, split: SplitSection) -> str:
    """Return the key of a dataset's index: of everything that its summaries depend on."""
    rule = split.model_dump(mode="json", exclude={"train_days", "test_days"})
    roles = data.model_dump(mode="json", include={"uri", "label", "time", "group", "ids"})
    text = json.dumps([_FORMAT, roles, rule], sort_keys=True)
    return f"snapshots/index/{hashlib.sha256(text.encode()).hexdigest()}.sha256-parquet"


def read_index(store: ObjectStore, key: str) -> pl.DataFrame:
    """Read an index; one that is missing or damaged is empty, so that it is made again."""
    return _parsed(store.read(key), f"{store.uri}/{key}")


def update_index(
    store: ObjectStore, key: str, found: pl.DataFrame, listed: pl.DataFrame, before: pl.DataFrame
) -> None:
    """Add new entries and drop those of vanished objects; keep what others added meanwhile.

    What cannot be written is read again by the next snapshot, which is no reason to fail.
    """

    def change(content: bytes | None) -> tuple[bytes | None, None]:
        now = _parsed(content, f"{store.uri}/{key}")
        vanished = before.join(listed, on=_IDENTITY, how="anti")
        kept = now.join(vanished, on=_IDENTITY, how="anti").join(found, on=_IDENTITY, how="anti")
        # In one order, so that writers with equal knowledge write equal bytes.
        after = pl.concat([kept, found]).sort("key", "version")
        return (None if after.equals(now) else _sealed(after)), None

    try:
        store.update(key, change)
    except OutageError:
        raise
    except PerennialError as error:
        logger.warning("index=%s/%s was not updated: %s", store.uri, key, error)


def listed_table(items: tuple[StoredObject, ...]) -> pl.DataFrame:
    """Return listed objects as a table with the columns that identify an entry."""
    return pl.DataFrame(
        {
            "key": [each.key for each in items],
            "size_bytes": [each.size_bytes for each in items],
            "version": [each.version for each in items],
        },
        schema=_LISTED,
    )


def known_entries(index: pl.DataFrame, listed: pl.DataFrame) -> pl.DataFrame:
    """Return the entries of listed objects whose key, size and version are known."""
    # Without a version, nothing shows that an object is still the same.
    return index.join(listed.filter(pl.col("version") != ""), on=_IDENTITY, how="semi")


def _sealed(table: pl.DataFrame) -> bytes:
    buffer = io.BytesIO()
    table.write_parquet(buffer, statistics=False)
    content = buffer.getvalue()
    return hashlib.sha256(content).digest() + content


def _parsed(content: bytes | None, uri: str) -> pl.DataFrame:
    empty = pl.DataFrame(schema=INDEX)
    if content is None:
        return empty
    digest, body = content[:32], content[32:]
    try:
        if hashlib.sha256(body).digest() != digest:
            raise ValueError("its SHA-256 is another one")
        table = pl.read_parquet(body)
        if table.schema != empty.schema:
            raise ValueError(f"its columns are {list(table.schema)}")
    except (ValueError, pl.exceptions.PolarsError) as error:
        logger.warning("index=%s is damaged and is made again: %s", uri, error)
        return empty
    return table
