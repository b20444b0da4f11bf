"""Batching: assigns rows to updates, and the rows of an update to ranks.

The training data is an endless stream: one permutation of all rows after the other, each from
(seed, epoch) alone. Update s takes positions s·G to (s+1)·G for any number of processes, so the
only state is the step, and every row is used exactly once per epoch.
"""

from dataclasses import dataclass
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
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _order(self, epoch: int) -> Indices:
        # Taken and replaced whole: several threads may ask for different epochs.
        known, permutation = self._newest
        if known != epoch:
            permutation = np.random.default_rng([self._seed, epoch]).permutation(self.rows)
            self._newest = (epoch, permutation)
        return permutation


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
