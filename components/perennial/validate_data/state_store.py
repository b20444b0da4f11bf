"""Stored states: facts of every partition, computed once and kept in the object store.

A state lies under `facts/<SHA-256 of the partition>/<digest of the settings>`. A partition never
changes, so neither does its state.
"""

import hashlib
import json
import logging
from collections.abc import Collection, Iterator
from concurrent.futures import as_completed
from contextlib import suppress

import polars as pl
from pydantic import JsonValue

from perennial.clients.object_store import ConflictError, ObjectStore, open_store
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.section import canonical_json
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.executor import open_executor
from perennial.data.parquet_files import LIBRARY_ERRORS
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.partition_facts import partition_facts
from perennial.validate_data.state import FactsState, merge, title_of

logger = logging.getLogger(__name__)
FACTS_VERSION = 1
"""Raised when a state's tables or what they count change."""
MERGED_AT_ONCE = 8
MIN_ROWS_OF_PROCESS = 500_000


def load_states(
    snapshot: Snapshot,
    section: ExpectationsSection,
    store: ObjectStore,
    described: Collection[str],
) -> FactsState:
    """Return the merged state of a snapshot; partitions without a stored state are measured.

    Args:
        snapshot: Defines partitions and settings.
        section: Limits on values, which are counted.
        store: Keeps the states.
        described: Paths of the partitions that become blocks, without a time column.

    Raises:
        BadDataError: a partition cannot be decoded, or the label cannot be counted.
    """
    settings = settings_digest(snapshot, section)
    merging = _Merging(named_blocks=not snapshot.data.time, described=set(described))
    history = _History(store, snapshot, settings)
    known = history.read(merging) if len(described) == len(snapshot.files) else set()
    waiting: dict[str, list[str]] = {}
    for path, file in zip(snapshot.paths, snapshot.files, strict=True):
        if (path, file.sha256) in known:
            continue
        state = None if file.sha256 in waiting else read_state(store, file.sha256, settings)
        if state is None:
            waiting.setdefault(file.sha256, []).append(path)
        else:
            merging.add(path, state)
    for digest in _measure_missing(snapshot, section, store, set(waiting)):
        state = read_state(store, digest, settings)
        if state is None:
            raise PerennialError(
                "the facts of a partition cannot be read although they were just stored",
                evidence=f"{store.uri}/{state_key(digest, settings)}",
                action="check whether something else deletes or overwrites objects there",
            )
        for path in waiting[digest]:
            merging.add(path, state)
    found = merging.result()
    if len(known) < len(snapshot.files) == len(described):
        history.write(found)
    return found


