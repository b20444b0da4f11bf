"""Regression metrics: errors of predicted numbers."""

from functools import reduce

import numpy as np

from perennial.engine.metrics.arrays import parts_of
from perennial.engine.metrics.binned import binned_median
from perennial.engine.metrics.metric import (
    Figure,
    Floats,
    Groups,
    Kind,
    Metric,
    Sums,
    added,
    first_by_second,
    mean_of,
    ratio,
)

NUMBERS: frozenset[Kind] = frozenset({"regression"})
# Relative to the sum of squares: what centring by a rounded mean leaves of equal labels.
ALIKE = 1e-12


def regression_metrics() -> tuple[Metric, ...]:
    """Return the metrics of numbers, in the label's unit unless they are shares."""
    squares, mean = mean_of(lambda predictions, labels: np.square(predictions - labels))
    return (
        Metric(
            "rmse", "minimize", NUMBERS, "Root of the mean squared error.", "a row",
            squares, lambda sums: np.sqrt(mean(sums)),
        ),
        Metric(
            "mae", "minimize", NUMBERS, "Mean absolute error.", "a row", *mean_of(_absolute),
        ),
        Metric(
            "median_absolute_error", "minimize", NUMBERS,
            "Median absolute error: half of the rows are closer.", "a row",
            whole=lambda p, y: float(np.median(_absolute(p, y))), binned=binned_median(_absolute),
            adds_up=False,
        ),
        Metric(
            "r2", "maximize", NUMBERS,
            "Share of the labels' variance that is explained; negative if the mean does better.",
            "labels that differ", _centred_sums, _explained, adds_up=False,
        ),
        Metric(
            "mape", "minimize", NUMBERS,
            "Mean absolute error relative to each label, as a share.",
            "labels that are not 0 (wape and smape take zeros)", *_relative_to_labels(),
        ),
        Metric(
            "wape", "minimize", NUMBERS,
            "Sum of the absolute errors relative to the sum of the absolute labels, as a share.",
            "a label that is not 0", _weighted_sums, first_by_second,
        ),
        Metric(
            "smape", "minimize", NUMBERS,
            "Mean of the absolute error relative to the mean size of prediction and label, 0 where "
            "both are 0 (M4 competition, 2018), as a share.", "a row", *mean_of(_symmetric),
        ),
    )  # fmt: skip


def pinball(percent: float) -> Metric:
    """Return the pinball loss, whose minimum is a quantile of the label."""
    share = percent / 100

    def losses(predictions: Floats, labels: Floats) -> Floats:
        left = labels - predictions
        return np.maximum(share * left, (share - 1) * left)

    return Metric(
        f"pinball_{percent:g}", "minimize", NUMBERS,
        "Mean pinball loss at the quantile of Q percent: too low costs Q / 100 per unit, too high "
        "the rest (Koenker and Bassett, 1978).", "a row", *mean_of(losses),
    )  # fmt: skip


def _absolute(predictions: Floats, labels: Floats) -> Floats:
    return np.abs(predictions - labels)


def _symmetric(predictions: Floats, labels: Floats) -> Floats:
    sizes = np.abs(predictions) + np.abs(labels)
    return 2 * _absolute(predictions, labels) / np.where(sizes > 0, sizes, 1.0)


def _centred_sums(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
    # Centred first: the variance of a label far from zero would cancel.
    mean, (index, count) = labels.mean(), groups

    def sums_of(part: slice) -> Floats:
        truth = labels[part]
        centred = truth - mean
        columns = (
            np.square(predictions[part] - truth),
            centred,
            np.square(centred),
            np.ones_like(truth),
        )
        return np.stack([added(column, (index[part], count)) for column in columns], axis=-1)

    return reduce(np.add, map(sums_of, parts_of(labels)))


def _explained(sums: Floats) -> Floats:
    errors, first, second, rows = (sums[..., column] for column in range(4))
    spread = second - first**2 / np.where(rows > 0, rows, 1.0)
    return 1.0 - ratio(errors, np.where(spread > ALIKE * second, spread, 0.0))


def _relative_to_labels() -> tuple[Sums, Figure]:
    def sums(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
        is_zero = labels == 0
        relative = _absolute(predictions, labels) / np.abs(np.where(is_zero, 1.0, labels))
        columns = relative, np.ones(len(labels)), is_zero.astype(np.float64)
        return np.stack([added(column, groups) for column in columns], axis=-1)

    return sums, lambda sums: np.where(sums[..., 2] > 0, np.nan, first_by_second(sums))


def _weighted_sums(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
    errors = added(_absolute(predictions, labels), groups)
    return np.stack([errors, added(np.abs(labels), groups)], axis=-1)
