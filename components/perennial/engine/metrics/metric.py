"""Metric: a figure of predictions against labels, with an error where it is undefined.

All figures are of all rows at once, never means over batches or processes. Those that `add_up` also
follow from the sums of any parts of the rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.contracts.errors import PerennialError
from perennial.contracts.training import Direction
from perennial.engine.metrics.arrays import all_finite, parts_of

Floats: TypeAlias = NDArray[np.float64]
EXACT_ROWS = 2**20
"""Of more rows, metrics of an order are binned (`binned`), and pictures show evenly spaced rows."""
Kind = Literal["binary", "multiclass", "regression", "statistic"]
STATISTIC: frozenset[Kind] = frozenset({"statistic"})
Groups: TypeAlias = tuple[NDArray[np.int64], int]
"""In which of so many groups each row is, to sum the groups apart."""
Sums: TypeAlias = Callable[[Floats, Floats, Groups], Floats]
"""Predictions, labels, groups → sums of each group, shape [G, K]."""
Figure: TypeAlias = Callable[[Floats], Floats]
"""Sums [..., K] → the metric [...]; NaN where they do not define it."""
Whole: TypeAlias = Callable[[Floats, Floats], float]
"""Predictions, labels → the metric; NaN where they do not define it."""
Binned: TypeAlias = Callable[[Floats, Floats], tuple[Sums, Figure]]
"""Predictions, labels → sums over bins of them, and the metric of these sums."""


class UndefinedMetricError(PerennialError):
    """The metric is undefined on these rows."""


@dataclass(frozen=True)
class Metric:
    """One metric of the catalogue.

    Attributes:
        name: In contracts and tasks.
        direction: Which way it is better.
        kinds: Of the tasks that can be measured by it.
        meaning: For people, with its convention and source.
        needs: What the rows must have for it to be defined.
        sums: Of groups of rows; None where the figure needs all rows at once.
        figure: From the sums.
        whole: From all rows, where there are no sums.
        binned: In place of `whole`, for more than `EXACT_ROWS` rows.
        adds_up: Whether the sums of parts of the rows, each made alone, add up to those of all.
        statistics: For kind `statistic`: the names of the columns that it reads.
        optional: Of those that it reads besides, where a task names them.
    """

    name: str
    direction: Direction
    kinds: frozenset[Kind]
    meaning: str
    needs: str
    sums: Sums | None = None
    figure: Figure | None = None
    whole: Whole | None = None
    binned: Binned | None = None
    adds_up: bool = True
    statistics: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    def measure(self, predictions: Floats, labels: Floats) -> float:
        """Compute the figure of all rows; NaN only if a prediction or a label is not finite.

        Args:
            predictions: In the form of the task's kind.
            labels: Of the same rows; for `statistic`, their weights.

        Raises:
            UndefinedMetricError: the rows do not define it.
        """
        if not (all_finite(predictions) and all_finite(labels)):
            return math.nan
        if self.binned is not None and len(labels) > EXACT_ROWS:
            return self.over(predictions, labels).measure(predictions, labels)
        value = math.nan
        if len(labels) and self.whole is not None:
            value = self.whole(predictions, labels)
        elif len(labels) and self.sums is not None and self.figure is not None:
            value = float(self.figure(self.summed(predictions, labels, one_group(labels)))[0])
        if math.isnan(value):
            raise UndefinedMetricError(
                f"{self.name} is undefined on these {len(labels):,} rows",
                evidence=f"it needs {self.needs}",
                action="measure it on more rows, or choose another metric",
            )
        return value

    def over(self, predictions: Floats, labels: Floats) -> "Metric":
        """Return the metric of so many rows: in bins, where there are too many to sort at once."""
        if self.binned is None or len(labels) <= EXACT_ROWS:
            return self
        sums, figure = self.binned(predictions, labels)
        return replace(self, sums=sums, figure=figure, whole=None, binned=None, adds_up=True)

    def summed(self, predictions: Floats, labels: Floats, groups: Groups) -> Floats:
        """Add up each group, shape [G, K], in memory that does not grow with the rows.

        Those that do not add up are of all rows at once.
        """
        if self.sums is None:
            raise ValueError(f"{self.name} has no sums")
        index, count = groups
        if not self.adds_up:
            return self.sums(predictions, labels, groups)
        parts = (
            self.sums(predictions[part], labels[part], (index[part], count))
            for part in parts_of(predictions)
        )
        return reduce(np.add, parts)

    def read_from(self, names: Sequence[str]) -> tuple[str, ...]:
        """Return the statistics that it reads of a task that names these."""
        return (*self.statistics, *(name for name in self.optional if name in names))

    def reading(self, names: Sequence[str]) -> "Metric":
        """Read statistics whose columns have these names; columns may come repeatedly.

        The metric then gets them as [N, times, columns].
        """
        own = self.read_from(names)
        places = [[at for at, name in enumerate(names) if name == each] for each in own]

        def select(statistics: Floats) -> Floats:
            table = statistics[:, None] if statistics.ndim == 1 else statistics
            return np.stack([table[:, at] for at in places], axis=-1)

        sums, whole = self.sums, self.whole
        return replace(
            self,
            sums=None if sums is None else lambda p, y, groups: sums(select(p), y, groups),
            whole=None if whole is None else lambda p, y: whole(select(p), y),
        )


def one_group(labels: Floats) -> Groups:
    """Put all rows into one group."""
    return np.broadcast_to(np.int64(0), len(labels)), 1


def added(values: Floats, groups: Groups) -> Floats:
    """Add up each group's values, shape [G]."""
    index, count = groups
    if count == 1:
        return np.array([values.sum()])  # pairwise, so nearly exact
    return np.bincount(index, weights=values, minlength=count).astype(np.float64)


def ratio(numerator: Floats, denominator: Floats) -> Floats:
    """Divide elementwise; NaN where there is nothing to divide by."""
    filled = denominator > 0
    return np.where(filled, numerator / np.where(filled, denominator, 1.0), np.nan)


def mean_of_defined(values: Floats, axis: int) -> Floats:
    """Average over an axis without NaN; NaN where there is nothing else."""
    known = ~np.isnan(values)
    return ratio(np.where(known, values, 0.0).sum(axis=axis), known.sum(axis=axis))


def mean_of(values: Callable[[Floats, Floats], Floats]) -> tuple[Sums, Figure]:
    """Sums and figure of a mean over rows."""

    def sums(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
        mine = values(predictions, labels)
        return np.stack([added(mine, groups), added(np.ones(len(mine)), groups)], axis=-1)

    return sums, first_by_second


def first_by_second(sums: Floats) -> Floats:
    """Divide the first of two sums by the second."""
    return ratio(sums[..., 0], sums[..., 1])
