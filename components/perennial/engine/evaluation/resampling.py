"""Resampling: uncertainty of a metric when the rows of a day or group are not independent.

Every interval comes from one paired bootstrap over whole blocks: each draw takes the blocks with
replacement and recomputes the metric of every model on the same draw. Errors of adjacent days
correlate: the gate's intervals add what the blocks' influences tell about that (`uncertainty`), the
errors of a checkpoint's selection are those of pairs of adjacent days.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import reduce
from typing import Literal, TypeAlias, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import Direction
from perennial.engine.evaluation.scoring import ScoredBatch
from perennial.engine.metrics.arrays import (
    NUMBERS_AT_ONCE,
    array_of,
    parts_of,
    slices_of,
    sums_by_group,
)
from perennial.engine.metrics.catalogue import find_metric
from perennial.engine.metrics.metric import Metric, UndefinedMetricError, mean_of_defined, ratio
from perennial.engine.task import Task

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.float64]
"""How often each draw takes each block, shape [R, B]."""
Recompute: TypeAlias = Callable[[Counts], Floats]
"""Counts [R, B] → the metric of each draw [R]."""

# The pair counts of the ROC area are a B x B matrix; longer histories are cut into as many blocks
# of several adjacent days, which only widens intervals.
MAX_BLOCKS = 400
# Adjacent days correlate. Single days promote too many challengers that are no better, pairs about
# one in 20 (benchmarks/results/gate_characteristics.md). Under 8 days there are too few pairs.
ADJACENT_DAYS, PAIRED_FROM = 2, 8
# A metric without a fast form is recomputed row by row. At 200 draws of each kind a standard error
# is itself known to within 5% (1 / sqrt(2 x 200)).
SLOW_DRAWS = 400
SEED = 0  # fixed: equal data must give an equal decision


@dataclass(frozen=True)
class Blocks:
    """The block that each of N rows belongs to.

    Attributes:
        index: In [0, count), shape [N].
        count: Number of blocks, B.
        unit: What one block is, for people.
        days: The day of each block, rising, shape [B]; None for consecutive ones.
    """

    index: NDArray[np.int64]
    count: int
    unit: Literal["day", "group", "row"]
    days: NDArray[np.int64] | None = None

    @property
    def time(self) -> Floats:
        """Return the time of each block, shape [B]; adjacent ones are 1 apart."""
        if self.days is None:
            return np.arange(self.count, dtype=np.float64)
        steps = np.diff(self.days)
        return self.days / (float(np.median(steps)) if len(steps) else 1.0)

    @property
    def run(self) -> int:
        """Return the number of adjacent blocks that are drawn together."""
        return ADJACENT_DAYS if self.unit == "day" and self.count >= PAIRED_FROM else 1

    def draws(self, resamples: int) -> Counts:
        """Return the counts of a fixed sequence of draws.

        Where adjacent blocks are drawn together, every second draw does so, so that any beginning
        of the sequence holds both kinds.
        """
        generator = np.random.default_rng(SEED)
        shares = np.full(self.count, 1.0 / self.count)
        counts = generator.multinomial(self.count, shares, size=resamples).astype(np.float64)
        if self.run > 1:
            counts[1::2] = self._adjacent(len(counts[1::2]), generator)
        return counts

    def _adjacent(self, resamples: int, generator: np.random.Generator) -> Counts:
        """Draws of runs on a circle, on which each day is drawn equally often.

        Politis and Romano (1992).
        """
        runs = math.ceil(self.count / self.run)
        starts = generator.integers(0, self.count, (resamples, runs, 1))
        taken = ((starts + np.arange(self.run)) % self.count).reshape(resamples, -1)
        counts = np.zeros((resamples, self.count))
        np.add.at(counts, (np.arange(resamples)[:, None], taken[:, : self.count]), 1.0)
        return counts

    def at(self, selected: NDArray[np.bool_]) -> "Blocks":
        """Return the blocks of some of the rows, renumbered without gaps."""
        kept = np.flatnonzero(self.sizes(selected))
        index = _renumbered(self.index, kept, selected)
        days = self.days[kept] if self.days is not None else kept
        return Blocks(index, len(kept), self.unit, days)

    def sizes(self, selected: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the number of selected rows in each block, shape [B]."""
        parts = parts_of(self.index)
        counts = (np.bincount(self.index[p][selected[p]], minlength=self.count) for p in parts)
        return reduce(np.add, counts)


