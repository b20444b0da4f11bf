"""Scoring for the gate: an exported model on splits of a snapshot, in one process or several."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.pyfunc_flavor import CODE_FOLDER
from perennial.contracts.data import Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.processes import (
    WHOLE,
    Machine,
    ScoringRequest,
    Shards,
    load_shared,
    score_in_processes,
)
from perennial.engine.evaluation.scoring import (
    Scored,
    ScoreFiles,
    Share,
    read_together,
    score_split,
    scoring_device,
    share_batches,
    write_scores,
)
from perennial.engine.export import load_exported_task, load_model
from perennial.engine.scoring_worker import score_share
from perennial.engine.serving.carried_code import carried_modules
from perennial.engine.task import Task

logger = logging.getLogger(__name__)
MODULE = "perennial.gate.scoring"


class Request(ScoringRequest):
    """The request to every process."""

    model: str
    """Folder of the `Challenger`, whose weights were verified."""
    snapshot: str
    """Folder of the `Snapshot`."""
    keep: tuple[tuple[Split, tuple[str, ...]], ...]
    """Splits to score, and the columns to keep of each."""
    carried: bool = False
    """Whether the user's code is that which the model's folder carries."""


def score_exported(
    model: Path,
    dataset: Dataset,
    keep: Mapping[Split, Sequence[str]],
    processes: int | None = None,
    shards: Shards = WHOLE,
    *,
    carried: bool = False,
) -> tuple[Task, dict[Split, Scored]]:
    """Score an exported model on every row of some splits.

    Args:
        model: Folder of a `Challenger`.
        dataset: Source of the rows.
        keep: Splits to score, and the columns to keep of each, for blocks and slices.
        processes: Number of processes that share the rows; None for one per GPU.
        shards: The processes that divide the weights instead, if there are several.
        carried: Whether to import the user's code from the model's folder, as serving does.

    Raises:
        ShardingError: the model cannot be scored in shards on this machine.
        DamagedModelError: the weights are not those that were exported.
        Exception: what the task's code raises.
    """
    with _code_of(model, carried):
        if shards.number > 1:
            return _score_in_processes(
                model, dataset, keep, shards.number, shards=shards, carried=carried
            )
        processes = processes or max(Machine.here().gpus, 1)
        if processes > 1:
            try:
                return _score_in_processes(model, dataset, keep, processes, carried=carried)
            except PerennialError as error:
                # A champion's own error decides whether it may be replaced: it must be known.
                logger.warning("scored again in this process: %s", error)
        task, loaded = load_model(model, scoring_device())
        return task, {
            split: score_split(task, loaded, dataset, split, keep=columns)
            for split, columns in keep.items()
        }


def _code_of(model: Path, carried: bool) -> AbstractContextManager[None]:
    return carried_modules(model / CODE_FOLDER) if carried else nullcontext()


def _score_in_processes(
    model: Path,
    dataset: Dataset,
    keep: Mapping[Split, Sequence[str]],
    processes: int,
    *,
    shards: Shards | None = None,
    carried: bool,
) -> tuple[Task, dict[Split, Scored]]:
    _, task = load_exported_task(model)
    if shards is not None:
        shards.require()
    with TemporaryDirectory(prefix="perennial-scores-") as folder:
        scratch = Path(folder)
        dataset.snapshot.write(scratch / "snapshot")
        request = Request(
            processes=processes,
            sharded=shards is not None,
            model=str(model),
            snapshot=str(scratch / "snapshot"),
            keep=tuple((split, tuple(columns)) for split, columns in keep.items()),
            carried=carried,
        )
        score = score_in_processes if shards is None else shards.score
        found = score(MODULE, request, len(keep), scratch / "processes")
        return task, {
            split: read_together([ScoreFiles.from_json(text) for text in texts])
            for split, texts in zip(keep, found, strict=True)
        }


def main() -> int:
    """Score this process's rows of the request's splits; returns the exit code."""
    return score_share(Request, _scores)


def _scores(request: Request, share: Share, folder: Path) -> Iterator[ScoreFiles]:
    dataset = Dataset(Snapshot.read(Path(request.snapshot)))
    with _code_of(Path(request.model), request.carried):
        task, model = load_shared(Path(request.model), share)
        for split, columns in request.keep:
            batches = share_batches(task, model, dataset, split, share, keep=columns)
            yield write_scores(batches, folder / split.value)
