"""Replay: partitions of a dataset arrive one by one, as they did over time.

The first few arrive together and are trained on; after each further one the stream is monitored,
and the pipeline itself decides whether to train again and whether to promote.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ClassVar

from perennial.clients.object_store import StoredObject, open_store, sha256_of_file
from perennial.contract import Contract
from perennial.contracts.artifact import Artifact
from perennial.contracts.block import by_name
from perennial.contracts.errors import PerennialError, join_names
from perennial.data.partitions import find_partitions
from perennial.reports.text import counted
from perennial.snapshot_data.manifest import list_partitions


class ReplayState(Artifact):
    """State of a replay. File tree: `replay.json`, `data/` (what has arrived)."""

    file_name: ClassVar[str] = "replay.json"

    handled: int
    """Partitions that have arrived and whose run has ended."""


@dataclass(frozen=True)
class Arrival:
    """One moment of a replay."""

    number: int
    """Partitions that have arrived by now."""
    keys: tuple[str, ...]
    """Those that arrive now."""
    pipeline: str
    """What to run on them."""


class Replay:
    """A replay of a contract's dataset into a growing copy, which a folder keeps with the state."""

    def __init__(self, contract: Contract, folder: Path) -> None:
        self._source = open_store(contract.data.uri)
        self._folder = folder
        data = contract.data.model_copy(update={"uri": str(folder / "data")})
        self.contract = contract.model_copy(update={"data": data})
        """The same contract on the growing copy."""

    def arrivals(self, first: int, until: int | None) -> Iterator[Arrival]:
        """Add partitions, and yield after each arrival what must be run.

        An arrival counts as handled once the next one is asked for; an interrupted replay goes on
        with the arrival that was not handled. The first partitions arrive together.

        Raises:
            PerennialError: the dataset has fewer partitions than `first`, or `until` is less; or
                it is not the one of which partitions have arrived.
        """
        found = sorted(list_partitions(self._source).partitions, key=lambda each: by_name(each.key))
        keys = [each.key for each in found]
        last = len(keys) if until is None else min(until, len(keys))
        if not 1 <= first <= last:
            raise PerennialError(
                f"a replay cannot start with {first} partitions and end with {last}",
                evidence=f"{self._source.uri} has {len(keys)}",
                action="prepare more data, or lower --first",
            )
        is_begun = (self._folder / ReplayState.file_name).exists()
        self._refuse_other_data(found)
        handled = ReplayState.read(self._folder).handled if is_begun else 0
        for number in range(max(handled, first - 1) + 1, last + 1):
            new = keys[:number] if number == first else keys[number - 1 : number]
            for key in keys[:number]:
                target = self._folder / "data" / key
                if not target.exists():
                    self._source.download(key, target)
            pipeline = "continuous_training" if number == first else "drift_monitoring"
            yield Arrival(number, tuple(new), pipeline)
            # After the caller has run it: a killed replay repeats the arrival.
            ReplayState(handled=number).write(self._folder)

    def _refuse_other_data(self, found: Sequence[StoredObject]) -> None:
        """Refuse to go on where what has arrived is not what the dataset now begins with."""
        copies = find_partitions(open_store(self.contract.data.uri)).partitions
        arrived = sorted((each.key for each in copies), key=by_name)
        expected = [each.key for each in found[: len(arrived)]]
        changed = sorted({*arrived} ^ {*expected}) or [
            key for key in arrived if self._has_changed(key)
        ]
        if changed:
            raise PerennialError(
                "the dataset is not the one that this replay began with",
                evidence=f"{join_names(changed, 3)} came, went or changed among the first "
                f"{counted(len(arrived), 'partition')}, which have arrived",
                action="replay in a home of its own: --home",
            )

    def _has_changed(self, key: str) -> bool:
        with TemporaryDirectory() as scratch:
            now = sha256_of_file(self._source.fetch(key, Path(scratch)))
        return now != sha256_of_file(self._folder / "data" / key)
