"""Figures: what the challenger measures by itself, champion or not, and how far that is certain."""

from collections.abc import Sequence

import numpy as np

from components.contracts.gate import CalibrationBin, Figure, Verdict
from components.engine.evaluation.resampling import interval, resample
from components.evaluate_model.comparison import Contender, Match

CALIBRATION_BINS = 10


def described(verdict: Verdict, match: Match, metrics: Sequence[str]) -> Verdict:
    """The verdict with what the challenger measures by itself."""
    return verdict.model_copy(
        update={
            "figures": figures_of(match, metrics),
            "calibration": calibration_of(match.challenger),
        }
    )


def figures_of(match: Match, metrics: Sequence[str]) -> tuple[Figure, ...]:
    """Each metric of the challenger, by the same draws of whole blocks as the comparison's."""
    task, scored = match.challenger.task, match.challenger.scored
    values = scored.metrics(task)
    figures = []
    for name in metrics:
        drawn = resample(task, name, scored, match.blocks, match.draws)
        bounds = interval(values[name], drawn, match.blocks, match.confidence)
        figures.append(Figure(metric=name, value=values[name], interval=bounds))
    return tuple(figures)


def calibration_of(contender: Contender) -> tuple[CalibrationBin, ...]:
    """Probabilities and what came true, in bins with equally many rows; empty without any."""
    task, scored = contender.task, contender.scored
    if task.kind == "binary":
        given, true = scored.predictions, scored.labels
    elif task.kind == "multiclass":
        given = scored.predictions.max(axis=1)
        true = scored.predictions.argmax(axis=1) == scored.labels
    else:
        return ()
    order = np.argsort(given, kind="stable")
    return tuple(
        CalibrationBin(
            rows=len(part), predicted=float(given[part].mean()), observed=float(true[part].mean())
        )
        for part in np.array_split(order, CALIBRATION_BINS)
        if len(part)
    )
