"""Resampling: how uncertain a metric is, when the rows of one day or group are not independent.

Every interval comes from one paired bootstrap over whole blocks: each draw takes the blocks with
replacement and recomputes the metric of every model on the same draw.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import stdtrit

from components.contracts.data import DataSection
from components.contracts.gate import Interval
from components.contracts.training import Direction
from components.engine.evaluation.metrics import log_losses
from components.engine.evaluation.scoring import Scored
from components.engine.task import Task

Floats: TypeAlias = NDArray[np.float64]
Counts: TypeAlias = NDArray[np.float64]
"""How often each draw takes each block, shape [R, B]."""
Recompute: TypeAlias = Callable[[Counts], Floats]
"""Counts [R, B] → the metric of each draw [R]."""

# The pair counts of the ROC area are a B x B matrix; longer histories are cut into as many blocks
# of several adjacent days, which only makes intervals more honest.
MAX_BLOCKS = 400
# A metric without a fast form is recomputed row by row. At 200 draws the standard error is itself
# known to within 5% (1 / sqrt(2 x 200)).
SLOW_DRAWS = 200
SEED = 0  # fixed: equal data must give an equal decision


@dataclass(frozen=True)
class Blocks:
    """Which block each of N rows belongs to.

    Attributes:
        index: In [0, count), shape [N].
        count: Number of blocks, B.
        unit: What one block is, for people.
    """

    index: NDArray[np.int64]
    count: int
    unit: Literal["day", "group", "row"]

    def draws(self, resamples: int) -> Counts:
        """The counts of a fixed sequence of draws."""
        generator = np.random.default_rng(SEED)
        shares = np.full(self.count, 1.0 / self.count)
        return generator.multinomial(self.count, shares, size=resamples).astype(np.float64)

    def at(self, selected: NDArray[np.bool_]) -> "Blocks":
        """The blocks of some of the rows, renumbered without gaps."""
        kept, index = np.unique(self.index[selected], return_inverse=True)
        return Blocks(index.astype(np.int64), len(kept), self.unit)


def block_columns(data: DataSection) -> tuple[str, ...]:
    """The columns that `blocks_of` needs; the label, which always exists, tells the row count."""
    return tuple(name for name in (data.label, data.time, data.group) if name)


def blocks_of(rows: pl.DataFrame, data: DataSection) -> Blocks:
    """Days where rows have a time, else groups, else the rows themselves."""
    if data.time:
        dates = rows[data.time].dt.date().to_physical()
        # Rows without a time share one block, a day before all others.
        earliest = cast("int | None", dates.min())
        days = dates.fill_null(0 if earliest is None else earliest - 1).to_numpy().astype(np.int64)
        span = int(days.max() - days.min()) + 1 if len(days) else 1
        labels = (days - days.min()) // math.ceil(span / MAX_BLOCKS)
        unit: Literal["day", "group", "row"] = "day"
    elif data.group:
        groups = rows[data.group].cast(pl.String).fill_null("")
        labels, unit = groups.rank("dense").to_numpy().astype(np.int64), "group"
    else:
        labels, unit = np.arange(rows.height), "row"
    kept, index = np.unique(labels, return_inverse=True)
    if len(kept) > MAX_BLOCKS:
        # Independent units may be pooled at random without changing the variance.
        pool = np.random.default_rng(SEED).permutation(len(kept)) % MAX_BLOCKS
        return Blocks(pool[index].astype(np.int64), MAX_BLOCKS, unit)
    return Blocks(index.astype(np.int64), len(kept), unit)


def sign_of(direction: Direction) -> float:
    """Turns a difference into an improvement."""
    return 1.0 if direction == "maximize" else -1.0


def standard_error(values: Floats, blocks: Blocks) -> float:
    """Of a statistic, from its values over the draws.

    The bootstrap divides by B where a sample's variance divides by B - 1; with few blocks this
    matters (Hesterberg, What Teachers Should Know About the Bootstrap, 2015, section 4).
    """
    if blocks.count < 2:
        return math.inf
    return float(values.std(ddof=1)) * math.sqrt(blocks.count / (blocks.count - 1))


def interval(estimate: float, values: Floats, blocks: Blocks, confidence: float) -> Interval | None:
    """Bounds that each hold with the given confidence; None where one block allows none.

    A Student interval on the bootstrap's standard error: percentile intervals are too narrow when
    blocks are few (same source).
    """
    if blocks.count < 2:
        return None
    margin = float(stdtrit(blocks.count - 1, confidence)) * standard_error(values, blocks)
    return Interval(estimate=estimate, low=estimate - margin, high=estimate + margin)


def resample(task: Task, metric: str, scored: Scored, blocks: Blocks, draws: Counts) -> Floats:
    """A metric (or `loss`) on every draw, shape [R].

    Known metrics have a fast form; it is used only if it gives the task's own figure on all rows,
    so a task may define a metric of the same name differently.
    """
    own = scored.metrics(task)[metric]
    fast = _fast_form(task, metric, scored, blocks)
    if fast is not None:
        value = float(fast(np.ones((1, blocks.count)))[0])
        if math.isclose(value, own, rel_tol=1e-6, abs_tol=1e-9):
            return fast(draws)
    return _row_by_row(task, metric, scored, blocks, draws[:SLOW_DRAWS])


def _row_by_row(task: Task, metric: str, scored: Scored, blocks: Blocks, draws: Counts) -> Floats:
    values = np.empty(len(draws))
    for number, counts in enumerate(draws):
        rows = np.repeat(np.arange(len(scored.labels)), counts[blocks.index].astype(np.int64))
        values[number] = task.score(scored.predictions[rows], scored.labels[rows])[metric]
    return values


def _fast_form(task: Task, metric: str, scored: Scored, blocks: Blocks) -> Recompute | None:
    labels, predictions = scored.labels, scored.predictions
    if metric == "loss":
        return _mean(scored.losses, blocks, scored.weights)
    if task.kind == "statistic":
        return _of_means(task, metric, scored, blocks)
    if task.kind == "regression":
        return _regression(metric, predictions - labels, labels, blocks)
    return _classification(metric, predictions, labels, blocks)


def _classification(
    metric: str, predictions: Floats, labels: Floats, blocks: Blocks
) -> Recompute | None:
    if metric == "roc_auc":
        by_class = predictions if predictions.ndim == 2 else predictions[:, None]
        first = 1 if predictions.ndim == 1 else 0
        areas = [
            _roc_auc(scores, labels == number, blocks)
            for number, scores in enumerate(by_class.T, start=first)
        ]
        return lambda counts: np.stack([area(counts) for area in areas]).mean(axis=0)
    if metric == "log_loss":
        return _mean(log_losses(predictions, labels), blocks)
    if metric == "accuracy":
        chosen = predictions > 0.5 if predictions.ndim == 1 else predictions.argmax(axis=1)
        return _mean((chosen == labels).astype(np.float64), blocks)
    return None


def _sums(values: Floats, blocks: Blocks) -> Floats:
    return np.bincount(blocks.index, weights=values, minlength=blocks.count).astype(np.float64)


def _mean(values: Floats, blocks: Blocks, weights: Floats | None = None) -> Recompute:
    weights = np.ones_like(values) if weights is None else weights
    sums, sizes = _sums(weights * values, blocks), _sums(weights, blocks)
    return lambda counts: _ratio(counts @ sums, counts @ sizes)


def _of_means(task: Task, metric: str, scored: Scored, blocks: Blocks) -> Recompute | None:
    """What a metric is of one example that has the weighted mean of all statistics.

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


def _regression(metric: str, errors: Floats, labels: Floats, blocks: Blocks) -> Recompute | None:
    squared = _mean(errors**2, blocks)
    if metric == "rmse":
        return lambda counts: np.sqrt(squared(counts))
    if metric == "mae":
        return _mean(np.abs(errors), blocks)
    if metric != "r2":
        return None
    # Centred first: the variance of a label far from zero would cancel.
    centred = labels - labels.mean()
    first, second = _mean(centred, blocks), _mean(centred**2, blocks)
    return lambda counts: 1.0 - _ratio(squared(counts), second(counts) - first(counts) ** 2)


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
        return _ratio(ordered, (counts @ positives) * (counts @ negatives), empty=0.5)

    return area


def _ratio(numerator: Floats, denominator: Floats, empty: float = 0.0) -> Floats:
    """Elementwise; `empty` where a draw left nothing to divide by."""
    filled = denominator > 0
    return np.where(filled, numerator / np.where(filled, denominator, 1.0), empty)
