"""Binned: metrics of an order of rows, from counts in bins where the rows are too many to sort.

Bins lie between quantiles of evenly spaced rows, and their rows count as tied. The bootstrap then
needs only each block's counts.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.engine.metrics.arrays import parts_of
from perennial.engine.metrics.metric import (
    Binned,
    Figure,
    Floats,
    Groups,
    Sums,
    added,
    mean_of_defined,
    ratio,
)

BINS = 2048
"""Half of them hold equally many rows of the class, half equally many others: ties change a ROC
area by 0.0005 at most, and by about 1e-6 where scores within a bin are spread evenly; the average
precision by about 0.001."""
FEWEST_BINS = 64
"""Of one class among many, each of which has bins of its own."""
SAMPLED = 2**18
Area: TypeAlias = Callable[[Floats, Floats], Floats]
"""Rows of the class, and others, in each bin by rising score [..., H] → the area [...]."""
Edges: TypeAlias = Floats
"""Rising bounds between H bins, shape [H - 1]; a value on one lies above it."""


def binned_ranking(area: Area) -> Binned:
    """Return the mean area over the classes that occur, each against the rest."""

    def binned(predictions: Floats, labels: Floats) -> tuple[Sums, Figure]:
        classes = dict(scores_by_class(predictions))
        bins = max(BINS // len(classes), FEWEST_BINS)
        edges = {}
        for code, scores in classes.items():
            own = sum(int(np.count_nonzero(labels[p] == code)) for p in parts_of(scores))
            if 0 < own < len(labels):
                ours = (scores[p][labels[p] == code] for p in parts_of(scores))
                others = (scores[p][labels[p] != code] for p in parts_of(scores))
                edges[code] = np.union1d(
                    _quantiles(ours, own, bins // 2),
                    _quantiles(others, len(labels) - own, bins // 2),
                )
        return _ranking_sums(edges), _ranking_figure(edges, area)

    return binned


def scores_by_class(predictions: Floats) -> Iterator[tuple[int, Floats]]:
    """Yield each class and its scores [N]; of two classes the second alone."""
    if predictions.ndim == 1:
        yield 1, predictions
    else:
        yield from enumerate(predictions.T)


def _ranking_sums(edges: Mapping[int, Edges]) -> Sums:
    def sums(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
        found = [np.zeros((groups[1], 0))]
        for code, scores in scores_by_class(predictions):
            if code in edges:
                cells = 2 * np.searchsorted(edges[code], scores, side="right") + (labels == code)
                found.append(_counted(cells, 2 * len(edges[code]) + 2, groups))
        return np.concatenate(found, axis=1)

    return sums


def _ranking_figure(edges: Mapping[int, Edges], area: Area) -> Figure:
    stops = np.cumsum([2 * len(each) + 2 for each in edges.values()])[:-1]

    def figure(sums: Floats) -> Floats:
        if not edges:
            return np.full(sums.shape[:-1], np.nan)
        columns = np.split(sums, stops, axis=-1)
        areas = np.stack([area(each[..., 1::2], each[..., ::2]) for each in columns])
        return mean_of_defined(areas, axis=0)

    return figure


def area_under_roc(own: Floats, others: Floats) -> Floats:
    """Return how often a row of the class outranks another, those of one bin half of the time."""
    below = np.cumsum(others, axis=-1) - 0.5 * others
    return ratio((own * below).sum(axis=-1), own.sum(axis=-1) * others.sum(axis=-1))


def area_under_precision(own: Floats, others: Floats) -> Floats:
    """Return the mean precision at each row of the class, that of all rows down to its bin."""
    own, rows = own[..., ::-1], (own + others)[..., ::-1]
    found, taken = np.cumsum(own, axis=-1), np.cumsum(rows, axis=-1)
    precision = found / np.where(taken > 0, taken, 1.0)
    return ratio((own * precision).sum(axis=-1), own.sum(axis=-1))


def binned_median(values: Callable[[Floats, Floats], Floats]) -> Binned:
    """Return the median over rows of a value: the mean of all values in its bin.

    Exact where they are equal, as errors of whole numbers are; the middle of a bin is not one.
    """

    def binned(predictions: Floats, labels: Floats) -> tuple[Sums, Figure]:
        def every() -> Iterator[Floats]:
            return (values(predictions[part], labels[part]) for part in parts_of(predictions))

        edges = _quantiles(every(), len(labels), BINS)
        count = len(edges) + 1
        rows, totals = np.zeros(count), np.zeros(count)
        for each in every():
            cells = np.searchsorted(edges, each, side="right")
            rows += np.bincount(cells, minlength=count)
            totals += np.bincount(cells, weights=each, minlength=count)
        means = totals / np.maximum(rows, 1.0)

        def sums(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
            cells = np.searchsorted(edges, values(predictions, labels), side="right")
            return _counted(cells, count, groups)

        def figure(sums: Floats) -> Floats:
            below = np.cumsum(sums, axis=-1)
            median: Floats = means[(below < below[..., -1:] / 2).sum(axis=-1)]
            return median

        return sums, figure

    return binned


def binned_calibration(
    sureness: Callable[[Floats, Floats], tuple[Floats, Floats]], bins: int
) -> Binned:
    """Return the calibration error in so many bins of equally many rows, each made of finer ones.

    Args:
        sureness: Predictions, labels → confidence and outcome of each row.
        bins: Number of bins of the error.
    """

    def binned(predictions: Floats, labels: Floats) -> tuple[Sums, Figure]:
        parts = parts_of(predictions)
        sure = (sureness(predictions[part], labels[part])[0] for part in parts)
        edges = _quantiles(sure, len(labels), BINS)
        count = len(edges) + 1

        def sums(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
            sure, right = sureness(predictions, labels)
            cells = np.searchsorted(edges, sure, side="right")
            gaps = added(right - sure, (groups[0] * count + cells, groups[1] * count))
            rows = _counted(cells, count, groups)
            return np.concatenate([rows, gaps.reshape(-1, count)], axis=1)

        def figure(sums: Floats) -> Floats:
            rows, gaps = np.split(sums, 2, axis=-1)
            total = rows.sum(axis=-1, keepdims=True)
            middle = np.cumsum(rows, axis=-1) - 0.5 * rows
            # A fine bin belongs to the bin of equally many rows that its middle row is in.
            place = np.minimum(bins * middle // total, bins - 1)
            errors = [np.abs(np.where(place == at, gaps, 0.0).sum(axis=-1)) for at in range(bins)]
            error: Floats = np.sum(errors, axis=0) / total[..., 0]
            return error

        return sums, figure

    return binned


def _counted(cells: NDArray[np.int64], count: int, groups: Groups) -> Floats:
    """Return the rows of each group in each of so many cells, shape [G, count]."""
    index, number = groups
    found = np.bincount(index * count + cells, minlength=number * count)
    return found.reshape(number, count).astype(np.float64)


def _quantiles(parts: Iterable[Floats], rows: int, bins: int) -> Edges:
    """Return rising bounds between bins of about equally many of so many rows."""
    step, before, found = -(-rows // SAMPLED), 0, []
    for part in parts:
        found.append(part[-before % step :: step])
        before += len(part)
    return np.unique(np.quantile(np.concatenate(found), np.linspace(0.0, 1.0, bins + 1)[1:-1]))
