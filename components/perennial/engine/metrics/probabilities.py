"""Metrics of probabilities: scoring rules and calibration errors."""

import numpy as np

from perennial.engine.metrics.binned import binned_calibration
from perennial.engine.metrics.classification import CLASSES, answers_of
from perennial.engine.metrics.metric import Figure, Floats, Groups, Metric, Sums, added, mean_of

SMALLEST_PROBABILITY = 1e-7  # what float32 can still tell from 0 and 1; keeps logarithms finite
CALIBRATION_BINS = 15  # Guo et al., On Calibration of Modern Neural Networks, 2017


def log_losses(predictions: Floats, labels: Floats) -> Floats:
    """Return the negative log-likelihood of each label, shape [N].

    Args:
        predictions: P(label = 1), shape [N], or class probabilities, shape [N, C].
        labels: Class numbers, shape [N].
    """
    clipped = np.clip(predictions, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    if clipped.ndim == 1:
        return -np.log(np.where(labels == 1, clipped, 1 - clipped))
    shares = clipped / clipped.sum(axis=1, keepdims=True)
    return np.asarray(-np.log(shares[np.arange(len(labels)), labels.astype(np.int64)]))


def probability_metrics() -> tuple[Metric, ...]:
    """Return scoring rules and calibration errors."""
    return (
        Metric(
            "log_loss", "minimize", CLASSES,
            "Mean negative logarithm of the true class's probability, cut at 1e-7.", "a row",
            *mean_of(log_losses),
        ),
        Metric(
            "brier", "minimize", CLASSES,
            "Mean squared error of the probabilities: of the second class where there are two, "
            "summed over the classes where there are more (Brier, 1950).", "a row",
            *mean_of(_squared_errors),
        ),
        Metric(
            "expected_calibration_error", "minimize", CLASSES,
            f"Mean difference between confidence and accuracy, in {CALIBRATION_BINS} bins of equal "
            "width (Guo et al., 2017): of the second class where there are two, of the predicted "
            "class where there are more.", "a row", *_equal_width(),
        ),
        Metric(
            "calibration_error_equal_mass", "minimize", CLASSES,
            f"Expected calibration error in {CALIBRATION_BINS} bins between quantiles (Nguyen and "
            "O'Connor, 2015); equal probabilities share a bin.", "a row",
            whole=_equal_mass, binned=binned_calibration(sureness, CALIBRATION_BINS),
            adds_up=False,
        ),
    )  # fmt: skip


def sureness(predictions: Floats, labels: Floats) -> tuple[Floats, Floats]:
    """Return the confidence and the outcome of each row for calibration, each shape [N]."""
    if predictions.ndim == 1:
        return predictions, labels
    return predictions.max(axis=1), (answers_of(predictions) == labels).astype(np.float64)


def _squared_errors(predictions: Floats, labels: Floats) -> Floats:
    if predictions.ndim == 1:
        return np.square(predictions - labels)
    own = predictions[np.arange(len(labels)), labels.astype(np.int64)]
    squares: Floats = np.square(predictions).sum(axis=1) - np.square(own) + np.square(1 - own)
    return squares


def _equal_width() -> tuple[Sums, Figure]:
    edges = np.linspace(0.0, 1.0, CALIBRATION_BINS + 1)

    def sums(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
        sure, right = sureness(predictions, labels)
        index, count = groups
        bins = np.searchsorted(edges[1:-1], sure, side="right")
        cells = index * CALIBRATION_BINS + bins, count * CALIBRATION_BINS
        gaps = added(right - sure, cells).reshape(count, CALIBRATION_BINS)
        return np.concatenate([gaps, added(np.ones(len(sure)), groups)[:, None]], axis=1)

    return sums, lambda sums: np.abs(sums[..., :-1]).sum(axis=-1) / sums[..., -1]


def _equal_mass(predictions: Floats, labels: Floats) -> float:
    sure, right = sureness(predictions, labels)
    edges = np.quantile(sure, np.linspace(0.0, 1.0, CALIBRATION_BINS + 1))
    bins = np.searchsorted(edges[1:-1], sure)
    return float(np.abs(added(right - sure, (bins, CALIBRATION_BINS))).sum() / len(sure))
