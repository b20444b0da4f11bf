"""Stored states: what is measured of every partition, once, and kept in the object store.

A state lies under `facts/<SHA-256 of the partition>/<kind>-<digest of the settings>`. A partition
never changes, so neither does its state. The merged state of a dataset's last snapshot lies under
`facts/merged/`, so that a new partition adds to it alone.
"""

import json
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import as_completed
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import polars as pl
from pydantic import JsonValue

from perennial.clients.object_store import ConflictError, ObjectStore, open_store
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.section import digest_of
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.executor import open_executor
from perennial.data.parquet_files import LIBRARY_ERRORS
from perennial.validate_data.state import FactsState, merge_in_steps, title_of

logger = logging.getLogger(__name__)
MERGED_AT_ONCE = 8
MIN_ROWS_OF_PROCESS = 500_000
_MERGED = "facts/merged/"


@dataclass(frozen=True)
class Measurement:
    """A measure of every partition, and how the states of several become one.

    Attributes:
        kind: Its name, which begins the name of the states.
        settings: All that a state depends on beside the rows.
        measure: Measures the one partition of a snapshot; a worker process must be able to load it.
        merge: Returns the state of all rows of several states.
    """

    kind: str
    settings: dict[str, JsonValue]
    measure: Callable[[Snapshot], FactsState]
    merge: Callable[[Sequence[FactsState]], FactsState]

    @cached_property
    def digest(self) -> str:
        """Return the digest of the settings."""
        # The hashes of polars choose the samples.
        return digest_of({**self.settings, "polars": pl.__version__})

    def place_of(self, partition: str) -> tuple[str, dict[str, str]]:
        """Return the key of a partition's state, and what its archive is called."""
        title = {"format": self.kind, "partition": partition, "settings": self.digest}
        return f"facts/{partition}/{self.kind}-{self.digest}", title


def load_states(
    snapshot: Snapshot,
    measurement: Measurement,
    store: ObjectStore,
    place: Callable[[str, FactsState], FactsState] = lambda _, state: state,
    *,
    keep_merged: bool = True,
) -> FactsState:
    """Return the merged state of a snapshot; partitions without a stored state are measured.

    `place` turns the state of the partition with a path into a part of the whole. With
    `keep_merged` the merged state is stored, because it is the same in the next snapshot.

    Raises:
        BadDataError: a partition cannot be measured.
        PerennialError: a state that was just stored is gone.
    """
    history = _History(store, snapshot, measurement)
    merged = history.read() if keep_merged else []
    parts = _partition_states(snapshot, measurement, store, history.known)
    placed = (place(path, state) for path, state in parts)
    found = merge_in_steps(chain(merged, placed), measurement.merge, MERGED_AT_ONCE)
    if keep_merged and len(history.known) < len(snapshot.files):
        history.write(found)
    return found


def _partition_states(
    snapshot: Snapshot,
    measurement: Measurement,
    store: ObjectStore,
    known: Collection[tuple[str, str]],
) -> Iterator[tuple[str, FactsState]]:
    """Yield path and state of each partition that is not known, first those with a stored state."""
    waiting: dict[str, list[str]] = {}
    for path, file in zip(snapshot.paths, snapshot.files, strict=True):
        digest = file.sha256
        if (path, digest) in known:
            continue
        # Equal files are measured once.
        state = None if digest in waiting else read_state(store, *measurement.place_of(digest))
        if state is None:
            waiting.setdefault(digest, []).append(path)
        else:
            yield path, state
    for digest in _measure_missing(snapshot, measurement, store, set(waiting)):
        key, title = measurement.place_of(digest)
        state = read_state(store, key, title)
        if state is None:
            raise PerennialError(
                "the facts of a partition cannot be read although they were just stored",
                evidence=f"{store.uri}/{key}",
                action="check whether something else deletes or overwrites objects there",
            )
        for path in waiting[digest]:
            yield path, state


def _measure_missing(
    snapshot: Snapshot, measurement: Measurement, store: ObjectStore, digests: Collection[str]
) -> Iterator[str]:
    """Measure and store partitions; yields the digest of each when its state is stored."""
    files = {file.sha256: file for file in snapshot.files if file.sha256 in digests}
    logger.info("%s partitions=%d measured=%d", measurement.kind, len(snapshot.files), len(files))
    if not files:
        return
    # A process that has next to nothing to measure costs more to start than it saves.
    rows = sum(file.rows for file in files.values())
    with open_executor(min(len(files), rows // MIN_ROWS_OF_PROCESS + 1)) as executor:
        tasks = {
            executor.submit(
                store_state,
                measurement.measure,
                _alone(snapshot, file),
                store.uri,
                *measurement.place_of(digest),
            ): digest
            for digest, file in files.items()
        }
        for task in as_completed(tasks):
            task.result()
            yield tasks[task]


def _alone(snapshot: Snapshot, file: DataFile) -> Snapshot:
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


def store_state(
    measure: Callable[[Snapshot], FactsState],
    snapshot: Snapshot,
    store_uri: str,
    key: str,
    title: dict[str, str],
) -> None:
    """Measure the one partition of a snapshot and store its state; run in a worker process."""
    try:
        state = measure(snapshot)
    except LIBRARY_ERRORS as error:
        raise BadDataError(
            "the values of a column cannot be measured",
            evidence=f"{type(error).__name__}: {error}",
            action="write the column that this names as numbers, texts or times, or leave it out",
        ) from error
    store, content = open_store(store_uri), state.to_bytes(title)
    try:
        store.replace(key, content, previous=None)
    except ConflictError:  # another run was first, unless what it left is damaged
        if read_state(store, key, title) is None:
            store.write(key, content)


def read_state(store: ObjectStore, key: str, title: dict[str, str]) -> FactsState | None:
    """Return a stored state; None where there is none, or one that is not to be used."""
    content = store.read(key)
    if content is None:
        return None
    try:
        return FactsState.from_bytes(content, title)
    except ValueError as error:
        logger.warning("%s/%s is measured again: %s", store.uri, key, error)
        return None


class _History:
    """The merged state of a dataset's last snapshot.

    Of two runs that write it at once, one keeps the other's.
    """

    def __init__(self, store: ObjectStore, snapshot: Snapshot, measurement: Measurement) -> None:
        self.known: Collection[tuple[str, str]] = ()
        """Path and digest of the partitions whose states are in it."""
        self._store = store
        self._partitions = sorted(
            (path, file.sha256) for path, file in zip(snapshot.paths, snapshot.files, strict=True)
        )
        self._title = {**measurement.place_of("merged")[1], "data": snapshot.data.uri}
        identity = digest_of(dict(self._title))
        self._key = f"{_MERGED}{identity}"
        self._previous: bytes | None = None

    def read(self) -> list[FactsState]:
        """Return the state if the snapshot has all its partitions; else none."""
        self._previous = self._store.read(self._key)
        if self._previous is None:
            return []
        try:
            title = title_of(self._previous)
            partitions = {(path, digest) for path, digest in json.loads(title["partitions"])}
            if not partitions <= set(self._partitions):
                return []
            state = FactsState.from_bytes(self._previous, title | self._title)
        except (ValueError, KeyError, TypeError) as error:
            logger.warning("%s/%s is merged again: %s", self._store.uri, self._key, error)
            return []
        self.known = partitions
        return [state]

    def write(self, state: FactsState) -> None:
        """Store the state of the snapshot."""
        content = state.to_bytes({**self._title, "partitions": json.dumps(self._partitions)})
        with suppress(ConflictError):
            self._store.replace(self._key, content, previous=self._previous)
