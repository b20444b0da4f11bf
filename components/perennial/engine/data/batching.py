"""Batching: assigns rows to updates, and the rows of an update to ranks.

The training data is an endless stream: one permutation of all rows after the other, each from
(seed, epoch) alone. Update s takes positions s·G to (s+1)·G for any number of processes, so the
only state is the step, and every row is used exactly once per epoch.

Where only a few blocks of the split are at hand at a time (`StreamOrder`), each epoch permutes the
blocks, runs of rows that are read together, and the rows inside each block, lays them end to end,
and cuts that line into lanes that are walked at the same time. Slot j of every global batch belongs
to one lane, so that

- a global batch is a function of the seed, the position and the global batch size alone;
- each row is used exactly once per epoch;
- one rank's contiguous share of the slots touches its share of the lanes, and so of the blocks.

The guarantee is the one that MosaicML Streaming names elastic determinism.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perennial.contracts.errors import BadDataError

Indices = NDArray[np.int64]


class RowOrder(Protocol):
    """The endless stream of row indices, a function of seed and position."""

    def indices(self, start: int, count: int) -> Indices:
        """Return the row indices at `count` positions from `start` on."""


class GlobalOrder:
    """The endless stream of row indices."""

    def __init__(self, rows: int, seed: int) -> None:
        if rows < 1:
            raise BadDataError("the training split is empty", action="check the split's settings")
        self.rows = rows
        self._seed = seed
        self._newest: tuple[int, Indices] = (-1, np.empty(0, dtype=np.int64))

    def indices(self, start: int, count: int) -> Indices:
        """Return the row indices at `count` positions from `start` on."""
        parts = []
        while count > 0:
            epoch, offset = divmod(start, self.rows)
            part = self._order(epoch)[offset : offset + count]
            parts.append(part)
            start += len(part)
            count -= len(part)
        # None at all where a batch has fewer rows than there are ranks.
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def _order(self, epoch: int) -> Indices:
        # Taken and replaced whole: several threads may ask for different epochs.
        known, permutation = self._newest
        if known != epoch:
            permutation = np.random.default_rng([self._seed, epoch]).permutation(self.rows)
            self._newest = (epoch, permutation)
        return permutation


@dataclass(frozen=True)
class Run:
    """Rows of one block, for neighbouring slots of consecutive batches.

    Attributes:
        slots: Slots of a rank's share.
        order: Indices of all rows of the block, in the epoch's order.
        places: Places in that order of the rows that are meant, ascending, batch after batch.
    """

    slots: slice
    epoch: int
    block: int
    order: NDArray[np.int32]
    places: slice | Indices

    @property
    def rows(self) -> NDArray[np.int32]:
        """Return the rows' indices in the block."""
        return self.order[self.places]


MIN_LANES = 8
"""Blocks that are mixed at least, however many rows each has; a first batch waits for them."""


