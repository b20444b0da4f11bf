"""Sharded: the champion's losses, where the model is divided over processes."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.contracts.gate import BlockPerformance
from perennial.contracts.monitoring import WindowDrift
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.detect_drift.performance import window_losses
from perennial.engine.evaluation.processes import (
    ScoringRequest,
    load_shared,
    require_shards,
    score_in_processes,
    score_share,
)
from perennial.engine.evaluation.scoring import Share
from perennial.engine.export import load_exported_task

MODULE = "perennial.detect_drift.sharded"


class Request(ScoringRequest):
    """The request to every process."""

    model: str
    """Folder of the champion, whose weights were verified."""
    snapshot: str
    """Folder of the `Snapshot`."""
    windows: tuple[WindowDrift, ...]


class Losses(Section):
    """The losses of all windows that have labelled rows."""

    losses: tuple[BlockPerformance, ...]


def sharded_losses(
    model: Path, snapshot: Snapshot, windows: Sequence[WindowDrift], shards: int
) -> tuple[BlockPerformance, ...]:
    """Return what `window_losses` does, of a model that is divided over so many processes.

    Raises:
        ShardingError: the model cannot be scored in shards on this machine.
    """
    load_exported_task(model)  # verifies the weights
    require_shards(shards)
    with TemporaryDirectory(prefix="perennial-losses-") as folder:
        scratch = Path(folder)
        snapshot.write(scratch / "snapshot")
        request = Request(
            processes=shards,
            sharded=True,
            model=str(model),
            snapshot=str(scratch / "snapshot"),
            windows=tuple(windows),
        )
        ((text,),) = score_in_processes(MODULE, request, 1, scratch / "processes")
    return Losses.from_json(text).losses


def main() -> int:
    """Score the rows of the request's windows; returns the exit code."""
    return score_share(Request, _scores)


def _scores(request: Request, share: Share, folder: Path) -> Iterator[Losses]:
    snapshot = Snapshot.read(Path(request.snapshot))
    rows = Dataset(snapshot).scan(with_file=not snapshot.data.time)
    task, model = load_shared(Path(request.model), share)
    yield Losses(losses=window_losses(task, model, rows, snapshot, request.windows))
