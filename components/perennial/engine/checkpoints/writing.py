"""Writing: one rank's part of a checkpoint, by torch's writer, digested and committed.

Torch plans the files, copies the state and writes it. All of what follows is part of torch's own
two phases, which carry the error of any rank to all: each rank digests and uploads its file, then
the first rank commits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from typing_extensions import override

from perennial.clients.object_store import sha256_of_file
from perennial.clients.outages import is_outage
from perennial.contracts.errors import OutageError, PerennialError
from perennial.engine.checkpoints.checkpoint_store import CheckpointStore
from perennial.engine.checkpoints.folder import CheckpointManifest, partial_path
from perennial.engine.checkpoints.reading import METADATA_FILE


class CheckpointNotWrittenError(PerennialError):
    """A checkpoint could not be written; earlier ones are unchanged."""


class WrittenFiles(list[WriteResult]):
    """Places where torch's writer of one rank has put every value, and the files' digests."""

    def __init__(self, results: list[WriteResult], folder: Path) -> None:
        super().__init__(results)
        names = {result.storage_data.relative_path for result in results}
        self.digests = {name: sha256_of_file(folder / name) for name in sorted(names)}


class RankError(Exception):
    """An error as text, which other ranks can read whatever its type."""

    def __init__(self, text: str, is_outage: bool) -> None:
        super().__init__(text, is_outage)
        self.text = text
        self.is_outage = is_outage


class CheckpointWriter(FileSystemWriter):
    """Writes one checkpoint."""

    def __init__(
        self, store: CheckpointStore, manifest: CheckpointManifest, on_commit: Callable[[], None]
    ) -> None:
        self._folder = partial_path(store.folder, manifest.step)
        self._store = store
        self._manifest = manifest
        self._on_commit = on_commit
        super().__init__(self._folder)

    @override
    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        done: Future[list[WriteResult]] = Future()
        with _errors_as_text():
            # The digests are taken of what was written, from the page cache.
            files = WrittenFiles(super().write_data(plan, planner).wait(), self._folder)
            self._store.upload(self._manifest.step, files.digests)
            done.set_result(files)
        return done

    @override
    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        files: dict[str, str] = {}
        for each in results:
            # Each rank has digested its own files: those of other machines may not be visible.
            files |= each.digests if isinstance(each, WrittenFiles) else {}
        with _errors_as_text():
            super().finish(metadata, results)
            self._store.upload(self._manifest.step, [METADATA_FILE])
            # Last, because the marker makes it count: data and metadata are stored by now.
            self._store.commit(self._manifest.model_copy(update={"files": files}))
        self._on_commit()


@contextmanager
def _errors_as_text() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise RankError(f"{type(error).__name__}: {error}", is_outage(error)) from error


def not_written(step: int, error: CheckpointException) -> CheckpointNotWrittenError:
    """Return the error for a checkpoint that ranks could not write."""
    found = {rank: failure for rank, (failure, _) in sorted(error.failures.items())}
    texts = [
        f"rank {rank}: " + (each.text if isinstance(each, RankError) else repr(each))
        for rank, each in found.items()
    ]
    evidence = "; ".join(texts)
    failure = CheckpointNotWrittenError(
        f"the checkpoint of step {step} could not be written",
        evidence=evidence,
        action="free disk space or fix the store; a new run resumes one checkpoint earlier",
    )
    # Only if every failure is one: a training is restarted after an outage, and another attempt
    # would not free a full disk.
    if all(isinstance(each, RankError) and each.is_outage for each in found.values()):
        failure.__cause__ = OutageError(evidence)
    return failure