def block_columns(data: DataSection) -> tuple[str, ...]:
    """Return the columns that `blocks_of` needs; the label, always there, tells the row count."""
    return tuple(name for name in (data.label, data.time, data.group) if name)


def blocks_of(rows: pl.DataFrame, data: DataSection, split: SplitSection) -> Blocks:
    """Return the days of rows, else their groups, else the rows themselves.

    A split by group asks how a model does on groups that it has not seen. There groups are the
    blocks also if rows have a time: every group of the test split occurs on many of its days.
    """
    by_group = split.resolved_method(data) == "group"
    parts = [rows[part] for part in slices_of(rows.height, NUMBERS_AT_ONCE)]
    if data.time and not by_group:
        time = data.time

        def dates() -> Iterator[pl.Series]:
            return (part[time].dt.date().to_physical() for part in parts)

        # Rows without a time share one block, a day before all others.
        days = pl.concat([part.unique() for part in dates()]).unique()
        known = days.drop_nulls()
        missing = cast("int", known.min()) - 1 if len(known) else 0
        first = missing + (not days.null_count())
        length = _block_days(np.unique(days.fill_null(missing).to_numpy().astype(np.int64) - first))
        labels = array_of(
            (part.fill_null(missing).to_numpy().astype(np.int64) - first) // length
            for part in dates()
        )
        unit: Literal["day", "group", "row"] = "day"
    elif data.group:
        groups = [part[data.group].cast(pl.String).fill_null("") for part in parts]
        names = pl.Enum(pl.concat([part.unique() for part in groups]).unique().sort())
        codes = (part.cast(names).to_physical().to_numpy() for part in groups)
        labels, unit = array_of(part.astype(np.int64) for part in codes), "group"
    else:
        labels, unit = np.arange(rows.height), "row"
    # Counted, not sorted: `np.unique` takes more than twice the memory.
    kept = np.flatnonzero(np.bincount(labels))
    index = _renumbered(labels, kept)
    if len(kept) > MAX_BLOCKS:
        # Independent units may be pooled at random without changing the variance.
        pool = np.random.default_rng(SEED).permutation(len(kept)) % MAX_BLOCKS
        return Blocks(pool[index].astype(np.int64), MAX_BLOCKS, unit)
    return Blocks(index, len(kept), unit, kept)


