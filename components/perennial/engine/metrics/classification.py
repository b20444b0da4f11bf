"""Classification metrics of the predicted classes."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from perennial.engine.metrics.metric import (
    Figure,
    Floats,
    Groups,
    Kind,
    Metric,
    mean_of,
    mean_of_defined,
    ratio,
)

Codes: TypeAlias = NDArray[np.int64]
CLASSES: frozenset[Kind] = frozenset({"binary", "multiclass"})
BINARY: frozenset[Kind] = frozenset({"binary"})


def answers_of(predictions: Floats) -> Codes:
    """Return the predicted class: above one half, or the most probable, the first of equals."""
    chosen = predictions > 0.5 if predictions.ndim == 1 else predictions.argmax(axis=1)
    return np.asarray(chosen, dtype=np.int64)


def answer_metrics() -> tuple[Metric, ...]:
    """Return the metrics computed from counts of correct, true and predicted classes."""
    return (
        _counted(
            "accuracy", CLASSES, "Share of rows whose predicted class is the label.", "a row",
            _accuracy,
        ),
        _counted(
            "balanced_accuracy", CLASSES, "Mean recall of the classes that occur.", "a row",
            _balanced_accuracy,
        ),
        _counted(
            "macro_f1", CLASSES,
            "Mean F1 of the classes that occur in labels or predictions, all with equal weight.",
            "a row", _macro_f1,
        ),
        _counted(
            "f1", BINARY, "Harmonic mean of precision and recall of the second class.",
            "the second class, in labels or predictions", _f1,
        ),
        _counted(
            "precision", BINARY, "Share of correct rows among those predicted as the second class.",
            "a prediction of the second class", _precision,
        ),
        _counted(
            "recall", BINARY, "Share of the rows of the second class that are predicted as such.",
            "the second class", _recall,
        ),
        _counted(
            "matthews_corrcoef", CLASSES,
            "Correlation of predicted and true classes (Gorodkin, 2004). 0 if all predictions are "
            "equal, the limit of the formula (Chicco and Jurman, 2020).",
            "two classes", _matthews,
        ),
    )  # fmt: skip


def top_accuracy(k: int) -> Metric:
    """Return top-k accuracy; ties: the lower class first."""

    def hits(predictions: Floats, labels: Floats) -> Floats:
        classes = predictions.shape[1] if predictions.ndim == 2 else 2
        if k >= classes:
            return np.full(len(labels), np.nan)  # always correct, so not informative
        truth = labels.astype(np.int64)[:, None]
        if predictions.ndim == 1:
            return np.where(answers_of(predictions) == truth[:, 0], 1.0, 0.0)
        own = np.take_along_axis(predictions, truth, axis=1)
        equal = (predictions == own) & (np.arange(classes) < truth)
        ahead = ((predictions > own) | equal).sum(axis=1)
        return np.where(ahead < k, 1.0, 0.0)

    sums, figure = mean_of(hits)
    return Metric(
        f"top_{k}_accuracy", "maximize", CLASSES,
        "Share of rows whose class is among the K most probable; ties: the lower class first.",
        f"more than {k} classes", sums, figure,
    )  # fmt: skip


def _counted(name: str, kinds: frozenset[Kind], meaning: str, needs: str, figure: Figure) -> Metric:
    return Metric(name, "maximize", kinds, meaning, needs, _counts, figure)


def _counts(predictions: Floats, labels: Floats, groups: Groups) -> Floats:
    """Return the correct, labelled and predicted rows of each class, shape [G, 3C]."""
    index, count = groups
    classes = predictions.shape[1] if predictions.ndim == 2 else 2
    truth, answers = labels.astype(np.int64), answers_of(predictions)
    hits = truth == answers
    found = [
        np.bincount(at * classes + codes, minlength=count * classes).reshape(count, classes)
        for at, codes in ((index[hits], truth[hits]), (index, truth), (index, answers))
    ]
    return np.concatenate(found, axis=1).astype(np.float64)


def _split(sums: Floats) -> tuple[Floats, Floats, Floats]:
    right, labelled, answered = np.split(sums, 3, axis=-1)
    return right, labelled, answered


def _accuracy(sums: Floats) -> Floats:
    right, labelled, _ = _split(sums)
    return ratio(right.sum(axis=-1), labelled.sum(axis=-1))


def _balanced_accuracy(sums: Floats) -> Floats:
    right, labelled, _ = _split(sums)
    return mean_of_defined(ratio(right, labelled), axis=-1)


def _macro_f1(sums: Floats) -> Floats:
    right, labelled, answered = _split(sums)
    return mean_of_defined(ratio(2 * right, labelled + answered), axis=-1)


def _f1(sums: Floats) -> Floats:
    right, labelled, answered = _split(sums)
    return ratio(2 * right[..., 1], labelled[..., 1] + answered[..., 1])


def _precision(sums: Floats) -> Floats:
    right, _, answered = _split(sums)
    return ratio(right[..., 1], answered[..., 1])


def _recall(sums: Floats) -> Floats:
    right, labelled, _ = _split(sums)
    return ratio(right[..., 1], labelled[..., 1])


def _matthews(sums: Floats) -> Floats:
    right, labelled, answered = _split(sums)
    rows = labelled.sum(axis=-1)
    covariance = right.sum(axis=-1) * rows - (labelled * answered).sum(axis=-1)
    of_labels = rows**2 - (labelled**2).sum(axis=-1)
    of_answers = rows**2 - (answered**2).sum(axis=-1)
    found = covariance / np.sqrt(np.where(of_answers > 0, of_labels * of_answers, 1.0).clip(1e-300))
    return np.where(of_labels > 0, np.where(of_answers > 0, found, 0.0), np.nan)
