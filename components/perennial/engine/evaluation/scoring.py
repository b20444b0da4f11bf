"""Scoring: computes a model's losses and predictions on a split, streamed, in file order.

Several processes give the same result as one, bit for bit: each scores its share of the rows.
What is computed goes to files batch by batch, so memory does not grow with the rows.
"""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypeVar, cast

import numpy as np
import polars as pl
import polars.selectors as cs
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from perennial.clients.outages import is_outage
from perennial.contracts.data import Split
from perennial.contracts.errors import BadDataError, ShardingError
from perennial.contracts.section import Section
from perennial.engine.metrics.arrays import array_of, parts_of
from perennial.engine.metrics.metric import Floats
from perennial.engine.task import LABEL, WEIGHT, Batch, Task, inputs_of, to_device

if TYPE_CHECKING:  # a served model predicts through this module, where no dataset is
    from perennial.data.dataset import Dataset
    from perennial.engine.world.distributed import World

Numbers = TypeVar("Numbers", Tensor, Floats)
ARRAYS = ("losses", "predictions", "labels", "weights")
ROWS_FILE = "rows.arrow"
ROWS_AT_ONCE = 2**16
"""Kept rows are written so many at a time: each read has a fixed cost."""


@dataclass(frozen=True)
class ScoredBatch:
    """Losses and predictions of a model on some examples.

    Attributes:
        losses: Loss of each example, shape [N].
        predictions: In the form of the task's `kind`, shape [N] or [N, C]; for `statistic`, its
            statistics, shape [N] or [N, K].
        labels: Encoded labels, shape [N]; for `statistic`, the weights.
        weights: Weight of each example, shape [N]; 1 where the batch has no `weight`.
    """

    losses: Floats
    predictions: Floats
    labels: Floats
    weights: Floats

    def mean_loss(self) -> float:
        """Return the weighted mean loss over all examples."""
        return float(self.weights @ self.losses / self.weights.sum())

    def metrics(self, task: Task) -> dict[str, float]:
        """Return the task's metrics and `loss` over all examples; undefined ones are left out."""
        return task.score(self.predictions, self.labels) | {"loss": self.mean_loss()}

    def metric(self, task: Task, name: str) -> float:
        """Return one of the task's metrics, or `loss`.

        Raises:
            UndefinedMetricError: the examples do not define it.
        """
        if name == "loss":
            return self.mean_loss()
        return task.measure(name, self.predictions, self.labels)

    def at(self, rows: "slice | NDArray[np.bool_]") -> "ScoredBatch":
        """Return the scores of a subset of the examples: of a slice, views of them."""
        arrays = (getattr(self, name) for name in ARRAYS)
        if isinstance(rows, slice):
            return ScoredBatch(*(values[rows] for values in arrays))
        return ScoredBatch(*(array_of(v[part][rows[part]] for part in parts_of(v)) for v in arrays))


@dataclass(frozen=True)
class Scored(ScoredBatch):
    """Scores of a model on the rows of a split, with the requested columns of these rows."""

    rows: pl.DataFrame