class StreamOrder:
    """The endless stream of row indices, in an order that needs few blocks at a time.

    Args:
        block_rows: Rows of each block, in file order; row indices count through them.
        seed: Determines the permutations of every epoch.
        global_size: Rows of a global batch.
        shuffle_rows: Rows of the blocks that are at hand at the same time, over all ranks.
    """

    def __init__(self, block_rows: Indices, seed: int, global_size: int, shuffle_rows: int) -> None:
        self.rows = int(block_rows.sum())
        if self.rows < 1:
            raise BadDataError("the training split is empty", action="check the split's settings")
        self.global_size = global_size
        self._seed = seed
        self._block_rows = block_rows
        self._base = np.cumsum(block_rows) - block_rows
        self._used = np.flatnonzero(block_rows)
        mean = self.rows / len(self._used)
        self.lanes = min(max(round(shuffle_rows / mean), MIN_LANES), global_size, len(self._used))
        # Slots of lane l: from edges[l] to edges[l + 1]; its rows are those of all its slots.
        edges = np.arange(self.lanes + 1) * global_size // self.lanes
        self._first, self._width = edges[:-1], np.diff(edges)
        # A slot stays in its lane: with the position modulo lanes, a rank would need every lane
        # where the batch size is not a multiple of them.
        self._lane_of = np.repeat(np.arange(self.lanes), self._width)
        turns, rest = divmod(self.rows, global_size)
        lengths = turns * self._width + np.clip(rest - self._first, 0, self._width)
        self._starts = np.concatenate([[0], np.cumsum(lengths)])
        self._epoch = lru_cache(maxsize=4)(self._line_up)
        self._permutation = lru_cache(maxsize=2 * self.lanes + 2)(self._permute)

    def indices(self, start: int, count: int) -> Indices:
        """Return the row indices at `count` positions from `start` on."""
        parts = [self._rows_at(epoch, positions) for epoch, positions in self._epochs(start, count)]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])

    def turns(self, start: int, most: int) -> int:
        """Return how many consecutive batches to gather at once, from one with this start on.

        At most so many, of one epoch, and so that they need few blocks more than one batch.
        """
        left = (self.rows - start % self.rows) // self.global_size
        block_turns = int(self.rows / len(self._used) / self._width.max())
        return max(min(most, left, block_turns), 1)

    def runs(self, start: int, count: int, turns: int) -> Iterator[Run]:
        """Yield the rows of several batches' shares, by slots and blocks.

        Args:
            start: First position of a rank's share of the first batch.
            count: Rows of the share.
            turns: Number of batches; of several, all are in one epoch.
        """
        slot = 0
        for epoch, positions in self._epochs(start, count):
            lane, line = self._lines(positions)
            for first, last in pairwise(_cuts(lane)):
                width = int(self._width[lane[first]])
                # A lane's lines ascend from batch to batch: it needs blocks that are neighbours.
                lines = range(line[first], line[last - 1] + (turns - 1) * width + 1)
                slots = slice(slot + first, slot + last)
                for block, edge, part in self._blocks_of(epoch, lines):
                    places: slice | Indices = slice(part.start - edge, part.stop - edge)
                    if turns > 1 and last - first < width:  # not all slots of the lane
                        offsets = (np.arange(part.start, part.stop) - lines.start) % width
                        places = np.flatnonzero(offsets < last - first) + (part.start - edge)
                        if not len(places):
                            continue
                    yield Run(slots, epoch, block, self._permutation(epoch, block), places)
            slot += len(positions)

    def _blocks_of(self, epoch: int, lines: range) -> Iterator[tuple[int, int, range]]:
        """Yield the blocks of neighbouring lines: number, first line, and those of the lines."""
        order, edges = self._epoch(epoch)
        place, begin = int(np.searchsorted(edges, lines.start, "right")) - 1, lines.start
        while begin < lines.stop:
            block, edge = int(order[place]), int(edges[place])
            end = min(lines.stop, edge + int(self._block_rows[block]))
            yield block, edge, range(begin, end)
            begin, place = end, place + 1

    def blocks_after(self, start: int, count: int, most: int) -> list[int]:
        """Return the blocks that these slots of the batch need next, soonest first.

        Args:
            start: First position of a rank's share of a global batch.
            count: Rows of the share.
            most: Number of blocks to name at most.
        """
        epoch, offset = divmod(start, self.rows)
        order, edges = self._epoch(epoch)
        slots = (offset + np.arange(count)) % self.global_size
        turn = offset // self.global_size
        soonest: list[tuple[int, int]] = []
        for lane in np.unique(self._lane_of[slots]):
            here = self._starts[lane] + turn * self._width[lane]
            first, last = np.searchsorted(edges, [here, self._starts[lane + 1] - 1], "right")
            # Of a lane, the next two blocks: the one in use ends where the first of them begins.
            for place in range(first, min(last, first + 2)):
                wait = (edges[place] - here) // self._width[lane]
                soonest.append((int(wait), int(order[place])))
        # The next epoch begins at slot 0 in the middle of a batch: the share has other lanes there.
        order, edges = self._epoch(epoch + 1)
        slots = (start - (epoch + 1) * self.rows + np.arange(count)) % self.global_size
        first_lines = self._starts[np.unique(self._lane_of[slots])]
        wait = self.rows // self.global_size - turn
        for place in np.searchsorted(edges, first_lines, "right") - 1:
            soonest.append((wait, int(order[place])))
        return list(dict.fromkeys(block for _, block in sorted(soonest)))[:most]

    def _epochs(self, start: int, count: int) -> Iterator[tuple[int, Indices]]:
        """Yield the epochs of a range of positions, each with its positions inside the epoch."""
        while count > 0:
            epoch, offset = divmod(start, self.rows)
            part = min(count, self.rows - offset)
            yield epoch, np.arange(offset, offset + part)
            start, count = start + part, count - part

    def _rows_at(self, epoch: int, positions: Indices) -> Indices:
        _, line = self._lines(positions)
        order, edges = self._epoch(epoch)
        place = np.searchsorted(edges, line, "right") - 1
        rows = np.empty(len(line), dtype=np.int64)
        # Slots of one lane are neighbours, so rows of one block are.
        for start, stop in pairwise(_cuts(place)):
            block, begin = int(order[place[start]]), edges[place[start]]
            permutation = self._permutation(epoch, block)
            rows[start:stop] = self._base[block] + permutation[line[start:stop] - begin]
        return rows

    def _lines(self, positions: Indices) -> tuple[Indices, Indices]:
        """Return the lane of each position of an epoch, and its place on the line."""
        turn, slot = np.divmod(positions, self.global_size)
        lane = self._lane_of[slot]
        return lane, self._starts[lane] + turn * self._width[lane] + slot - self._first[lane]

    def _line_up(self, epoch: int) -> tuple[Indices, Indices]:
        """Return an epoch's blocks in their order, and where each begins on the line."""
        order = np.random.default_rng([self._seed, epoch]).permutation(self._used)
        lengths = self._block_rows[order]
        return order, np.cumsum(lengths) - lengths

    def _permute(self, epoch: int, block: int) -> NDArray[np.int32]:
        # One more, because a seed's trailing zeros count nothing: [1, 2] is [1, 2, 0].
        random = np.random.default_rng([self._seed, epoch, block + 1])
        return random.permutation(self._block_rows[block]).astype(np.int32)


