"""Constant outputs, which no metric should score as good."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perennial.check_skeleton.free_outputs import best_outputs, output_of, probe
from perennial.check_skeleton.output_domain import output_domain
from perennial.check_skeleton.subject import Subject
from perennial.check_skeleton.token_outputs import is_per_token
from perennial.engine.task import LABEL, WEIGHT

Floats = NDArray[np.float64]
# Share of the improvement from start to minimum; with ties at their expected rank, near 0.
FLATTERED_SHARE = 0.9


def find_flattered_statistic(
    subject: Subject, best: dict[str, float], start: dict[str, float]
) -> str:
    """Describe a `statistic` task's metric that scores constant outputs as good; empty if none.

    Args:
        subject: The subject whose metrics are checked.
        best: The metrics at the loss's minimum.
        start: The metrics of the untrained model.
    """
    task, batch = subject.task, probe(subject)
    is_ranked = task.scored_together > 1
    if not is_ranked and len(np.unique(batch[LABEL].numpy())) < 2:
        return ""  # one prediction is right for all
    if not best_outputs(subject).is_bound:
        return ""
    weights = batch[WEIGHT].double().numpy() if WEIGHT in batch else np.ones(len(batch[LABEL]))
    found: list[dict[str, float]] = []
    try:
        for constant in _constants(output_of(subject, batch), batch[LABEL]):
            outputs = subject.once(output_domain).outputs(constant)
            statistics = task.statistic(outputs, batch).double().numpy()
            found.append(task.score(statistics, weights))
    except Exception:  # a task may reject outputs that its model cannot give
        return ""
    for name, value in best.items():
        sign = 1 if task.metrics[name] == "maximize" else -1
        values = [sign * each[name] for each in found if np.isfinite(each[name])]
        most = max(values, default=-np.inf)
        is_perfect = most >= sign * value - 1e-9 * abs(value)
        way, begun = sign * (value - start[name]), sign * start[name]
        if is_perfect or (is_ranked and most - begun > FLATTERED_SHARE * way):
            return (
                f"{name} is {sign * most:.4g} for constant outputs, and {value:.4g} at the loss's "
                "minimum"
            )
    return ""


def _constants(output: Tensor, labels: Tensor) -> Sequence[Tensor]:
    """Return constant outputs with exact products and distances: ones, and a unit vector."""
    ones, unit = torch.ones_like(output), torch.zeros_like(output)
    unit[..., 0] = 1.0
    return (ones,) if is_per_token(output, labels) else (ones, unit)


def find_flattered_metric(
    subject: Subject, labels: Floats, perfect: Floats, scores: dict[str, float]
) -> str:
    """Describe a metric that scores every constant prediction as perfect; empty if none.

    A single constant may well be perfect: the mean by the bias, the prior by calibration.

    Args:
        subject: The subject whose metrics are checked.
        labels: The labels, [N].
        perfect: The labels as predictions.
        scores: The metrics of `perfect`.
    """
    task, flattered = subject.task, set(scores)
    try:
        for constant, kept in _predictions(task.kind, labels, perfect):
            whole = kept.all()
            right = scores if whole else task.score(perfect[kept], labels[kept])
            found = task.score(constant[kept], labels[kept])
            flattered &= {
                name
                for name in found.keys() & right.keys()
                if (1 if task.metrics[name] == "maximize" else -1) * (found[name] - right[name])
                >= 0
            }
    except Exception:  # a score may require many different predictions
        return ""
    name = next(iter(sorted(flattered)), "")
    shown = f"{name} is {scores[name]:.4g} for perfect predictions, and no worse" if name else ""
    return shown and f"{shown} for any constant prediction"


def _predictions(
    kind: str, labels: Floats, perfect: Floats
) -> list[tuple[Floats, NDArray[np.bool_]]]:
    """Return constant predictions, each with the rows on which it is scored."""
    every = np.ones(len(labels), dtype=np.bool_)
    if kind == "multiclass":
        # Also without the first class, which argmax predicts if all are equal.
        even = np.full_like(perfect, 1 / perfect.shape[1])
        return [(even, rows) for rows in (every, labels != 0)]
    values = [0.2, 0.5, 0.8]
    if kind == "regression":
        values = [float(labels.mean() + by * labels.std()) for by in (-0.5, 0.0, 1.0)]
    return [(np.full_like(perfect, value), every) for value in values]