@dataclass(frozen=True)
class Share:
    """One process's share of the rows of a split: contiguous, in whole batches.

    Attributes:
        world: The processes that score these rows with one sharded model; None for a whole one.
    """

    rank: int
    size: int
    world: "World | None" = None

    def of(self, rows: int, batch: int) -> slice:
        """Return start and end of the share; it may be empty."""
        batches = -(-rows // batch)
        start, stop = (
            min(rows, n * batches // self.size * batch) for n in (self.rank, self.rank + 1)
        )
        return slice(start, stop)


# Failures of this machine, unrelated to the model.
MACHINE_FAILURES = (MemoryError, OSError, torch.OutOfMemoryError, torch.AcceleratorError)
# PyTorch's allocator for CPUs raises a plain RuntimeError.
OUT_OF_CPU_MEMORY = "can't allocate memory"


def blames_machine(error: Exception) -> bool:
    """Whether scoring failed for a reason unrelated to the model."""
    if isinstance(error, (*MACHINE_FAILURES, ShardingError)) or is_outage(error):
        return True
    return OUT_OF_CPU_MEMORY in str(error)


def scoring_device() -> torch.device:
    """Return the device of a single process: the first GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model that is whole on one; the CPU for one without tensors."""
    tensors = chain(model.parameters(), model.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def score_split(
    task: Task, model: nn.Module, dataset: "Dataset", split: Split, *, keep: Sequence[str] = ()
) -> Scored:
    """Score every row of a split.

    The model is whole, on one device, to which the rows are moved. The columns `keep` are
    returned with the scores, for blocks and slices.

    Raises:
        BadDataError: the split has no rows.
    """
    with TemporaryDirectory(prefix="perennial-scores-") as folder:
        batches = _scored_batches(task, model, dataset, split, keep=keep)
        return read_together([write_scores(batches, Path(folder) / "0")])


def share_batches(
    task: Task,
    model: nn.Module,
    dataset: "Dataset",
    split: Split,
    share: Share,
    *,
    keep: Sequence[str] = (),
) -> Iterator[Scored]:
    """Yield the scores of one process's rows of a split, batch by batch; nothing if it has none.

    Processes do not communicate: each streams its own rows. Joined in their order, the scores equal
    those of `score_split` in a single process bit for bit, because the batches are the same.

    Of processes with one sharded model, the first yields all; others take part in its passes.
    """
    part = share.of(dataset.count(split), batch_rows(task, dataset))
    batches = _scored_batches(task, model, dataset, split, keep=keep, part=part)
    if share.world is None or share.world.is_first:
        return batches
    for _ in batches:
        pass
    return iter(())


class ScoreFiles(Section):
    """Scores on some rows: a file of float64 for each array, and one of the kept columns."""

    folder: str
    rows: int
    shapes: dict[str, tuple[int, ...]]
    """Shape of one row of each array; empty if there are no rows."""


def write_scores(batches: Iterable[ScoredBatch], folder: Path) -> ScoreFiles:
    """Append each batch to the files of a new folder; memory holds few batches."""
    folder.mkdir(parents=True)
    rows, shapes = 0, {}
    with ExitStack() as stack:
        files = {name: stack.enter_context((folder / name).open("wb")) for name in ARRAYS}
        kept = stack.enter_context(_RowWriter(folder / ROWS_FILE))
        for batch in batches:
            for name, file in files.items():
                array = np.ascontiguousarray(getattr(batch, name), dtype=np.float64)
                array.tofile(file)
                shapes[name] = array.shape[1:]
            if isinstance(batch, Scored):
                kept.append(batch.rows)
            rows += len(batch.losses)
    return ScoreFiles(folder=str(folder), rows=rows, shapes=shapes)


class _RowWriter:
    """A file of Arrow's that frames are appended to, uncompressed so that it can be mapped."""

    def __init__(self, file: Path) -> None:
        self._path = file
        self._frames: list[pl.DataFrame] = []
        self._writer: pa.RecordBatchStreamWriter | None = None

    def __enter__(self) -> "_RowWriter":
        return self

    def append(self, frame: pl.DataFrame) -> None:
        if frame.width:
            # Categories may be others in each frame. Those inside of lists stay: a stream replaces
            # them from frame to frame, which Arrow's file format refuses.
            self._frames.append(frame.cast({cs.categorical() | cs.enum(): pl.String}))
        if sum(each.height for each in self._frames) >= ROWS_AT_ONCE:
            self._flush()

    def _flush(self) -> None:
        table = pl.concat(self._frames, rechunk=True).to_arrow(compat_level=pl.CompatLevel.newest())
        if self._writer is None:
            self._writer = pa.ipc.new_stream(self._path, table.schema)
        self._writer.write_table(table)
        self._frames = []

    def __exit__(self, *_: object) -> None:
        if self._frames:
            self._flush()
        if self._writer is not None:
            self._writer.close()


def read_together(parts: Sequence[ScoreFiles]) -> Scored:
    """Return the scores of all processes, in order: views of files, which may be deleted then.

    Raises:
        BadDataError: there are no rows.
    """
    rows = sum(part.rows for part in parts)
    if not rows:
        raise BadDataError(
            "the split has no rows, so nothing can be scored",
            action="look at the snapshot's split_rows and the split section of the contract",
        )
    first = Path(parts[0].folder)
    # Mapped before the files are deleted below; the mappings keep their content.
    frames = [_read_rows(Path(part.folder) / ROWS_FILE) for part in parts]
    for part in parts[1:]:
        for name in ARRAYS:
            with (first / name).open("ab") as whole, (Path(part.folder) / name).open("rb") as rest:
                shutil.copyfileobj(rest, whole)
        # One by one, so that the disk never holds all scores twice.
        shutil.rmtree(part.folder)
    shapes = next(part.shapes for part in parts if part.rows)
    # Plain views: reading through the memmap subclass costs several times as much.
    losses, predictions, labels, weights = (
        np.asarray(np.memmap(first / name, np.float64, "r", shape=(rows, *shapes[name])))
        for name in ARRAYS
    )
    kept = pl.concat([frame for frame in frames if frame.width] or frames[:1], rechunk=False)
    return Scored(losses, predictions, labels, weights, kept)


def rows_in_file(frames: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Return all rows as one frame that is mapped from a file, not held in memory."""
    with TemporaryDirectory(prefix="perennial-rows-") as folder:
        file = Path(folder) / ROWS_FILE
        with _RowWriter(file) as writer:
            for frame in frames:
                writer.append(frame)
        return _read_rows(file)


def _read_rows(file: Path) -> pl.DataFrame:
    if not file.exists():
        return pl.DataFrame()
    with pa.memory_map(str(file)) as mapped:
        return cast("pl.DataFrame", pl.from_arrow(pa.ipc.open_stream(mapped).read_all()))


def batch_rows(task: Task, dataset: "Dataset") -> int:
    """Return the number of rows of each forward pass over a split."""
    return dataset.batch_rows(task.scoring_rows, task.scored_together)


def _scored_batches(
    task: Task,
    model: nn.Module,
    dataset: "Dataset",
    split: Split,
    *,
    keep: Sequence[str],
    part: "slice | None" = None,
) -> Iterator[Scored]:
    device = device_of(model)
    size, together = task.scoring_rows, task.scored_together
    for rows in dataset.batches(split, size, together=together, part=part):
        batch = to_device(task.encode(rows), device)
        found = score_batch(task, model, batch)
        kept = rows.select(list(dict.fromkeys(keep)))
        yield Scored(found.losses, found.predictions, found.labels, found.weights, kept)


def score_in_parts(task: Task, model: nn.Module, batch: Batch) -> ScoredBatch:
    """Score an encoded batch of any size, as many examples at a time as the task allows."""
    size = task.scoring_rows
    starts = range(0, len(batch[LABEL]), size)
    parts = [
        {name: tensor[start : start + size] for name, tensor in batch.items()} for start in starts
    ]
    return concatenated([score_batch(task, model, part) for part in parts])


def score_batch(task: Task, model: nn.Module, batch: Batch) -> ScoredBatch:
    """Score one encoded batch."""
    with torch.no_grad():
        output, predictions = predict_batch(task, model, batch)
        losses = task.losses(output, batch)
        weights = batch.get(WEIGHT, torch.ones_like(losses))
    measures = task.kind == "statistic"
    arrays = (losses, predictions, weights if measures else take_one_each(batch[LABEL]), weights)
    return ScoredBatch(*(value.detach().double().cpu().numpy() for value in arrays))


def take_one_each(labels: Numbers) -> Numbers:
    """Return labels of shape [B, 1], which losses compare with such outputs, as [B].

    That is the form of predictions. Labels of several numbers each stay as they are.
    """
    return labels.reshape(-1) if all(side == 1 for side in labels.shape[1:]) else labels


def predict_batch(
    task: Task, model: nn.Module, batch: Batch, *, is_served: bool = False
) -> tuple[Tensor, Tensor]:
    """Return the output on one encoded batch, and the task's predictions (or statistics).

    The batch needs a label for kind `statistic` alone, unless predictions are served.
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(**inputs_of(batch)).float()  # bfloat16 under autocast
            if task.kind == "statistic" and not (is_served and task.serves_predictions):
                return output, task.statistic(output, batch)
            return output, task.predict(output)
    finally:
        model.train(training)


def concatenated(parts: Sequence[ScoredBatch]) -> ScoredBatch:
    """Concatenate the scores of several batches."""
    return ScoredBatch(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ARRAYS)
    )