def _cuts(values: Indices) -> list[int]:
    """Return where runs of equal values begin, and where the last ends."""
    return [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]


@dataclass(frozen=True)
class BatchPlan:
    """Division of a global batch over ranks, then into forward passes.

    Attributes:
        global_size: Rows of an update.
        micro_size: Rows of a forward pass, at most.
        data_size: Groups of processes that hold different rows.
    """

    global_size: int
    micro_size: int
    data_size: int

    @property
    def accumulation_steps(self) -> int:
        """Return the number of forward passes per update, the same on every rank."""
        largest_share = -(-self.global_size // self.data_size)
        return -(-largest_share // self.micro_size)

    @property
    def pass_rows(self) -> int:
        """Return the rows of the largest forward pass."""
        largest_share = -(-self.global_size // self.data_size)
        return -(-largest_share // self.accumulation_steps)

    def share(self, data_rank: int) -> slice:
        """Return one rank's rows of the global batch: contiguous, equal shares."""
        start = data_rank * self.global_size // self.data_size
        return slice(start, (data_rank + 1) * self.global_size // self.data_size)

    def micro_batches(self, data_rank: int) -> list[slice]:
        """Return its forward passes, equal shares; some may be empty."""
        share = self.share(data_rank)
        rows, passes = share.stop - share.start, self.accumulation_steps
        edges = [share.start + index * rows // passes for index in range(passes + 1)]
        return [slice(start, stop) for start, stop in pairwise(edges)]

    def describe(self) -> str:
        """Return the arithmetic as text, for logs and reports."""
        return (
            f"global batch {self.global_size} = {self.data_size} ranks x "
            f"{self.accumulation_steps} passes x up to {self.micro_size} rows"
        )


def fixed_sample(rows: int, size: int | None, seed: int) -> Indices:
    """Return the rows that every evaluation scores, in file order."""
    if size is None or size >= rows:
        return np.arange(rows, dtype=np.int64)
    return np.sort(np.random.default_rng([seed]).choice(rows, size, replace=False))
