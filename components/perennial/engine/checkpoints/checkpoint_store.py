"""Checkpoint store: a folder, or an object store with a local folder as cache.

Checkpoints are written and read in a folder of this machine. With an object store, every rank
uploads its own files, the completion marker is uploaded last, and files that are still intact in
the folder are not downloaded again.
"""

import hashlib
import logging
import shutil
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from pydantic import JsonValue, ValidationError
from typing_extensions import override

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.engine.checkpoints.folder import (
    MARKER,
    CheckpointManifest,
    DamagedCheckpointError,
    checkpoint_path,
    commit,
    committed,
    damaged,
    delete,
    discard_uncommitted,
    partial_path,
    problem_of,
    publish,
    quarantine,
    read_manifest,
    require_same_training,
    seal,
    step_of,
    verify,
)
from perennial.engine.handover import folder_for, is_remote

LISTING = CheckpointManifest.file_name
HIDDEN = ".metadata"  # of PyTorch's checkpoints; stores do not list names that start with a dot
ASIDE = "DAMAGED"
logger = logging.getLogger(__name__)


class CheckpointStore:
    """The checkpoints of a training, by step, in a folder that is visible to all ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def uri_of(self, step: int) -> str:
        """Return the address of a committed checkpoint."""
        return str(checkpoint_path(self.folder, step))

    def steps(self) -> list[int]:
        """Return the steps of the committed checkpoints, oldest first."""
        return [step_of(path) for path in committed(self.folder)]

    def manifest(self, step: int) -> CheckpointManifest:
        """Return the manifest of a committed checkpoint.

        Raises:
            DamagedCheckpointError: its bytes differ from those that were written.
        """
        return read_manifest(checkpoint_path(self.folder, step))

    def fetch_verified(self, step: int) -> CheckpointManifest:
        """Ensure that the local folder contains a committed checkpoint, with every byte verified.

        Raises:
            DamagedCheckpointError: its bytes differ from those that were written.
        """
        return verify(checkpoint_path(self.folder, step))

    def upload(self, step: int, names: Iterable[str]) -> None:
        """Upload files from the step's partial folder; every rank uploads its own."""
        # In a folder they are in place already.

    def commit(self, manifest: CheckpointManifest) -> None:
        """Commit the files that all ranks have uploaded as a checkpoint.

        Raises:
            PerennialError: files that the manifest lists are missing.
        """
        partial = partial_path(self.folder, manifest.step)
        missing = [name for name in sorted(manifest.files) if not (partial / name).is_file()]
        if missing:
            raise PerennialError(
                f"files of the checkpoint of step {manifest.step} are not in {self.folder}",
                evidence=f"other ranks wrote {', '.join(missing)}, which are not in {partial}",
                action="keep checkpoints in a folder that all machines share, or in an object "
                "store",
            )
        commit(self.folder, manifest)

    def delete(self, step: int) -> None:
        """Delete a committed checkpoint.

        Raises:
            OSError: it cannot be deleted from this machine.
            PerennialError: it cannot be deleted from the store.
        """
        delete(checkpoint_path(self.folder, step))

    def quarantine(self, step: int) -> str:
        """Move a damaged checkpoint to quarantine; return the new address."""
        return str(quarantine(checkpoint_path(self.folder, step)))

    def discard_uncommitted(self) -> None:
        """Delete the incomplete checkpoints of a killed attempt; called by the first rank."""
        self.folder.mkdir(parents=True, exist_ok=True)
        discard_uncommitted(self.folder)

    def prune_copies(self, steps: Collection[int]) -> None:
        """Delete all local files except copies of these checkpoints; called on each machine."""
        # A folder holds no copies.


