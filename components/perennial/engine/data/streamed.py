"""Streamed split: rows that are encoded when they are needed, block by block."""

import logging
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import override

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.config.training import Loading
from perennial.engine.data.batching import BatchPlan, Indices, Run, StreamOrder
from perennial.engine.data.block_workers import BlockWorkers, ComingBlock
from perennial.engine.data.blocks import BlockEncoder, RowBlock
from perennial.engine.data.encoded import EncodedRows, EncodedSplit
from perennial.engine.data.loader import Encoding, Loader, RankBatch
from perennial.engine.task import WEIGHT, Batch, Task

_KEPT_OPEN = 4
_ATTEMPTS = 3
_IN_WORK = 2  # blocks given to each process: one in work, and one that waits for it
_MOST_TURNS = 16  # batches gathered at once
_TURN_BYTES = 2 * 2**20  # of them together, which a processor's cache holds
_ORDERED_BYTES = 64 * 2**20  # of blocks kept in memory in the order in which their rows are used
_Arrays = dict[str, NDArray[Any]]
logger = logging.getLogger(__name__)


class StreamedSplit(EncodedRows):
    """The rows of a split in file order, of which only blocks in use are encoded.

    Without workers, the thread that asks encodes.
    """

    weights = None

    def __init__(
        self, blocks: Sequence[RowBlock], encoder: BlockEncoder, workers: BlockWorkers | None = None
    ) -> None:
        self.blocks = blocks
        self.block_rows = np.array([block.rows for block in blocks], dtype=np.int64)
        self.rows = int(self.block_rows.sum())
        self.encode_seconds, self.encoded_rows = 0.0, 0  # measured, of all processes
        self._base = np.cumsum(self.block_rows) - self.block_rows
        self._encoder = encoder
        self._workers = workers
        self._open: OrderedDict[int, _Arrays] = OrderedDict()
        self._coming: dict[int, ComingBlock] = {}
        self._lock = threading.RLock()
        self._ordered: dict[tuple[int, int], _Arrays] = {}
        self._form: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self._has_moved = True

    @property
    def has_weights(self) -> bool:
        """Whether examples have weights of their own; known once some were gathered."""
        return WEIGHT in self._form

    @property
    def num_workers(self) -> int:
        """Return the number of processes that encode; 0 where this one does."""
        return self._workers.count if self._workers else 0

    @property
    def _has_helpers(self) -> bool:
        return self._workers is not None and self._workers.is_ready

    def gather(self, rows: Indices) -> Batch:
        """Return the examples at these indices, as new tensors.

        Raises:
            BadDataError: a row group is damaged or was rewritten.
            BadTaskError: the task's `encode` raised, or breaks its contract.
        """
        block = np.searchsorted(self._base, rows, "right") - 1
        edges = np.unique([0, *(np.flatnonzero(np.diff(block)) + 1), len(rows)])
        arrays = self._arrays(np.unique(block).tolist())
        local = rows - self._base[block]
        batch = {
            name: np.empty((len(rows), *shape), dtype)
            for name, (dtype, shape) in self._form.items()
        }
        for start, stop in pairwise(edges):
            source = arrays[int(block[start])]
            for name, target in batch.items():
                # `clip` lets NumPy write into `out` without a copy; the indices are in range.
                source[name].take(local[start:stop], 0, out=target[start:stop], mode="clip")
        return {name: torch.from_numpy(array) for name, array in batch.items()}

    def gather_turns(self, runs: Sequence[Run], turns: int, count: int) -> tuple[Indices, Batch]:
        """Return the indices and examples of several batches' shares, shape [turns, count, ...].

        Raises:
            BadDataError: a row group is damaged or was rewritten.
            BadTaskError: the task's `encode` raised, or breaks its contract.
        """
        arrays = self._taken(runs)
        rows = np.empty((turns, count), dtype=np.int64)
        batch = {
            name: np.empty((turns, count, *shape), dtype)
            for name, (dtype, shape) in self._form.items()
        }
        for slots, group in groupby(zip(runs, arrays, strict=True), lambda pair: pair[0].slots):
            found = list(group)
            rows[:, slots] = _lane([self._base[run.block] + run.rows for run, _ in found], turns)
            for name, target in batch.items():
                target[:, slots] = _lane([each[name] for _, each in found], turns)
        return rows, {name: torch.from_numpy(array) for name, array in batch.items()}

    def row_bytes(self) -> int:
        """Return the bytes of an encoded row; 0 before one was gathered."""
        return sum(dtype.itemsize * math.prod(shape) for dtype, shape in self._form.values())

    def expect(self, following: Callable[[int], Sequence[int]]) -> None:
        """Encode ahead, if a block has been opened since the last call.

        `following` returns the blocks that are needed next, soonest first, at most so many.
        """
        if self._workers is None or not self._has_helpers or not self._has_moved:
            return
        with self._lock:
            self._has_moved = False
            self._begin(following(_IN_WORK * self._workers.count))

    def close(self) -> None:
        """End the processes that encode."""
        if self._workers:
            self._workers.close()

    def _taken(self, runs: Sequence[Run]) -> list[_Arrays]:
        """Return the tensors of each run's rows.

        Small blocks are put into an epoch's order as a whole while the processor has them at hand:
        batches then read on where the one before ended (benchmarks/results/streaming.md).
        """
        used = {(run.epoch, run.block): run.order for run in runs}
        known = {key: self._ordered[key] for key in used if key in self._ordered}
        fresh = [key for key in used if key not in known]
        mapped = self._arrays(list(dict.fromkeys(block for _, block in fresh)))
        rows = sum(int(self.block_rows[block]) for _, block in used)
        if rows * self.row_bytes() > _ORDERED_BYTES:
            self._ordered = {}
            mapped |= self._arrays(list(dict.fromkeys(block for _, block in known)))
            return [_take(mapped[run.block], run.rows) for run in runs]
        self._ordered = known | {
            (epoch, block): _take(mapped[block], used[epoch, block]) for epoch, block in fresh
        }
        return [
            {name: array[run.places] for name, array in self._ordered[run.epoch, run.block].items()}
            for run in runs
        ]

    def _arrays(self, numbers: Sequence[int]) -> dict[int, _Arrays]:
        """Return the tensors of these blocks; the ones that other batches use stay mapped."""
        with self._lock:
            found = {number: self._mapped(number) for number in numbers if number in self._open}
            missing = [number for number in numbers if number not in found]
            while missing:
                # Processes encode from the beginning, and this one from the end.
                self._begin(missing)
                left = [number for number in missing if number not in self._coming]
                # A block that a process has is waited for, not cancelled: in a pool that breaks
                # while a future is cancelled, others wait permanently.
                number = (left or missing[:1])[-1]
                missing.remove(number)
                if missing and not self._has_helpers:
                    self._encoder.read_ahead(self.blocks[missing[-1]])
                found[number] = self._mapped(number)
            # Those that a lane has just left may still be in a batch that another thread gathers.
            while len(self._open) > len(numbers) + _KEPT_OPEN:
                self._open.popitem(last=False)
            return found

    def _begin(self, numbers: Sequence[int]) -> None:
        """Give blocks to the processes, as many as they have work for."""
        if self._workers is None or not self._has_helpers:
            return
        free = _IN_WORK * self._workers.count
        free -= sum(not each.seconds.done() for each in self._coming.values())
        fresh = [each for each in numbers if each not in self._open and each not in self._coming]
        for number in fresh[: max(free, 0)]:
            self._coming[number] = self._workers.submit(self.blocks[number])

    def _mapped(self, number: int) -> _Arrays:
        if number in self._open:
            self._open.move_to_end(number)
            return self._open[number]
        block = self.blocks[number]
        tensors = self._encoded(number, block)
        arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
        self._require_form(arrays, block)
        self._open[number] = arrays
        self._has_moved = True
        return arrays

    def _encoded(self, number: int, block: RowBlock) -> Batch:
        key = self._encoder.key(block)
        # Another process of the machine may evict it before it is mapped.
        for _ in range(_ATTEMPTS):
            is_new = self._finish(number, block)
            tensors = self._encoder.cache.load(key, is_new=is_new)
            if tensors is not None:
                return tensors
        raise PerennialError(
            f"an encoded block cannot be read back after {_ATTEMPTS} attempts",
            evidence=f"{self._encoder.place_of(block)}; the cache is {self._encoder.cache.folder}",
            action="raise training.loading.cache_gib, or look at the disk: what was written there "
            "is gone or altered",
        )

    def _finish(self, number: int, block: RowBlock) -> bool:
        """Put a block into the cache; return whether it was encoded just now."""
        coming = self._coming.pop(number, None)
        if self._workers is None or coming is None:
            seconds = self._encoder(block)
        else:
            seconds = self._workers.finish(block, coming, self._encoder.place_of(block))
        if seconds:
            self.encode_seconds += seconds
            self.encoded_rows += block.rows
        return seconds > 0

    def _require_form(self, arrays: _Arrays, block: RowBlock) -> None:
        form = {name: (array.dtype, array.shape[1:]) for name, array in sorted(arrays.items())}
        self._form = self._form or form
        if form != self._form:
            raise BadTaskError(
                "encode changes the shape or type of its tensors between batches",
                evidence=f"first {self._form}, then {form} in {self._encoder.place_of(block)}",
                action="pad or cut to one size: shapes may not depend on the other rows",
            )


