"""Figures: what models measure by themselves, how far that is certain, and how true they are."""

from collections.abc import Sequence

import numpy as np

from components.contracts.gate import CalibrationBin, Figure, Verdict
from components.engine.evaluation.resampling import interval, resample
from components.engine.metrics.catalogue import named_metrics
from components.engine.metrics.classification import CLASSES
from components.engine.metrics.probabilities import sureness
from components.evaluate_model.comparison import Contender, Match

CALIBRATION_BINS = 10


def described(verdict: Verdict, match: Match, metrics: Sequence[str]) -> Verdict:
    """The verdict with what the models measure by themselves."""
    contenders = {"challenger": match.challenger, "champion": match.champion}
    curves = {name: calibration_of(each) for name, each in contenders.items() if each is not None}
    return verdict.model_copy(
        update={
            "figures": figures_of(match, metrics),
            "calibration": curves["challenger"],
            "champion_calibration": curves.get("champion", ()),
            "expected_calibration_errors": {
                name: calibration_error_of(each)
                for name, each in contenders.items()
                if each is not None and curves[name]
            },
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
    if contender.task.kind not in CLASSES:
        return ()
    given, true = sureness(contender.scored.predictions, contender.scored.labels)
    order = np.argsort(given, kind="stable")
    return tuple(
        CalibrationBin(
            rows=len(part), predicted=float(given[part].mean()), observed=float(true[part].mean())
        )
        for part in np.array_split(order, CALIBRATION_BINS)
        if len(part)
    )


def calibration_error_of(contender: Contender) -> float:
    """The catalogue's expected calibration error of class probabilities."""
    scored = contender.scored
    found = named_metrics()["expected_calibration_error"]
    return found.measure(scored.predictions, scored.labels)