class RemoteCheckpointStore(CheckpointStore):
    """Checkpoints below a prefix of an object store; the folder contains copies."""

    def __init__(self, uri: str, folder: Path | None = None) -> None:
        super().__init__(folder or folder_for(uri))
        self._store = open_store(uri)

    @override
    def uri_of(self, step: int) -> str:
        return f"{self._store.uri}/{_name(step)}"

    @override
    def steps(self) -> list[int]:
        return sorted(step for step, names in self._names().items() if MARKER in names)

    @override
    def manifest(self, step: int) -> CheckpointManifest:
        return self._parsed(step, self._sealed(step)[LISTING])

    @override
    def fetch_verified(self, step: int) -> CheckpointManifest:
        sealed = self._sealed(step)
        manifest = self._parsed(step, sealed[LISTING])
        target, partial = checkpoint_path(self.folder, step), partial_path(self.folder, step)
        # A marker here does not suffice: an interrupted fetch moves files out of a marked folder.
        if self._is_copied(target, sealed, manifest):
            return manifest
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        for name in manifest.files:
            # A file that is still intact from an earlier attempt is not downloaded again.
            if not problem_of(target / name, manifest):
                (target / name).rename(partial / name)
            else:
                self._download(step, name, partial, manifest)
        for name, content in sealed.items():  # the marker last
            write_atomically(partial / name, content)
        # A crash from here on costs another download only: the store still has every file.
        shutil.rmtree(target, ignore_errors=True)
        publish(self.folder, step)
        return manifest

    def _sealed(self, step: int) -> dict[str, bytes]:
        """Return the listing of a checkpoint's files, and its completion marker."""
        listing, marker = (self._store.read(_key(step, name)) for name in (LISTING, MARKER))
        if listing is None or marker is None:
            raise damaged(self.uri_of(step), "it was never committed")
        if hashlib.sha256(listing).hexdigest().encode() != marker:
            raise damaged(self.uri_of(step), f"{LISTING} or {MARKER} was changed")
        return {LISTING: listing, MARKER: marker}

    def _parsed(self, step: int, listing: bytes) -> CheckpointManifest:
        try:
            return CheckpointManifest.from_json(listing)
        except ValidationError as error:
            raise damaged(self.uri_of(step), f"{LISTING} does not fit: {error}") from error

    def _is_copied(
        self, target: Path, sealed: Mapping[str, bytes], manifest: CheckpointManifest
    ) -> bool:
        for name, content in sealed.items():
            here = target / name
            if not here.is_file() or here.read_bytes() != content:
                return False
        return not any(problem_of(target / name, manifest) for name in manifest.files)

    def _download(self, step: int, name: str, partial: Path, manifest: CheckpointManifest) -> None:
        try:
            self._store.download(_key(step, name), partial / name)
        except BadDataError as error:
            raise damaged(self.uri_of(step), f"{name} is missing") from error
        problem = problem_of(partial / name, manifest)
        if problem:
            raise damaged(self.uri_of(step), problem)

    @override
    def upload(self, step: int, names: Iterable[str]) -> None:
        for name in names:
            self._store.upload(_key(step, name), partial_path(self.folder, step) / name)

    @override
    def commit(self, manifest: CheckpointManifest) -> None:
        step = manifest.step
        seal(self.folder, manifest)
        # A damaged checkpoint of this step may have left it; it must not describe the new files.
        self._store.delete(_key(step, ASIDE))
        self.upload(step, [LISTING])
        self.upload(step, [MARKER])
        # After a crash before this line the checkpoint counts; only the copy is fetched again.
        publish(self.folder, step)

    @override
    def delete(self, step: int) -> None:
        # The marker first, unlisted files next: an interrupted deletion leaves no hidden files.
        listed = self._names().get(step, set()) - {MARKER}
        for name in (MARKER, HIDDEN, *sorted(listed)):
            self._store.delete(_key(step, name))
        if (checkpoint_path(self.folder, step) / MARKER).exists():
            delete(checkpoint_path(self.folder, step))

    @override
    def quarantine(self, step: int) -> str:
        # First this object: files with neither of the two are deleted by the next attempt, as those
        # of a save that was never finished.
        self._store.write(_key(step, ASIDE), b"its bytes are not those that were written")
        self._store.delete(_key(step, MARKER))
        shutil.rmtree(checkpoint_path(self.folder, step), ignore_errors=True)
        return f"{self.uri_of(step)}/{ASIDE}"

    @override
    def discard_uncommitted(self) -> None:
        super().discard_uncommitted()
        self._discard_uploads()
        for step, names in self._names().items():
            if not names & {MARKER, ASIDE}:
                logger.warning("checkpoint=%s was never finished and is deleted", self.uri_of(step))
                self.delete(step)

    def _discard_uploads(self) -> None:
        try:
            stopped = self._store.discard_uploads("step-")
        except PerennialError as error:
            # Needs a permission that training does not need; unfinished uploads only cost space.
            logger.warning("cannot delete unfinished uploads to %s: %s", self._store.uri, error)
            return
        if stopped:
            logger.warning("deleted %d unfinished uploads to %s", stopped, self._store.uri)

    @override
    def prune_copies(self, steps: Collection[int]) -> None:
        super().discard_uncommitted()
        for copy in committed(self.folder):
            if step_of(copy) in steps:
                continue
            try:
                delete(copy)
            except OSError as error:
                logger.warning("copy=%s cannot be deleted: %s", copy, error)

    def _names(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = {}
        for item in self._store.list("step-"):
            folder, _, name = item.key.partition("/")
            found.setdefault(step_of(Path(folder)), set()).add(name)
        return found


def open_checkpoint_store(uri: str) -> CheckpointStore:
    """Return the checkpoint store at a folder or at an object store's address."""
    if is_remote(uri):
        return RemoteCheckpointStore(uri)
    return CheckpointStore(Path(uri.removeprefix("file://")))


def fetch_checkpoint(uri: str) -> Path:
    """Return a local folder with the committed checkpoint of a record, every byte verified.

    Raises:
        DamagedCheckpointError: its bytes differ from those that were written.
    """
    parent, _, name = uri.rstrip("/").rpartition("/")
    if not is_remote(uri):
        verify(Path(uri))
        return Path(uri)
    store, step = open_checkpoint_store(parent), step_of(Path(name))
    store.fetch_verified(step)
    return checkpoint_path(store.folder, step)


def quarantine_checkpoint(uri: str) -> str:
    """Move the damaged checkpoint of a record to quarantine; return the new address.

    Raises:
        OSError: it cannot be moved on this machine, or is not there.
        PerennialError: it cannot be marked in the store.
    """
    parent, _, name = uri.rstrip("/").rpartition("/")
    return open_checkpoint_store(parent).quarantine(step_of(Path(name)))


def newest_intact(
    store: CheckpointStore, fingerprint: str, contract: Mapping[str, JsonValue]
) -> CheckpointManifest | None:
    """Return the checkpoint to resume from; quarantine damaged ones with a warning.

    Raises:
        PerennialError: the checkpoint belongs to another training.
    """
    for step in reversed(store.steps()):
        try:
            manifest = store.fetch_verified(step)
        except DamagedCheckpointError as error:
            aside = store.quarantine(step)
            logger.warning(
                "%s; quarantined as %s; falling back to the previous checkpoint", error, aside
            )
            continue
        require_same_training(store.uri_of(step), manifest, fingerprint, contract)
        return manifest
    return None


def measured(store: CheckpointStore) -> dict[int, dict[str, float]]:
    """Return metrics by step of the committed checkpoints; quarantine unreadable ones."""
    found = {}
    for step in store.steps():
        try:
            # The listing holds the metrics; the tensors are verified when a checkpoint is loaded.
            found[step] = store.manifest(step).metrics
        except DamagedCheckpointError as error:
            logger.warning("%s; quarantined as %s", error, store.quarantine(step))
    return found


def _name(step: int) -> str:
    return checkpoint_path(Path(), step).name


def _key(step: int, name: str) -> str:
    return f"{_name(step)}/{name}"