def _measure_missing(
    snapshot: Snapshot, section: ExpectationsSection, store: ObjectStore, digests: Collection[str]
) -> Iterator[str]:
    """Measure and store partitions; yields the digest of each when its state is stored."""
    files = {file.sha256: file for file in snapshot.files if file.sha256 in digests}
    logger.info("partitions=%d measured=%d", len(snapshot.files), len(files))
    if not files:
        return
    # A process that has next to nothing to measure costs more to start than it saves.
    rows = sum(file.rows for file in files.values())
    with open_executor(min(len(files), rows // MIN_ROWS_OF_PROCESS + 1)) as executor:
        tasks = {
            executor.submit(
                store_partition_facts, alone(snapshot, file).to_json(), section.to_json(), store.uri
            ): digest
            for digest, file in files.items()
        }
        for task in as_completed(tasks):
            task.result()
            yield tasks[task]


def alone(snapshot: Snapshot, file: DataFile) -> Snapshot:
    """Return the snapshot of one partition, without what all of them decide together."""
    return snapshot.model_copy(
        update={
            "files": (file,),
            "rows": file.rows,
            "split_rows": {},
            "time_min": None,
            "time_max": None,
        }
    )


def store_partition_facts(snapshot: str, section: str, store_uri: str) -> None:
    """Measure the one partition of a snapshot and store its state; run in a worker process.

    Args:
        snapshot: As JSON.
        section: Expectations, as JSON.
        store_uri: Address of the object store.
    """
    taken, limits = Snapshot.from_json(snapshot), ExpectationsSection.from_json(section)
    digest = taken.files[0].sha256
    try:
        state = partition_facts(taken, limits)
    except LIBRARY_ERRORS as error:
        raise BadDataError(
            "the values of a column cannot be measured",
            evidence=f"{type(error).__name__}: {error}",
            action="write the column that this names as numbers, texts or times, or leave it out",
        ) from error
    settings = settings_digest(taken, limits)
    store, key = open_store(store_uri), state_key(digest, settings)
    content = state.to_bytes(_title(digest, settings))
    try:
        store.replace(key, content, previous=None)
    except ConflictError:  # another run was first, unless what it left is damaged
        if read_state(store, digest, settings) is None:
            store.write(key, content)


def read_state(store: ObjectStore, digest: str, settings: str) -> FactsState | None:
    """Return a stored state; None where there is none, or one that is not to be used."""
    key = state_key(digest, settings)
    content = store.read(key)
    if content is None:
        return None
    try:
        return FactsState.from_bytes(content, _title(digest, settings))
    except ValueError as error:
        logger.warning("%s/%s is measured again: %s", store.uri, key, error)
        return None


def state_key(digest: str, settings: str) -> str:
    """Return a state's place in the object store."""
    return f"facts/{digest}/{settings}"


def settings_digest(snapshot: Snapshot, section: ExpectationsSection) -> str:
    """Return the digest of all that a state depends on beside the rows."""
    split = snapshot.split.model_dump(mode="json", exclude={"train_days", "test_days"})
    limits: dict[str, JsonValue] = {
        name: column.model_dump(mode="json", include={"min", "max", "allowed", "matches"})
        for name, column in section.columns.items()
    }
    settings: dict[str, JsonValue] = {
        "facts": FACTS_VERSION,
        "polars": pl.__version__,  # its hashes choose the samples
        "data": snapshot.data.model_dump(mode="json", exclude={"uri"}),
        "columns": dict(snapshot.columns),
        "split": split,
        "windows": bool(snapshot.split.train_days or snapshot.split.test_days),
        "limits": limits,
    }
    return hashlib.sha256(canonical_json(settings).encode()).hexdigest()


def _title(digest: str, settings: str) -> dict[str, str]:
    return {"format": "perennial facts", "partition": digest, "settings": settings}


class _History:
    """The merged state of a dataset's last snapshot, so that a new partition adds to it alone.

    It lies under `facts/merged/`; of two runs that write it at once, one keeps the other's.
    """

    def __init__(self, store: ObjectStore, snapshot: Snapshot, settings: str) -> None:
        self._store, self._snapshot = store, snapshot
        self._partitions = sorted(
            (path, file.sha256) for path, file in zip(snapshot.paths, snapshot.files, strict=True)
        )
        self._title = {
            "format": "perennial merged facts",
            "data": snapshot.data.uri,
            "settings": settings,
        }
        identity = hashlib.sha256(canonical_json(dict(self._title)).encode()).hexdigest()
        self._key = f"facts/merged/{identity}"
        self._previous: bytes | None = None

    def read(self, merging: "_Merging") -> set[tuple[str, str]]:
        """Add the state to what is merged if the snapshot has all its partitions; return them."""
        self._previous = self._store.read(self._key)
        if self._previous is None:
            return set()
        try:
            title = title_of(self._previous)
            partitions = {(path, digest) for path, digest in json.loads(title["partitions"])}
            if not partitions <= set(self._partitions):
                return set()
            merging.add_merged(FactsState.from_bytes(self._previous, title | self._title))
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s/%s is merged again: %s", self._store.uri, self._key, error)
            return set()
        return partitions

    def write(self, state: FactsState) -> None:
        """Store the state of the snapshot."""
        content = state.to_bytes({**self._title, "partitions": json.dumps(self._partitions)})
        with suppress(ConflictError):
            self._store.replace(self._key, content, previous=self._previous)


class _Merging:
    """Adds up states, a few at a time, so that memory does not grow with their number."""

    def __init__(self, *, named_blocks: bool, described: Collection[str]) -> None:
        self._named_blocks, self._described = named_blocks, described
        self._states: list[FactsState] = []

    def add(self, path: str, state: FactsState) -> None:
        """Add the state of a partition."""
        if self._named_blocks:
            state = state.with_block(path) if path in self._described else state.without_blocks()
        self.add_merged(state)

    def add_merged(self, state: FactsState) -> None:
        """Add the state of several partitions, whose blocks have their names."""
        self._states.append(state)
        if len(self._states) > MERGED_AT_ONCE:
            self._states = [merge(self._states)]

    def result(self) -> FactsState:
        """Return the state of all partitions."""
        return self._states[0] if len(self._states) == 1 else merge(self._states)