def _block_days(days: NDArray[np.int64]) -> int:
    """Return the fewest days of a block by which distinct days are in `MAX_BLOCKS` at most.

    By the days that have rows: one wrong date in another century must not join all others.
    """
    length = math.ceil(len(days) / MAX_BLOCKS)
    while len(np.unique(days // length)) > MAX_BLOCKS:
        length += 1
    return length


def _renumbered(
    labels: NDArray[np.int64],
    kept: NDArray[np.int64],
    selected: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Return the place of each row's label, or each selected row's, among the kept ones."""
    return array_of(
        np.searchsorted(kept, labels[part] if selected is None else labels[part][selected[part]])
        for part in parts_of(labels)
    )


def sign_of(direction: Direction) -> float:
    """Turns a difference into an improvement."""
    return 1.0 if direction == "maximize" else -1.0


def direction_of(task: Task, metric: str, option: str) -> Direction:
    """Return whether higher or lower values of a metric, or of `loss`, are better.

    Raises:
        PerennialError: the task has no such metric; the option that names it is named.
    """
    if metric == "loss":
        return "minimize"
    if metric not in task.metrics:
        raise PerennialError(
            f"{option} = {metric!r} is not a metric of the task",
            evidence=f"the task's metrics: {', '.join(task.metrics)} and loss",
            action="set one of them, or remove the option",
        )
    return task.metrics[metric]


def standard_error(values: Floats, blocks: Blocks) -> float:
    """Return the standard error of a statistic, from its values over single days and over pairs.

    Adjacent days can only widen it: where pairs happen to vary less than single days, chance made
    them.
    """
    alone = independent_error(values, blocks)
    if blocks.run == 1:
        return alone
    paired = float(values[1::2].std(ddof=1))
    return max(alone, paired * math.sqrt(blocks.count / (blocks.count - blocks.run)))


def independent_error(values: Floats, blocks: Blocks, fitted: int = 0) -> float:
    """Return the standard error if blocks are independent, from the draws of single ones.

    The bootstrap divides by B where a sample's variance divides by B - 1; with few blocks this
    matters (Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 4).

    Args:
        values: One for each of `blocks.draws`, or of its beginning.
        blocks: What was drawn.
        fitted: Coefficients that were fitted to the blocks; each costs one of them.
    """
    left = blocks.count - 1 - fitted
    if left <= 0:
        return math.inf
    # Where `draws` alternates between two kinds, those of single blocks have even places.
    return float(values[:: blocks.run].std(ddof=1)) * math.sqrt(blocks.count / left)


def mean_on_draws(values: Floats, blocks: Blocks, draws: Counts) -> Floats:
    """Return the mean over rows of any quantity, on every draw, shape [R]."""
    return _mean(values, blocks)(draws)


def mean_influences(values: Floats, blocks: Blocks) -> Floats:
    """Return how far each block pulls the mean over rows towards its own, shape [B]."""
    left_out = _mean(values, blocks)(1.0 - np.eye(blocks.count))
    pulls: Floats = (blocks.count - 1) * (float(values.mean()) - left_out)
    return pulls


def resample(task: Task, metric: str, scored: ScoredBatch, blocks: Blocks, draws: Counts) -> Floats:
    """Return a metric (or `loss`) on every draw, shape [R].

    Known metrics have a fast form; it is used only if it gives the task's own figure on all rows,
    so a task may define a metric of the same name differently. A draw that does not define the
    metric, as one of a single class, counts as another one that does.

    Raises:
        UndefinedMetricError: the rows do not define the metric, or no draw does.
    """
    return _defined(metric, _recompute(task, metric, scored, blocks)(draws))


def influences(task: Task, metric: str, scored: ScoredBatch, blocks: Blocks) -> Floats:
    """Return how far each block pulls a metric towards its own, shape [B]: the jackknife.

    Of a mean of equal blocks, each block's mean less that of all. A block without which the metric
    is undefined counts as one without influence.

    Raises:
        UndefinedMetricError: the rows do not define the metric.
    """
    left_out = 1.0 - np.eye(blocks.count)
    recompute = _recompute(task, metric, scored, blocks)
    away = scored.metric(task, metric) - recompute(left_out)
    return (blocks.count - 1) * np.nan_to_num(away)


def _recompute(task: Task, metric: str, scored: ScoredBatch, blocks: Blocks) -> Recompute:
    """Return the fast form where it gives the task's own figure on all rows, else row by row."""
    own = scored.metric(task, metric)
    fast = _fast_form(task, metric, scored, blocks)
    if fast is not None:
        with suppress(
            Exception
        ):  # a task may reject a row of means: of labels, they are no classes
            value = float(fast(np.ones((1, blocks.count)))[0])
            if math.isclose(value, own, rel_tol=1e-6, abs_tol=1e-9):
                return fast
    return lambda counts: _row_by_row(task, metric, scored, blocks, counts[:SLOW_DRAWS])


def _defined(metric: str, values: Floats) -> Floats:
    known = values[~np.isnan(values)]
    if not len(known):
        raise UndefinedMetricError(
            f"{metric} is undefined on every resampling of the rows",
            evidence="the rows that it needs are in too few of the resampled blocks",
            action="measure it on more rows, or choose another metric",
        )
    filled = values.copy()
    # By place alone: where two models lack the same draws, their pairs stay pairs. Within a kind of
    # draw: single blocks and adjacent ones vary differently.
    for kind in (filled[0::2], filled[1::2]):
        missing = np.isnan(kind)
        like = known if missing.all() else kind[~missing]
        kind[missing] = np.resize(like, missing.sum())
    return filled


def _row_by_row(
    task: Task, metric: str, scored: ScoredBatch, blocks: Blocks, draws: Counts
) -> Floats:
    values = np.full(len(draws), np.nan)
    for number, counts in enumerate(draws):
        rows = np.repeat(np.arange(len(scored.labels)), counts[blocks.index].astype(np.int64))
        with suppress(UndefinedMetricError):
            values[number] = task.measure(metric, scored.predictions[rows], scored.labels[rows])
    return values


def _fast_form(task: Task, metric: str, scored: ScoredBatch, blocks: Blocks) -> Recompute | None:
    labels, predictions = scored.labels, scored.predictions
    if metric == "loss":
        return _mean(scored.losses, blocks, scored.weights)
    known = find_metric(metric)
    if (
        known is not None
        and task.kind in known.kinds
        and set(known.statistics) <= set(task.statistics)
    ):
        return _of_catalogue(task.reading(known), predictions, labels, blocks)
    if task.kind == "statistic":
        return _of_means(task, metric, scored, blocks)
    return None


def _of_catalogue(
    metric: Metric, predictions: Floats, labels: Floats, blocks: Blocks
) -> Recompute | None:
    """Compute a metric from the sums of each block; the ROC area from pairs of blocks."""
    metric = metric.over(predictions, labels)
    figure = metric.figure
    if metric.sums is not None and figure is not None:
        sums = metric.summed(predictions, labels, (blocks.index, blocks.count))
        at_once = max(NUMBERS_AT_ONCE // sums.shape[1], 1)
        return lambda counts: np.concatenate(
            [figure(counts[part] @ sums) for part in slices_of(len(counts), at_once)]
        )
    if metric.name != "roc_auc":
        return None
    by_class = predictions if predictions.ndim == 2 else predictions[:, None]
    first = 1 if predictions.ndim == 1 else 0
    areas = [
        _roc_auc(scores, labels == number, blocks)
        for number, scores in enumerate(by_class.T, start=first)
        if 0 < np.count_nonzero(labels == number) < len(labels)
    ]
    # The mean over the classes that a draw has; NaN where it has one only.
    return lambda counts: mean_of_defined(np.stack([area(counts) for area in areas]), axis=0)


def _mean(values: Floats, blocks: Blocks, weights: Floats | None = None) -> Recompute:
    weights = np.broadcast_to(1.0, len(values)) if weights is None else weights
    index, parts = blocks.index, list(parts_of(values))
    sums = sums_by_group(((index[p], weights[p] * values[p]) for p in parts), blocks.count)
    sizes = sums_by_group(((index[p], weights[p]) for p in parts), blocks.count)
    return lambda counts: ratio(counts @ sums, counts @ sizes)


def _of_means(task: Task, metric: str, scored: ScoredBatch, blocks: Blocks) -> Recompute | None:
    """Compute a metric of one example that has the weighted mean of all statistics.

    Perplexity, for instance, is the exponential of the mean loss.
    """
    statistics = scored.predictions
    columns = statistics.reshape(len(statistics), -1)
    means = [_mean(column, blocks, scored.weights) for column in columns.T]
    one = np.ones(1)

    def recompute(counts: Counts) -> Floats:
        drawn = np.stack([mean(counts) for mean in means], axis=1)
        examples = drawn.reshape(len(counts), 1, *statistics.shape[1:])
        return np.array([task.score(example, one)[metric] for example in examples])

    return recompute


def _roc_auc(scores: Floats, positive: NDArray[np.bool_], blocks: Blocks) -> Recompute:
    """Counts of ordered pairs between blocks make the area a quadratic form in the draw."""
    ranks = np.unique(scores, return_inverse=True)[1]
    positive_ranks, positive_blocks = ranks[positive], blocks.index[positive]
    negative_ranks, negative_blocks = ranks[~positive], blocks.index[~positive]
    pairs = np.zeros((blocks.count, blocks.count))
    for block in np.unique(negative_blocks):
        held = np.bincount(negative_ranks[negative_blocks == block], minlength=int(ranks.max()) + 1)
        # A tie counts half.
        below = np.cumsum(held) - 0.5 * held
        pairs[:, block] = np.bincount(
            positive_blocks, weights=below[positive_ranks], minlength=blocks.count
        )
    positives = np.bincount(positive_blocks, minlength=blocks.count)
    negatives = np.bincount(negative_blocks, minlength=blocks.count)

    def area(counts: Counts) -> Floats:
        ordered = np.einsum("rb,rb->r", counts @ pairs, counts)
        return ratio(ordered, (counts @ positives) * (counts @ negatives))

    return area
