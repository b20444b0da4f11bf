"""Loader: this rank's part of every global batch, ready before the loop asks for it.

A batch is a function of its position in the stream of data and of the rank, so a loader has no
state to save: it can be asked for any position at any time.
"""

import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from components.engine.data.batching import BatchPlan, GlobalOrder, Indices
from components.engine.data.encoded import EncodedSplit
from components.engine.reproducibility import derived_seed
from components.engine.task import WEIGHT, Batch, Task


@dataclass(frozen=True)
class RankBatch:
    """One rank's part of an update.

    Attributes:
        micro_batches: One per forward pass, on the host.
        rows: Where they lie in the encoded split, for telling which batch was bad.
        weight: Of the whole global batch: rows, or the sum of their weights.
    """

    micro_batches: list[Batch]
    rows: Indices
    weight: float


class Loader:
    """Gathers, augments and pins batches; with `prefetch_batches`, in a thread of its own.

    Args:
        task: For its `augment`.
        split: The encoded training split.
        order: The stream of its rows.
        plan: How a global batch is divided.
        data_rank: Which part is this process's.
        seed: Of the augmentation.
        prefetch_batches: Batches ready ahead of the loop.
        pin_memory: Whether batches lie in page-locked memory.
    """

    def __init__(
        self,
        task: Task,
        split: EncodedSplit,
        order: GlobalOrder,
        plan: BatchPlan,
        data_rank: int,
        *,
        seed: int,
        prefetch_batches: int,
        pin_memory: bool,
    ) -> None:
        self.plan = plan
        self._task = task
        self._split = split
        self._order = order
        self._data_rank = data_rank
        self._seed = seed
        self._pin_memory = pin_memory
        self._augments = type(task).augment is not Task.augment
        self._generator = torch.Generator()
        self._ahead = _Ahead(self.gather, prefetch_batches) if prefetch_batches else None

    def batch(self, position: int) -> RankBatch:
        """The batch at a position of the stream: the update's number plus what was left out."""
        return self._ahead.get(position) if self._ahead else self.gather(position)

    def gather(self, position: int) -> RankBatch:
        """The same, computed now."""
        size = self.plan.global_size
        rows = self._order.indices(position * size, size)
        weights = self._split.weights
        weight = float(size) if weights is None else float(weights[rows].sum(dtype=np.float64))
        if self._augments:
            self._generator.manual_seed(derived_seed(self._seed, self._data_rank, position, 1))
        slices = self.plan.micro_batches(self._data_rank)
        return RankBatch(
            [self._micro_batch(rows, part) for part in slices],
            rows[self.plan.share(self._data_rank)],
            weight,
        )

    def close(self) -> None:
        """Let the thread end."""
        if self._ahead:
            self._ahead.close()

    def _micro_batch(self, rows: Indices, part: slice) -> Batch:
        batch = self._split.gather(rows[part] if part.start < part.stop else rows[:1])
        if part.start == part.stop:
            # A sharded model's passes are collectives: a rank without rows takes part with one
            # that counts nothing.
            batch[WEIGHT] = torch.zeros(1)
        if self._augments:
            batch = self._task.augment(batch, self._generator)
        if self._pin_memory:
            batch = {name: tensor.pin_memory() for name, tensor in batch.items()}
        return batch


class _Ahead:
    """Computes the batches after the one last asked for."""

    def __init__(self, gather: Callable[[int], RankBatch], depth: int) -> None:
        self._gather = gather
        self._depth = depth
        self._ready: queue.Queue[tuple[int, RankBatch | BaseException]] = queue.Queue()
        self._wanted: queue.Queue[int | None] = queue.Queue()
        self._next = -1  # the position that will be asked for, if all goes its usual way
        self._asked = -1
        self._thread = threading.Thread(target=self._work, name="loader", daemon=True)
        self._thread.start()

    def get(self, position: int) -> RankBatch:
        if position != self._next:  # the first call, or the stream was moved
            self._asked = position - 1
        while self._asked < position + self._depth:
            self._asked += 1
            self._wanted.put(self._asked)
        self._next = position + 1
        while True:
            found, batch = self._ready.get()
            if isinstance(batch, BaseException):
                raise batch
            if found == position:
                return batch

    def close(self) -> None:
        self._wanted.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (position := self._wanted.get()) is not None:
            try:
                self._ready.put((position, self._gather(position)))
            except BaseException as error:  # raised where the batch is asked for
                self._ready.put((position, error))
