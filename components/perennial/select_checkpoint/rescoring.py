"""Rescoring: score checkpoints, and means of them, on every validation row.

Memory grows neither with the rows nor with the number of candidates (`scoring`). Where it saves
time, several processes share the rows, and each scores its own with all weights (`processes`).

Averaged weights get running statistics of their own (`running_statistics`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import ClassVar

import polars as pl
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from perennial.contracts.data import Split
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import CheckpointRecord, Direction, TrainingResult
from perennial.data.dataset import Dataset
from perennial.engine.adapters import base_names, merge_adapter
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model, load_checkpoint_models
from perennial.engine.evaluation.processes import (
    WHOLE,
    Machine,
    ScoringRequest,
    Shards,
    score_in_processes,
)
from perennial.engine.evaluation.resampling import Blocks, blocks_of, sign_of
from perennial.engine.evaluation.running_statistics import (
    normalizations,
    recompute_statistics,
    sampled_rows,
    training_batches,
)
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
from perennial.engine.optimization.parameters import (
    keep_statistics,
    local,
)
from perennial.engine.parallelism.sharded_loading import merge_shards, write_gathered
from perennial.engine.scoring_worker import score_share
from perennial.engine.serving.pyfunc import predict_rows
from perennial.engine.serving.servable import example_rows
from perennial.engine.task import Task
from perennial.engine.world.distributed import World
from perennial.select_checkpoint.config import SelectionSection


def choose_members(
    figures: Mapping[int, float], section: SelectionSection, direction: Direction
) -> list[tuple[int, ...]]:
    """Return the steps of each mean to score, without single checkpoints and duplicates."""
    sign = sign_of(direction)
    newest = sorted(figures, reverse=True)
    best = sorted(figures, key=lambda step: (-sign * figures[step], step))
    asked = (newest[: section.average_last or 0], best[: section.average_best or 0])
    found = [tuple(sorted(steps)) for steps in asked]
    return list(dict.fromkeys(members for members in found if len(members) > 1))


def mean_model(
    records: Sequence[CheckpointRecord], result: TrainingResult, world: World | None = None
) -> tuple[Task, nn.Module]:
    """Return a model with the mean weights of checkpoints; two models are in memory at a time.

    With `world`, they are sharded over its processes.

    Running statistics are averaged too, but do not fit the mean model: compute them again. Counters
    and other integers are those of the newest. A batch normalisation whose statistics are the same
    in all of them was frozen, and is so in the returned model.
    """
    task, model = load_checkpoint_model(records[0].uri, result, world=world)
    # Its tensors are those of the model, so the model itself becomes the mean.
    mean = model.state_dict()
    first = [(each, _statistics(each)) for each in normalizations(model)]
    for number, record in enumerate(records[1:], start=2):
        new = load_checkpoint_model(record.uri, result, world=world)[1].state_dict()
        add_to_mean(mean, new, number)
    for each, before in first:
        if torch.equal(_statistics(each), before):
            keep_statistics(each)
    return task, model


@torch.no_grad()
def add_to_mean(mean: Mapping[str, Tensor], new: Mapping[str, Tensor], count: int) -> None:
    """Make the state of a model the mean of `count` states, one more than before, in place."""
    # Tied weights have several names and one storage, which must be updated once.
    places = {(local(value).data_ptr(), value.shape): name for name, value in mean.items()}
    for name in places.values():
        own, other = local(mean[name]), local(new[name])
        if own.is_floating_point() or own.is_complex():
            # Minus infinity in a mask has no difference to itself: the mean would be NaN.
            own.copy_(torch.where(own == other, own, own.lerp(other, 1.0 / count)))
        else:
            own.copy_(other)


def _statistics(norm: _BatchNorm) -> Tensor:
    return torch.stack([each for each in (norm.running_mean, norm.running_var) if each is not None])


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
    averaged: bool = False
    """Whether the moving average is exported, to `target`, in place of scoring the only weights."""
    inputs: ClassVar[tuple[str, ...]] = ("training", "snapshot")


class Exported(Section):
    """Weights that were exported from shards."""

    weights_sha256: str
    width: int
    """Number of columns of the model's predictions."""


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
        self,
        training: Path,
        snapshot: Path,
        scratch: Path,
        processes: int | None = None,
        *,
        shards: Shards = WHOLE,
        world: World | None = None,
    ) -> None:
        self.result = TrainingResult.read(training)
        self.dataset = Dataset(Snapshot.read(snapshot))
        self._inputs = (str(training), str(snapshot))
        self._scratch = scratch
        self._shards, self._world = shards, world
        self._processes = shards.number if self.is_sharded else processes
        if self.is_sharded:
            shards.require()
        self._numbers = count()  # of folders

    @property
    def is_sharded(self) -> bool:
        """Whether processes divide the weights."""
        return self._shards.number > 1

    def blocks(self) -> Blocks:
        """Return the independent blocks of the validation rows."""
        snapshot = self.dataset.snapshot
        data = snapshot.data
        # The label tells the number of rows if there are no blocks.
        names = [name for name in (data.time, data.group) if name] or [data.label]
        batches = self.dataset.batches(Split.VALIDATION, ROWS_AT_ONCE, columns=names)
        return blocks_of(rows_in_file(batches), data, snapshot.split)

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
            request = self._request(tuple(left), processes)
            for texts in self._in_processes(request, len(left)):
                yield _whole([Found.from_json(text) for text in texts])

    def export_shards(self, steps: Steps, folder: Path, *, averaged: bool) -> Exported:
        """Export weights that no process ever holds as a whole."""
        request = self._request((steps,), self._processes or 1)
        how = {"target": str(folder.resolve()), "averaged": averaged}
        ((text,),) = self._in_processes(request.model_copy(update=how), 1)
        return Exported.from_json(text)

    def _request(self, work: tuple[Steps, ...], processes: int) -> Request:
        training, snapshot = self._inputs
        return Request(
            training=training,
            snapshot=snapshot,
            work=work,
            processes=processes,
            sharded=self.is_sharded,
        )

    def _in_processes(self, request: Request, results: int) -> Iterator[list[str]]:
        folder = self._scratch / f"processes-{next(self._numbers)}"
        score = self._shards.score if self.is_sharded else score_in_processes
        return score(MODULE, request, results, folder)

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
            task, model = load_checkpoint_model(
                records[0].uri, self.result, averaged=True, world=self._world
            )
        else:
            task, model = mean_model(records, self.result, self._world)
        self._renew(task, model)
        return task, model

    def write_export(self, request: Request, world: World) -> Exported:
        """Write the requested weights as an export, by all processes together."""
        (steps,) = request.work
        if len(steps) > 1 or request.averaged:
            task, model = self.untrained(steps, averaged=request.averaged)
        else:
            (record,) = self._records(steps)
            task, model = load_checkpoint_model(record.uri, self.result, world=world)
        width = predict_rows(task, model, example_rows(task, self.dataset)).shape[1]
        adapter = self.result.adapter
        left_out = base_names(model, adapter)
        if adapter is not None and adapter.merge:
            merge_adapter(model, merge_shards)
            left_out = set()
        digest = write_gathered(model, Path(request.target), world, left_out)
        return Exported(weights_sha256=digest, width=width)

    def _models(self, steps: Steps) -> Iterator[tuple[bool, Task, nn.Module]]:
        """Yield a checkpoint's weights and its moving average, if any; or the mean of several."""
        if len(steps) > 1:
            yield False, *self.untrained(steps, averaged=False)
            return
        (record,) = self._records(steps)
        for averaged, task, model in load_checkpoint_models(record.uri, self.result, self._world):
            self._move(model)
            # The stored running statistics are those of the trained weights, not of the average.
            if averaged:
                self._renew(task, model)
            yield averaged, task, model

    def _records(self, steps: Steps) -> list[CheckpointRecord]:
        found = (record for record in self.result.checkpoints if record.step in steps)
        return sorted(found, key=lambda record: record.step)

    @cached_property
    def _training_rows(self) -> pl.DataFrame:
        return sampled_rows(self.dataset)

    def _move(self, model: nn.Module) -> None:
        if self._world is None:  # shards lie where they are needed
            model.to(scoring_device())

    def _renew(self, task: Task, model: nn.Module) -> None:
        self._move(model)
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


def _scores(request: Request, share: Share, folder: Path) -> Iterator[Found | Exported]:
    rescoring = Rescoring(Path(request.training), Path(request.snapshot), folder, world=share.world)
    if share.world is not None and request.target:
        yield rescoring.write_export(request, share.world)
        return
    for number, steps in enumerate(request.work):
        yield rescoring.share(steps, share, folder / f"{number}")
