"""Rescoring: score checkpoints, and means of them, on every validation row.

Memory grows neither with the rows nor with the number of candidates (`scoring`). Where it saves
time, several processes share the rows, and each scores its own with all weights (`processes`).
"""

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path

import polars as pl
from torch import nn

from perennial.contracts.data import Split
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import CheckpointRecord, TrainingResult
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model, load_checkpoint_models
from perennial.engine.evaluation.processes import (
    Machine,
    ScoringRequest,
    score_in_processes,
    score_share,
)
from perennial.engine.evaluation.resampling import Blocks, blocks_of
from perennial.engine.evaluation.scoring import (
    ROWS_AT_ONCE,
    ScoredBatch,
    ScoreFiles,
    Share,
    read_together,
    rows_in_file,
    scoring_device,
    share_batches,
    write_scores,
)
from perennial.engine.task import Task
from perennial.select_checkpoint.averaging import (
    mean_model,
    normalizations,
    recompute_statistics,
    sampled_rows,
    training_batches,
)

MODULE = "perennial.select_checkpoint.rescoring"
# Time to import PyTorch and read the snapshot: 4 s measured on two busy cores.
STARTING_SECONDS = 4.0
# The saving must be clear, because the remaining time is an extrapolation.
WORTH = 2.0
Steps = tuple[int, ...]
"""Steps of one checkpoint, or of those whose mean is requested."""


class Request(ScoringRequest):
    """The request to every process."""

    training: str
    """Folder of the `TrainingResult`."""
    snapshot: str
    """Folder of the `Snapshot`."""
    work: tuple[Steps, ...]
    """Weights to score."""


class Found(Section):
    """Scores by one process of a checkpoint's weights, and of their moving average."""

    scores: tuple[ScoreFiles, ...]
    averaged: tuple[bool, ...]
    """Whether each is of the moving average."""


def choose_num_processes(machine: Machine, trained_on: int, seconds: float) -> int:
    """Return the number of processes: one per GPU, or per free core up to the training's number.

    `trained_on` are the training's processes, since a container often sees more cores than it may
    use; `seconds` is the time that one process would need for the rest.
    """
    on_cpu = 1 if machine.gpus else min(trained_on, machine.cores // machine.threads)
    available = max(machine.gpus, on_cpu, 1)
    saved = seconds * (1 - 1 / available)
    return available if saved > WORTH * STARTING_SECONDS else 1


class Rescoring:
    """The kept weights of one training on the validation rows of one snapshot."""

    def __init__(
        self, training: Path, snapshot: Path, scratch: Path, processes: int | None = None
    ) -> None:
        self.result = TrainingResult.read(training)
        self.dataset = Dataset(Snapshot.read(snapshot))
        self._inputs = (str(training), str(snapshot))
        self._scratch = scratch
        self._processes = processes
        self._numbers = count()  # of folders

    def blocks(self) -> Blocks:
        """Return the independent blocks of the validation rows."""
        data = self.dataset.snapshot.data
        # The label tells the number of rows if there are no blocks.
        names = [name for name in (data.time, data.group) if name] or [data.label]
        batches = self.dataset.batches(Split.VALIDATION, ROWS_AT_ONCE, columns=names)
        return blocks_of(rows_in_file(batches), data)

    def scores(self, work: Sequence[Steps]) -> Iterator[list[tuple[bool, ScoredBatch]]]:
        """Yield the scores on all rows of each of the weights and its moving average.

        If the number of processes is not set, the first is scored in this one, and its time decides
        whether several processes save time for the others.
        """
        left = list(work)
        processes = self._processes or 1
        while left and processes == 1:
            started = time.perf_counter()
            folder = self._scratch / f"figures-{next(self._numbers)}"
            yield _whole([self.share(left.pop(0), Share(0, 1), folder)])
            seconds = (time.perf_counter() - started) * len(left)
            if self._processes is None:
                processes = choose_num_processes(Machine.here(), self.result.world_size, seconds)
        if left:
            training, snapshot = self._inputs
            request = Request(
                training=training, snapshot=snapshot, work=tuple(left), processes=processes
            )
            folder = self._scratch / f"processes-{next(self._numbers)}"
            for texts in score_in_processes(MODULE, request, len(left), folder):
                yield _whole([Found.from_json(text) for text in texts])

    def share(self, steps: Steps, share: Share, folder: Path) -> Found:
        """Write one process's scores of these weights, and their moving average, to a folder."""
        scores: list[ScoreFiles] = []
        kinds: list[bool] = []
        for averaged, task, model in self._models(steps):
            batches = share_batches(task, model, self.dataset, Split.VALIDATION, share)
            scores.append(write_scores(batches, folder / f"{len(scores)}"))
            kinds.append(averaged)
        return Found(scores=tuple(scores), averaged=tuple(kinds))

    def untrained(self, steps: Steps, *, averaged: bool) -> tuple[Task, nn.Module]:
        """Return the mean of several checkpoints, or one's moving average, with new statistics."""
        records = self._records(steps)
        if averaged:
            task, model = load_checkpoint_model(records[0].uri, self.result, averaged=True)
        else:
            task, model = mean_model(records, self.result)
        self._renew(task, model)
        return task, model

    def _models(self, steps: Steps) -> Iterator[tuple[bool, Task, nn.Module]]:
        """Yield a checkpoint's weights and its moving average, if any; or the mean of several."""
        if len(steps) > 1:
            yield False, *self.untrained(steps, averaged=False)
            return
        (record,) = self._records(steps)
        for averaged, task, model in load_checkpoint_models(record.uri, self.result):
            model.to(scoring_device())
            if averaged:
                self._renew(task, model)
            yield averaged, task, model

    def _records(self, steps: Steps) -> list[CheckpointRecord]:
        found = (record for record in self.result.checkpoints if record.step in steps)
        return sorted(found, key=lambda record: record.step)

    @cached_property
    def _training_rows(self) -> pl.DataFrame:
        return sampled_rows(self.dataset)

    def _renew(self, task: Task, model: nn.Module) -> None:
        model.to(scoring_device())
        if normalizations(model):
            recompute_statistics(
                model, training_batches(task, self._training_rows, scoring_device())
            )


def _whole(shares: Sequence[Found]) -> list[tuple[bool, ScoredBatch]]:
    """Merge the scores of all processes."""
    together = map(read_together, zip(*(share.scores for share in shares), strict=True))
    return list(zip(shares[0].averaged, together, strict=True))


def main() -> int:
    """Score this process's rows with all weights of the request; returns the exit code."""
    return score_share(Request, _scores)


def _scores(request: Request, share: Share, folder: Path) -> Iterator[Found]:
    rescoring = Rescoring(Path(request.training), Path(request.snapshot), folder)
    for number, steps in enumerate(request.work):
        yield rescoring.share(steps, share, folder / f"{number}")
