"""Ranking metrics: order of the rows of a class by score."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perennial.engine.metrics.binned import (
    area_under_precision,
    area_under_roc,
    binned_ranking,
    scores_by_class,
)
from perennial.engine.metrics.classification import CLASSES
from perennial.engine.metrics.metric import Floats, Metric


def roc_auc(scores: Floats, positive: NDArray[np.bool_]) -> float:
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


def average_precision(scores: Floats, positive: NDArray[np.bool_]) -> float:
    """Mean precision at each positive in the order of scores, equal scores taken as one.

    Args:
        scores: Shape [N].
        positive: Shape [N]; at least one.
    """
    order = np.argsort(-scores, kind="stable")
    last_of_equals = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    found = np.cumsum(positive[order])[last_of_equals]
    gained = np.diff(found, prepend=0)
    return float(np.sum(gained * (found / (last_of_equals + 1))) / found[-1])


def ranking_metrics() -> tuple[Metric, ...]:
    """Return the metrics of the order of scores; of several classes, each against the rest."""
    return (
        Metric(
            "roc_auc", "maximize", CLASSES,
            "Probability that a row of the class outranks another row, a tie counting half; with "
            "more than two classes, the mean over those that occur.",
            "rows of two classes", whole=partial(_mean_over_classes, roc_auc),
            binned=binned_ranking(area_under_roc), adds_up=False,
        ),
        Metric(
            "average_precision", "maximize", CLASSES,
            "Mean precision at each row of the class in the order of scores, without "
            "interpolation; with more than two classes, the mean over those that occur.",
            "rows of two classes", whole=partial(_mean_over_classes, average_precision),
            binned=binned_ranking(area_under_precision), adds_up=False,
        ),
    )  # fmt: skip


def _mean_over_classes(
    area: Callable[[Floats, NDArray[np.bool_]], float], predictions: Floats, labels: Floats
) -> float:
    """Average over the classes that some rows have and others lack; NaN where there are none."""
    areas = [
        area(scores, labels == code)
        for code, scores in scores_by_class(predictions)
        if 0 < np.count_nonzero(labels == code) < len(labels)
    ]
    return float(np.mean(areas)) if areas else math.nan
