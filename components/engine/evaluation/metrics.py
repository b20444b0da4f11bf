"""Metrics that several places need, in numpy: importing scikit-learn for them costs a second."""

import numpy as np
from numpy.typing import NDArray

SMALLEST_PROBABILITY = 1e-7  # what float32 can still tell from 0 and 1; keeps logarithms finite


def roc_auc(scores: NDArray[np.float64], positive: NDArray[np.bool_]) -> float:
    """Area under the ROC curve: how often a positive outranks a negative, a tie counting half.

    Args:
        scores: Shape [N].
        positive: Shape [N]; both kinds must occur.
    """
    _, ranks, counts = np.unique(scores, return_inverse=True, return_counts=True)
    mean_ranks = np.cumsum(counts) - (counts - 1) / 2
    num_positive = int(positive.sum())
    num_negative = len(positive) - num_positive
    ordered = mean_ranks[ranks[positive]].sum() - num_positive * (num_positive + 1) / 2
    return float(ordered / (num_positive * num_negative))


def log_losses(
    predictions: NDArray[np.float64], labels: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Negative log-likelihood of each label, shape [N].

    Args:
        predictions: P(label = 1), shape [N], or class probabilities, shape [N, C].
        labels: Class numbers, shape [N].
    """
    clipped = np.clip(predictions, SMALLEST_PROBABILITY, 1 - SMALLEST_PROBABILITY)
    if clipped.ndim == 1:
        return -np.log(np.where(labels == 1, clipped, 1 - clipped))
    shares = clipped / clipped.sum(axis=1, keepdims=True)
    return np.asarray(-np.log(shares[np.arange(len(labels)), labels.astype(np.int64)]))
