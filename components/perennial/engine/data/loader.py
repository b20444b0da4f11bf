"""Loader: prepares this rank's part of every global batch ahead of the loop.

A batch is a function of its position in the stream of data and of the rank, so a loader has no
state to save: any position can be loaded at any time.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch

from perennial.contracts.errors import BadTaskError
from perennial.engine.config.training import Loading
from perennial.engine.data.batching import BatchPlan, Indices, RowOrder
from perennial.engine.data.encoded import EncodedRows
from perennial.engine.reproducibility import derived_seed
from perennial.engine.task import ANSWERS, LABEL, WEIGHT, Batch, Task


@dataclass(frozen=True)
class RankBatch:
    """One rank's part of an update.

    Attributes:
        rows: Indices in the split, to identify a bad batch.
        weight: Weight of the whole global batch: number of rows, or the sum of their weights.
    """

    micro_batches: list[Batch]
    rows: Indices
    weight: float

    @property
    def divisor(self) -> float:
        """Return what makes sums over the global batch means; sums of rows that weigh 0 stay 0."""
        return self.weight or 1.0


@dataclass(frozen=True)
class Encoding:
    """What streamed rows cost a process, measured.

    Attributes:
        seconds_per_row: To read and encode a row, in one process.
        rows_per_step: Rows of this process in an update.
        workers: Processes that encode beside this one.
    """

    seconds_per_row: float
    rows_per_step: int
    workers: int


class Loader:
    """Gathers, augments and pins batches; with `prefetch_batches`, in threads of its own."""

    def __init__(
        self,
        task: Task,
        data: EncodedRows,
        order: RowOrder,
        plan: BatchPlan,
        data_rank: int,
        *,
        seed: int,
        loading: Loading,
        augments: bool = True,
    ) -> None:
        self.plan = plan
        self._task = task
        self._data = data
        self._order = order
        self._data_rank = data_rank
        self._seed = seed
        self._pin_memory = bool(loading.pin_memory)
        self._augments = augments and type(task).augment is not Task.augment
        self._share = plan.share(data_rank)
        self._slices = [
            slice(part.start - self._share.start, part.stop - self._share.start)
            for part in plan.micro_batches(data_rank)
        ]
        depth = loading.prefetch_batches
        self._ahead = _Ahead(self.gather, depth, loading.workers) if depth else None

    def batch(self, position: int) -> RankBatch:
        """Return the batch at a position: the update's number plus skipped batches."""
        return self._ahead.get(position) if self._ahead else self.gather(position)

    def gather(self, position: int) -> RankBatch:
        """Compute the batch at a position in the calling thread."""
        start = position * self.plan.global_size
        rows, examples = self._gather_share(position)
        weight = self._weigh(start, examples)  # before `augment`, which may change tensors in place
        generator = None
        if self._augments:
            generator = torch.Generator()
            # The 1 keeps these seeds apart from those of `StepRandomness`, which have a 0.
            generator.manual_seed(derived_seed(self._seed, self._data_rank, position, 1))
        micro_batches = [
            self._micro_batch(start, rows[part], batch, generator)
            for part, batch in zip(self._slices, examples, strict=True)
        ]
        return RankBatch(micro_batches, rows, weight)

    def encoding(self) -> Encoding | None:
        """Return what encoding has cost so far; None where rows are resident."""
        return None

    def close(self) -> None:
        """Stop the threads."""
        if self._ahead:
            self._ahead.close()

    def _weigh(self, start: int, examples: Sequence[Batch]) -> float:
        """Return the weight of the whole global batch, which begins at `start`."""
        size, weights = self.plan.global_size, self._data.weights
        if weights is None:
            return float(size)
        return float(weights[self._order.indices(start, size)].sum(dtype=np.float64))

    def _gather_share(self, position: int) -> tuple[Indices, list[Batch]]:
        """Return this rank's rows at a position, and the examples of each forward pass."""
        start = position * self.plan.global_size + self._share.start
        rows = self._order.indices(start, self._share.stop - self._share.start)
        return rows, [self._data.gather(rows[part]) for part in self._slices]

    def _micro_batch(
        self, start: int, rows: Indices, batch: Batch, generator: torch.Generator | None
    ) -> Batch:
        if not len(rows):
            # A sharded model's passes are collectives: a rank without rows takes part with one
            # of weight 0.
            rows = self._order.indices(start, 1)
            batch = {**self._data.gather(rows), WEIGHT: torch.zeros(1)}
        if generator is not None:
            batch = self._augmented(batch, generator)
        if self._data.answers is not None:
            batch[ANSWERS] = torch.from_numpy(self._data.answers[rows])
        if self._pin_memory:
            batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
        return batch

    def _augmented(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Augment a batch; the answers of teachers hold for single rows with their labels.

        Raises:
            BadTaskError: the augmentation changes labels, as mixtures do, and there are answers.
        """
        label = batch[LABEL].clone() if self._data.answers is not None else None
        batch = self._task.augment(batch, generator)
        if label is not None:
            require_kept(label, batch[LABEL], self._task)
        return batch


def require_kept(before: torch.Tensor, after: torch.Tensor, task: Task) -> None:
    """Refuse augmentation that changes labels: teachers have answered for the rows as they are.

    Raises:
        BadTaskError: it does.
    """
    if before.shape != after.shape or not torch.equal(before, after.to(before.dtype)):
        raise BadTaskError(
            f"{type(task).__name__}.augment changes labels, as mixtures of rows do, but teachers "
            "answer for single rows",
            evidence=f"labels {list(before.shape)} became {list(after.shape)}"
            if before.shape != after.shape
            else f"{int((before != after).sum())} of {before.numel()} labels differ",
            action="turn mixup and cutmix off, or remove [training.distillation]",
        )


class _Ahead:
    """Computes the next batches ahead, each in one of a few threads."""

    def __init__(self, gather: Callable[[int], RankBatch], depth: int, workers: int) -> None:
        self._gather = gather
        self._depth = depth
        self._threads = ThreadPoolExecutor(workers, "loader")
        self._coming: dict[int, Future[RankBatch]] = {}

    def get(self, position: int) -> RankBatch:
        if position not in self._coming:  # the first call, or the stream was moved
            self.forget()
        for ahead in range(position, position + self._depth + 1):
            if ahead not in self._coming:
                self._coming[ahead] = self._threads.submit(self._gather, ahead)
        return self._coming.pop(position).result()

    def forget(self) -> None:
        for batch in self._coming.values():
            batch.cancel()
        self._coming.clear()

    def close(self) -> None:
        self.forget()
        self._threads.shutdown()
