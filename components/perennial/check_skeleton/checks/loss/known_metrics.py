"""Known metrics: the usual names, computed by scikit-learn or from the definition.

Some names have several valid meanings: F1 of the second class, or the mean over classes. A metric
is correct if one of them matches on every set of predictions.
"""

from collections.abc import Mapping
from itertools import permutations

import numpy as np
from numpy.typing import NDArray
from sklearn import metrics

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]
Quantities = Mapping[str, float]
"""Quantity → its value."""

AVERAGES = ("macro", "weighted", "micro")
_THRESHOLDED = {"f1": metrics.f1_score, "precision": metrics.precision_score,
                "recall": metrics.recall_score}  # fmt: skip
_AREAS = {"roc_auc": metrics.roc_auc_score, "average_precision": metrics.average_precision_score}
_TOP = (2, 3, 5, 10)

_MEANINGS: dict[str, tuple[str, ...]] = {
    "roc_auc": ("roc_auc of class 1", "macro roc_auc", "weighted roc_auc", "one-vs-one roc_auc"),
    "average_precision": (
        "average_precision of class 1", "macro average_precision", "weighted average_precision",
    ),
    "pr_auc": (
        "average_precision of class 1", "macro average_precision", "weighted average_precision",
        "area under precision and recall",
    ),
    "brier": ("brier", "brier of class 1", "brier per class"),
    "accuracy": ("accuracy", "accuracy of tokens"),
    "pearson": ("pearson",),
    **{
        name: (f"{name} of class 1", *(f"{average} {name}" for average in AVERAGES),
               *(f"{average} {name} of all classes" for average in AVERAGES))
        for name in _THRESHOLDED
    },
    **{
        f"{average}_{name}": (f"{average} {name}", f"{average} {name} of all classes")
        for name in _THRESHOLDED
        for average in AVERAGES
    },
    **{f"{average}_roc_auc": (f"{average} roc_auc",) for average in ("macro", "weighted")},
    **{f"top_{k}_accuracy": (f"accuracy in the first {k}",) for k in _TOP},
    "mean_reciprocal_rank": ("mean reciprocal rank", "mean reciprocal rank of texts",
                             "mean reciprocal rank of pictures"),
}  # fmt: skip
_ALIASES = {
    "auc": "roc_auc", "auroc": "roc_auc", "rocauc": "roc_auc", "acc": "accuracy",
    "logloss": "log_loss", "cross_entropy": "log_loss", "nll": "log_loss",
    "ap": "average_precision", "auprc": "pr_auc", "auc_pr": "pr_auc", "prauc": "pr_auc",
    "brier_score": "brier", "brier_loss": "brier", "f1_score": "f1",
    "mcc": "matthews_corrcoef", "kappa": "cohen_kappa",
    "mean_squared_error": "mse", "mean_absolute_error": "mae", "root_mean_squared_error": "rmse",
    "r2_score": "r2", "r_squared": "r2", "mrr": "mean_reciprocal_rank", "ppl": "perplexity",
    "token_accuracy": "accuracy", "pearson_r": "pearson", "pearsonr": "pearson",
}  # fmt: skip


def meanings_of(metric: str) -> tuple[str, ...]:
    """Return the quantities that a metric of this name may be."""
    name = metric.lower().replace("-", "_").replace(" ", "_")
    for average in AVERAGES:
        name = f"{average}_{name[: -len(average) - 1]}" if name.endswith(f"_{average}") else name
    for at in ("recall_at_", "recall@", "hit_rate_at_", "hits_at_", "top_"):
        if name.startswith(at) and name[len(at) :].isdigit():
            found = name[len(at) :]
            return tuple(f"recall at {found}{of}" for of in ("", " of texts", " of pictures"))
    name = _ALIASES.get(name, name)
    return _MEANINGS.get(name, (name,))