def _take(arrays: _Arrays, rows: NDArray[np.int32]) -> _Arrays:
    # The indices are in range; `clip` lets NumPy leave out the test of each.
    return {name: array.take(rows, 0, mode="clip") for name, array in arrays.items()}


def _lane(parts: Sequence[NDArray[Any]], turns: int) -> NDArray[Any]:
    """Return rows that several batches take from neighbouring slots, shape [turns, slots, ...]."""
    rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
    return rows.reshape(turns, -1, *rows.shape[1:])


class SampledSplit(EncodedSplit):
    """A split of which only some rows were encoded: those that evaluations score.

    Args:
        sample: Their row indices in the split, ascending.
        rows: Rows of the whole split.
    """

    def __init__(self, batch: Batch, sample: Indices, rows: int) -> None:
        super().__init__(batch)
        self._sample = sample
        self.rows = rows

    def gather(self, rows: Indices) -> Batch:
        """Return the examples at these indices of the split, which must be in the sample."""
        places = np.searchsorted(self._sample, rows)
        if not np.array_equal(self._sample[np.minimum(places, len(self._sample) - 1)], rows):
            raise KeyError("rows outside of the encoded sample")
        return super().gather(places)


class StreamedLoader(Loader):
    """Gathers batches from a streamed split, and names the blocks that are needed next.

    `total` adds up a number of all data ranks; all of them call it together.
    """

    def __init__(
        self,
        task: Task,
        data: StreamedSplit,
        plan: BatchPlan,
        data_rank: int,
        *,
        seed: int,
        loading: Loading,
        total: Callable[[float], float],
        augments: bool = True,
    ) -> None:
        order = StreamOrder(data.block_rows, seed, plan.global_size, loading.shuffle_rows)
        if order.lanes < plan.data_size:
            logger.warning(
                "only %d row blocks are mixed at a time, for %d data ranks, so that ranks read the "
                "same ones: raise training.loading.shuffle_rows to %d",
                *(order.lanes, plan.data_size, plan.data_size * data.rows // len(data.blocks)),
            )
        self._stream = order
        self._streamed = data
        self._total = total
        self._gathered: dict[int, tuple[Indices, Batch]] = {}
        self._gathering = threading.Lock()
        super().__init__(
            task, data, order, plan, data_rank, seed=seed, loading=loading, augments=augments
        )

    def batch(self, position: int) -> RankBatch:
        """Return the batch at a position; the ranks add up its weight where rows have weights."""
        found = super().batch(position)
        if not self._streamed.has_weights:
            return found
        return replace(found, weight=self._total(found.weight))

    @override
    def _gather_share(self, position: int) -> tuple[Indices, list[Batch]]:
        size, share = self.plan.global_size, self._share
        start, count = position * size + share.start, share.stop - share.start
        row_bytes = self._streamed.row_bytes()
        most = min(_MOST_TURNS, _TURN_BYTES // (count * row_bytes)) if count * row_bytes else 1
        if most > 1:
            with self._gathering:
                if position not in self._gathered:
                    self._gather_turns(position, start, most)
                rows, batch = self._gathered.pop(position)
            parts = [{name: each[part] for name, each in batch.items()} for part in self._slices]
            return rows, parts
        if not count:  # a rank without rows learns of one whether rows have weights
            self._streamed.gather(self._stream.indices(start, 1))
        found = super()._gather_share(position)
        self._streamed.expect(partial(self._stream.blocks_after, start, count))
        return found

    def _gather_turns(self, position: int, start: int, most: int) -> None:
        """Gather this rank's rows at a position, and at those that follow."""
        count = self._share.stop - self._share.start
        # Threads may ask for the second of two positions first.
        turns = 1 if position + 1 in self._gathered else self._stream.turns(start, most)
        runs = list(self._stream.runs(start, count, turns))
        rows, batch = self._streamed.gather_turns(runs, turns, count)
        near = range(position - _MOST_TURNS, position + _MOST_TURNS)
        self._gathered = {each: old for each, old in self._gathered.items() if each in near} | {
            position + turn: (rows[turn], {name: each[turn] for name, each in batch.items()})
            for turn in range(turns)
        }
        last = start + (turns - 1) * self.plan.global_size
        self._streamed.expect(partial(self._stream.blocks_after, last, count))

    @override
    def encoding(self) -> Encoding | None:
        data, rows = self._streamed, self._share.stop - self._share.start
        if not data.encoded_rows:
            return None
        return Encoding(data.encode_seconds / data.encoded_rows, rows, data.num_workers)

    @override
    def _weigh(self, start: int, examples: Sequence[Batch]) -> float:
        """Return the weight of the own rows, where rows have weights."""
        if not self._streamed.has_weights:
            return float(self.plan.global_size)
        weights = [part[WEIGHT].numpy() for part in examples]
        return float(sum(each.sum(dtype=np.float64) for each in weights))
