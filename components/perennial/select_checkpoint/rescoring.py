"""Rescoring: score checkpoints, and means of them, on every validation row.

Rows are streamed. Each row's loss, prediction, label and weight go to disk batch by batch, so
memory grows neither with the rows nor with the number of candidates.
"""

import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path

import polars as pl
from torch import nn

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import CheckpointRecord, TrainingResult
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model, load_checkpoint_models
from perennial.engine.evaluation.resampling import Blocks, blocks_of
from perennial.engine.evaluation.scoring import (
    ScoredBatch,
    Share,
    scoring_device,
    share_batches,
)
from perennial.engine.task import Task
from perennial.select_checkpoint.figures_on_disk import Found, read_together, write_figures
from perennial.select_checkpoint.means import mean_model
from perennial.select_checkpoint.processes import (
    Machine,
    Request,
    Steps,
    score_in_processes,
    worthwhile,
)
from perennial.select_checkpoint.running_statistics import (
    normalizations,
    renew,
    sampled_rows,
    training_batches,
)


class Rescoring:
    """The kept weights of one training on the validation rows of one snapshot.

    Args:
        training: Folder of the `TrainingResult`.
        snapshot: Folder of the `Snapshot`.
        scratch: Folder for scores while they are compared.
        processes: Number of processes; None for as many as save time.
    """

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
        data, rows = self.dataset.snapshot.data, self.dataset.scan(Split.VALIDATION)
        names = [name for name in (data.time, data.group) if name]
        # Only row numbers if there are no blocks: a text label would fill the memory.
        columns = names or pl.repeat(0, pl.len(), dtype=pl.Int8).alias("row")
        return blocks_of(self.dataset.collect(rows.select(columns)), data)

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
                processes = worthwhile(Machine.here(), self.result.world_size, seconds)
        if left:
            training, snapshot = self._inputs
            request = Request(
                training=training, snapshot=snapshot, work=tuple(left), processes=processes
            )
            folder = self._scratch / f"processes-{next(self._numbers)}"
            yield from map(_whole, score_in_processes(request, folder))

    def share(self, steps: Steps, share: Share, folder: Path) -> Found:
        """Write one process's scores of these weights, and their moving average, to a folder."""
        return Found(
            figures=tuple(
                write_figures(
                    share_batches(task, model, self.dataset, Split.VALIDATION, share),
                    folder / f"{number}",
                    averaged=averaged,
                )
                for number, (averaged, task, model) in enumerate(self._models(steps))
            )
        )

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
            renew(model, training_batches(task, self._training_rows, scoring_device()))


def _whole(shares: Sequence[Found]) -> list[tuple[bool, ScoredBatch]]:
    """Merge the scores of all processes."""
    return [
        (parts[0].averaged, read_together(parts))
        for parts in zip(*(share.figures for share in shares), strict=True)
    ]