def class_quantities(chances: Floats, labels: Floats) -> Quantities:
    """Return scikit-learn's metrics of class probabilities [N, C]."""
    truth, classes = labels.astype(np.int64), chances.shape[1]
    answers = chances.argmax(axis=1) if classes > 2 else (chances[:, 1] >= 0.5).astype(np.int64)
    # One column per class would exhaust the memory with thousands of classes.
    squares = np.sum(chances**2, axis=1) - 2 * chances[np.arange(len(truth)), truth] + 1
    found = {
        "log_loss": metrics.log_loss(truth, chances, labels=list(range(classes))),
        "brier": float(np.mean(squares)),
        "brier per class": float(np.mean(squares)) / classes,
    }
    found["log_loss in bits"] = found["log_loss"] / np.log(2)
    found |= _areas(chances, truth)
    if classes == 2:
        found |= _of_second_class(chances[:, 1], truth, answers)
    else:
        order = np.argsort(-chances, axis=1, kind="stable")
        for k in _TOP:
            hits = (order[:, :k] == truth[:, None]).any(axis=1)
            found[f"accuracy in the first {k}"] = float(hits.mean())
    answered = answer_quantities(answers, truth, classes)
    return {**answered, **{name: float(value) for name, value in found.items()}}


def answer_quantities(answers: Codes, truth: Codes, classes: int) -> Quantities:
    """Return scikit-learn's metrics of predicted classes [N], without probabilities."""
    found = {
        "accuracy": metrics.accuracy_score(truth, answers),
        "error_rate": 1 - metrics.accuracy_score(truth, answers),
        "balanced_accuracy": metrics.recall_score(truth, answers, average="macro", zero_division=0),
        "matthews_corrcoef": metrics.matthews_corrcoef(truth, answers),
        "cohen_kappa": metrics.cohen_kappa_score(truth, answers),
    }
    for name, measure in _THRESHOLDED.items():
        for some, of in ((None, ""), (list(range(classes)), " of all classes")):
            for average in AVERAGES:
                found[f"{average} {name}{of}"] = measure(
                    truth, answers, labels=some, average=average, zero_division=0
                )
        for code in range(2 if classes == 2 else 0):
            found[f"{name} of class {code}"] = measure(
                truth, answers, pos_label=code, zero_division=0
            )
    return {name: float(value) for name, value in found.items()}


def number_quantities(predicted: Floats, labels: Floats) -> Quantities:
    """Return scikit-learn's metrics of predicted numbers [N]."""
    squared = float(metrics.mean_squared_error(labels, predicted))
    found = {
        "mse": squared,
        "rmse": squared**0.5,
        "mae": metrics.mean_absolute_error(labels, predicted),
        "median_absolute_error": metrics.median_absolute_error(labels, predicted),
        "max_error": metrics.max_error(labels, predicted),
        "r2": metrics.r2_score(labels, predicted),
        "explained_variance": metrics.explained_variance_score(labels, predicted),
        "pearson": float(np.corrcoef(predicted, labels)[0, 1]),
        "sum of squared errors": squared * len(labels),
    }
    found["squared correlation"] = found["pearson"] ** 2
    return {name: float(value) for name, value in found.items()}


def _of_second_class(chance: Floats, truth: Codes, answers: Codes) -> (
    dict[str, float]
):  # fmt: skip
    precision, recall, _ = metrics.precision_recall_curve(truth, chance)
    return {
        "roc_auc of class 1": metrics.roc_auc_score(truth, chance),
        "roc_auc of hard answers": metrics.roc_auc_score(truth, answers),
        "average_precision of class 1": metrics.average_precision_score(truth, chance),
        "area under precision and recall": metrics.auc(recall, precision),
        "brier of class 1": metrics.brier_score_loss(truth, chance),
    }


def _areas(chances: Floats, truth: Codes) -> dict[str, float]:
    """Return areas averaged over the classes that occur, one against the rest, and over pairs."""
    counts = np.bincount(truth, minlength=chances.shape[1])
    present = np.flatnonzero(counts)
    found = {}
    for name, measure in _AREAS.items():
        areas = [measure(truth == code, chances[:, code]) for code in present]
        found[f"macro {name}"] = float(np.mean(areas))
        found[f"weighted {name}"] = float(np.average(areas, weights=counts[present]))
    if len(present) == chances.shape[1] > 2:
        found["one-vs-one roc_auc"] = _one_vs_one(chances, truth)
    return found


def _one_vs_one(chances: Floats, truth: Codes) -> float:
    """Return the one-vs-one ROC AUC by definition; scikit-learn takes 30 s for 100 classes."""
    members = [chances[truth == code] for code in range(chances.shape[1])]
    areas = []
    for one, other in permutations(range(len(members)), 2):
        own, foreign = members[one][:, one, None], members[other][None, :, one]
        areas.append(np.mean(own > foreign) + np.mean(own == foreign) / 2)
    return float(np.mean(areas))
