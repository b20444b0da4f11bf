"""Batching: which rows belong to which update, and which of them to which rank?

The training data is an endless stream: one permutation of all rows after the other, each from
(seed, epoch) alone. Update s takes positions s·G to (s+1)·G, whatever the number of processes, so
the only state is the step, and every row is seen exactly once per epoch.
"""

import numpy as np
from numpy.typing import NDArray

from components.contracts.errors import BadDataError

Indices = NDArray[np.int64]


class GlobalOrder:
    """The endless stream of row indices.

    Args:
        rows: Rows of the training split.
        seed: Determines every epoch's permutation.
    """

    def __init__(self, rows: int, seed: int) -> None:
        if rows < 1:
            raise BadDataError("the training split is empty", action="check the split's settings")
        self.rows = rows
        self._seed = seed
        self._epoch = -1
        self._permutation: Indices = np.empty(0, dtype=np.int64)

    def indices(self, start: int, count: int) -> Indices:
        """Row indices at the positions from `start` on."""
        parts = []
        while count > 0:
            epoch, offset = divmod(start, self.rows)
            part = self._order(epoch)[offset : offset + count]
            parts.append(part)
            start += len(part)
            count -= len(part)
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def share(self, step: int, global_batch_size: int, rank: int, world_size: int) -> Indices:
        """The rows of one update that one rank computes: an equal, contiguous part."""
        size = global_batch_size // world_size
        return self.indices(step * global_batch_size + rank * size, size)

    def _order(self, epoch: int) -> Indices:
        if epoch != self._epoch:
            self._permutation = np.random.default_rng([self._seed, epoch]).permutation(self.rows)
            self._epoch = epoch
        return self._permutation


def fixed_sample(rows: int, size: int | None, seed: int) -> Indices:
    """The rows that every evaluation scores, in file order."""
    if size is None or size >= rows:
        return np.arange(rows, dtype=np.int64)
    return np.sort(np.random.default_rng([seed]).choice(rows, size, replace=False))
