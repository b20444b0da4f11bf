"""Stream order: the order of rows where only a few blocks of the split are at hand at a time.

A block is a run of rows that are read together. Each epoch permutes the blocks and the rows inside
each block, lays them end to end, and cuts that line into lanes that are walked at the same time.
Slot j of every global batch belongs to one lane, so that

- a global batch is a function of the seed, the position and the global batch size alone;
- each row is used exactly once per epoch;
- one rank's contiguous share of the slots touches its share of the lanes, and so of the blocks.

The guarantee is the one that MosaicML Streaming names elastic determinism.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perennial.contracts.errors import BadDataError
from perennial.engine.data.batching import Indices

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
        turn, slot = np.divmod(positions, self.global_size)
        lane = self._lane_of[slot]
        line = self._starts[lane] + turn * self._width[lane] + slot - self._first[lane]
        order, edges = self._epoch(epoch)
        place = np.searchsorted(edges, line, "right") - 1
        rows = np.empty(len(line), dtype=np.int64)
        # Slots of one lane are neighbours, so rows of one block are.
        cuts = [0, *(np.flatnonzero(np.diff(place)) + 1).tolist(), len(line)]
        for start, stop in pairwise(cuts):
            block, begin = int(order[place[start]]), edges[place[start]]
            permutation = self._permutation(epoch, block)
            rows[start:stop] = self._base[block] + permutation[line[start:stop] - begin]
        return rows

    def _line_up(self, epoch: int) -> tuple[Indices, Indices]:
        """Return an epoch's blocks in their order, and where each begins on the line."""
        order = np.random.default_rng([self._seed, epoch]).permutation(self._used)
        lengths = self._block_rows[order]
        return order, np.cumsum(lengths) - lengths

    def _permute(self, epoch: int, block: int) -> NDArray[np.int32]:
        # One more, because a seed's trailing zeros count nothing: [1, 2] is [1, 2, 0].
        random = np.random.default_rng([self._seed, epoch, block + 1])
        return random.permutation(self._block_rows[block]).astype(np.int32)
