"""Partition counts: what a suite needs of each partition, counted once and kept in the store.

They lie under `facts/<SHA-256 of the partition>/suite-<digest of the settings>`, beside the facts.
"""

import hashlib
import logging
from collections.abc import Mapping
from concurrent.futures import as_completed

import polars as pl
from pydantic import JsonValue

from perennial.clients.object_store import ConflictError, ObjectStore, open_store
from perennial.contracts.section import canonical_json
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import Dataset
from perennial.data.executor import open_executor
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.state import FactsState
from perennial.validate_data.state_store import MIN_ROWS_OF_PROCESS, alone
from perennial.validate_data.suites.counts import SuiteMeasures
from perennial.validate_data.suites.document import load_suite
from perennial.validate_data.suites.judging import plan_suite, suite_measures

logger = logging.getLogger(__name__)
COUNTS_VERSION = 1
"""Raised when the tables or what they count change."""
_BATCH_ROWS = 250_000
# Each merge takes up all that was merged before.
_MERGED_AT_ONCE = 32

Tables = Mapping[str, pl.DataFrame]


def load_counts(
    snapshot: Snapshot, section: ExpectationsSection, measures: SuiteMeasures, store: ObjectStore
) -> Tables:
    """Return the merged tables of a snapshot; partitions without stored ones are counted.

    Args:
        snapshot: Its partitions never change.
        section: Names the suite.
        measures: What the suite needs.
        store: Keeps the tables of each partition.

    Raises:
        BadDataError: a partition cannot be decoded.
    """
    settings = _settings(snapshot, section, measures)
    parts: list[Tables] = []

    def add(tables: Tables) -> None:
        parts.append(tables)
        if len(parts) > _MERGED_AT_ONCE:
            parts[:] = [measures.merge(parts)]

    missing: list[DataFile] = []
    for file in snapshot.files:
        found = _read(store, file.sha256, settings)
        if found is None:
            missing.append(file)
        else:
            add(found)
    logger.info("suite partitions=%d counted=%d", len(snapshot.files), len(missing))
    workers = sum(file.rows for file in missing) // MIN_ROWS_OF_PROCESS + 1
    with open_executor(min(max(len(missing), 1), workers)) as executor:
        tasks = [
            executor.submit(
                store_partition_counts,
                alone(snapshot, file).to_json(),
                section.to_json(),
                store.uri,
                settings,
                is_sampled=bool(measures.sampled),
            )
            for file in missing
        ]
        for task in as_completed(tasks):
            add(task.result())
    return measures.merge(parts)


def store_partition_counts(
    snapshot: str, section: str, store_uri: str, settings: str, *, is_sampled: bool
) -> Tables:
    """Count the one partition of a snapshot and store its tables; run in a worker process.

    Args:
        snapshot: As JSON.
        section: Expectations, as JSON.
        store_uri: Address of the object store.
        settings: Digest of what the counts depend on beside the rows.
        is_sampled: Whether rows are sampled for what no count answers.
    """
    taken, limits = Snapshot.from_json(snapshot), ExpectationsSection.from_json(section)
    dataset = Dataset(taken)
    schema = dataset.scan().collect_schema()
    planned = plan_suite(load_suite(limits.suite), schema, is_sampled=False)
    measures = suite_measures(
        planned,
        schema,
        sample_rows=limits.suite_sample_rows if is_sampled else 0,
        sample_seed=limits.suite_sample_seed,
    )
    parts: list[Tables] = [measures.tables_of(pl.DataFrame(schema=schema))]
    for batch in dataset.column_batches(list(schema), _BATCH_ROWS):
        parts.append(measures.tables_of(batch))
        if len(parts) > _MERGED_AT_ONCE:
            parts = [measures.merge(parts)]
    tables = measures.merge(parts)
    digest = taken.files[0].sha256
    content = FactsState(tables).to_bytes(_title(digest, settings))
    try:
        open_store(store_uri).replace(_key(digest, settings), content, previous=None)
    except ConflictError:  # another run was first; its tables are the same unless damaged
        open_store(store_uri).write(_key(digest, settings), content)
    return tables


def _read(store: ObjectStore, digest: str, settings: str) -> Tables | None:
    key = _key(digest, settings)
    content = store.read(key)
    if content is None:
        return None
    try:
        return FactsState.from_bytes(content, _title(digest, settings)).tables
    except ValueError as error:
        logger.warning("%s/%s is counted again: %s", store.uri, key, error)
        return None


def _settings(snapshot: Snapshot, section: ExpectationsSection, measures: SuiteMeasures) -> str:
    """Return the digest of all that the tables depend on beside the rows."""
    settings: dict[str, JsonValue] = {
        "counts": COUNTS_VERSION,
        "polars": pl.__version__,  # its hashes choose the samples
        "columns": dict(snapshot.columns),
        "suite": section.suite,
        "sampled": list(measures.sampled),
        "rows": measures.sample_rows if measures.sampled else 0,
        "seed": section.suite_sample_seed,
    }
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def _key(digest: str, settings: str) -> str:
    return f"facts/{digest}/suite-{settings}"


def _title(digest: str, settings: str) -> dict[str, str]:
    return {"format": "perennial suite counts", "partition": digest, "settings": settings}
