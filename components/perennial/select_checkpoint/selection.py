"""Selection: which of the kept checkpoints is best, when differences within noise do not count.

Noise is broken by what the whole curve says: where later weights are better for certain, the latest
of the candidates that may be best; else the earliest, which had less time to overfit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perennial.contracts.errors import PerennialError
from perennial.contracts.training import CheckpointRecord, Direction, ScoredCandidate
from perennial.engine.evaluation.resampling import Blocks, resample, sign_of, standard_error
from perennial.engine.evaluation.scoring import ScoredBatch
from perennial.engine.metrics.metric import all_finite
from perennial.engine.task import Task

# Draws of the bootstrap: its standard error is then known to within 2.5% (1 / sqrt(2 x 800)).
RESAMPLES = 800


@dataclass(frozen=True)
class Candidate:
    """Weights that may be chosen: a kept checkpoint's own, their moving average, or a mean.

    Attributes:
        record: The checkpoint.
        scored: On the same rows as all others.
        averaged: Whether these are the averaged weights.
        members: The steps whose weights these are the mean of, if of several checkpoints; the
            record is then that of the newest.
    """

    record: CheckpointRecord
    scored: ScoredBatch
    averaged: bool = False
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The chosen checkpoint among all that were scored, in step order.

    Attributes:
        chosen: The one that goes to the gate.
        best: The one with the best figure, of those that keep the limits.
        last: The newest, as it was trained.
        candidates: All of them, in step order, averaged weights after the step's own.
        shortfalls: For each candidate, how far it falls behind the best, and the standard error
            of that difference.
        breaches: For each candidate, which limits it breaks.
        reason: Why the chosen one, in a sentence.
    """

    chosen: ScoredCandidate
    best: ScoredCandidate
    last: ScoredCandidate
    candidates: tuple[ScoredCandidate, ...]
    shortfalls: tuple[tuple[float, float], ...]
    breaches: tuple[tuple[str, ...], ...]
    reason: str

    def figures(self, metric: str) -> dict[str, float]:
        """What each way of choosing would have shipped."""
        named = {"chosen": self.chosen, "best": self.best, "last": self.last}
        figures = {f"validation/{name}_{metric}": c.metrics[metric] for name, c in named.items()}
        return figures | {"validation/chosen_step": float(self.chosen.step)}


def metric_and_direction(
    task: Task, name: str, *, option: str = "selection.metric"
) -> tuple[str, Direction]:
    """The metric that a section names, and which way it is better.

    Args:
        task: Has the metrics.
        name: One of them, or `loss`; empty for the first.
        option: Where it is named, for the error.

    Raises:
        PerennialError: the task has no such metric.
    """
    if name == "loss":
        return name, "minimize"
    chosen = name or next(iter(task.metrics))
    if chosen not in task.metrics:
        raise PerennialError(
            f"{option} = {name!r} is no metric of the task",
            evidence=f"it has {', '.join(task.metrics)} and loss",
            action="name one of them, or leave it out",
        )
    return chosen, task.metrics[chosen]


def limits_of(task: Task, limits: Mapping[str, float]) -> dict[str, tuple[Direction, float]]:
    """Limits with the way in which their metrics are better.

    Raises:
        PerennialError: the task has no such metric.
    """
    return {
        name: (metric_and_direction(task, name, option="selection.limits")[1], limit)
        for name, limit in limits.items()
    }


def select(
    task: Task,
    candidates: Sequence[Candidate],
    blocks: Blocks,
    *,
    metric: str,
    direction: Direction,
    tolerance: float,
    limits: Mapping[str, tuple[Direction, float]],
    improving: bool = False,
) -> Selection:
    """Choose, within the limits, the earliest that the best does not clearly beat, or the latest.

    Args:
        task: Computes the metric.
        candidates: All weights of the kept checkpoints, scored on the same rows.
        blocks: Of those rows.
        metric: What is compared.
        direction: Which way it is better.
        tolerance: In standard errors of the paired difference to the best.
        limits: Of other metrics, as `limits_of` gives them.
        improving: Whether the curve says that later is better: then the latest.

    Raises:
        PerennialError: no checkpoint has a finite figure, or none keeps the limits.
    """
    finite = sorted(
        (each for each in candidates if is_finite(each, task, metric)),
        key=lambda each: (each.record.step, each.averaged, each.members),
    )
    _require_one(finite, candidates)
    draws = blocks.draws(RESAMPLES)
    values = _paired([resample(task, metric, each.scored, blocks, draws) for each in finite])
    errors = [_bounded(standard_error(row, blocks)) for row in values]
    ordered = tuple(_figures(each, task, error) for each, error in zip(finite, errors, strict=True))
    breaches = tuple(_breaches(candidate.metrics, limits) for candidate in ordered)
    allowed = [number for number, broken in enumerate(breaches) if not broken]
    _require_allowed(allowed, ordered, breaches)
    figures = [sign_of(direction) * candidate.metrics[metric] for candidate in ordered]
    top = max(allowed, key=figures.__getitem__)  # the earliest of equals
    shortfalls = tuple(
        (figures[top] - figure, _bounded(standard_error(values[top] - row, blocks)))
        for figure, row in zip(figures, values, strict=True)
    )
    near = [n for n in allowed if shortfalls[n][0] <= tolerance * shortfalls[n][1]]
    number = _latest(near, ordered) if improving else near[0]
    reason = _reason(metric, ordered, shortfalls, (number, top), improving=improving)
    best_of_all = max(range(len(ordered)), key=figures.__getitem__)
    if figures[best_of_all] > figures[top]:
        broken = " and ".join(breaches[best_of_all])
        reason += f"; {ordered[best_of_all].title} has a better {metric}, but {broken}"
    return Selection(
        chosen=ordered[number],
        best=ordered[top],
        last=max(ordered, key=lambda each: (each.step, each.is_plain)),
        candidates=ordered,
        shortfalls=shortfalls,
        breaches=breaches,
        reason=reason,
    )


def _latest(numbers: Sequence[int], candidates: Sequence[ScoredCandidate]) -> int:
    """Of candidates in step order; of equal steps the first, whose weights are the plain ones."""
    newest = max(candidates[number].step for number in numbers)
    return next(number for number in numbers if candidates[number].step == newest)


def _figures(candidate: Candidate, task: Task, error: float) -> ScoredCandidate:
    return ScoredCandidate(
        step=candidate.record.step,
        uri=candidate.record.uri,
        metrics=candidate.scored.metrics(task),
        standard_error=error,
        kept_as=candidate.record.kept_as,
        averaged=candidate.averaged,
        members=candidate.members,
    )


def _breaches(
    metrics: Mapping[str, float], limits: Mapping[str, tuple[Direction, float]]
) -> tuple[str, ...]:
    """The limits that are not kept, each in words; what is no number or undefined keeps none."""
    found = []
    for name, (direction, limit) in limits.items():
        sign = sign_of(direction)
        if name not in metrics:
            found.append(f"its {name} is undefined on the validation rows, and has a limit")
        elif not sign * metrics[name] >= sign * limit:
            side = "below" if direction == "maximize" else "above"
            found.append(f"its {name}, {metrics[name]:.4g}, is {side} the limit, {limit:.4g}")
    return tuple(found)


def _require_allowed(
    allowed: Sequence[int],
    candidates: Sequence[ScoredCandidate],
    breaches: Sequence[tuple[str, ...]],
) -> None:
    if not allowed:
        pairs = zip(candidates, breaches, strict=True)
        raise PerennialError(
            "no checkpoint keeps the limits in selection.limits, so none is chosen",
            evidence="; ".join(f"{each.title}: {' and '.join(broken)}" for each, broken in pairs),
            action="relax a limit that was too strict; else change the training until a "
            "checkpoint keeps it",
        )


def _reason(
    metric: str,
    candidates: Sequence[ScoredCandidate],
    shortfalls: Sequence[tuple[float, float]],
    numbers: tuple[int, int],
    *,
    improving: bool,
) -> str:
    """Why the first of the numbers was chosen when the second has the best figure."""
    number, top = numbers
    chosen, best = candidates[number], candidates[top]
    if len(candidates) == 1:
        return f"{chosen.title} is the only checkpoint kept"
    side = "later" if improving else "earlier"
    if number == top:
        beside = candidates[top + 1 :] if improving else candidates[:top]
        near = "no {} one that may be chosen comes close enough" if beside else "none is {}"
        figure = f"{chosen.title} has the best {metric}, {chosen.metrics[metric]:.4g}"
        return f"{figure}, and {near.format(side)}"
    gap, error = shortfalls[number]
    side = "latest, on a curve that still improves," if improving else "earliest"
    return (
        f"{chosen.title} is the {side} whose {metric}, {chosen.metrics[metric]:.4g}, is "
        f"within noise of the best, {best.metrics[metric]:.4g} at {best.title}: they differ by "
        f"{gap:.2g}, the standard error of the difference is {error:.2g}"
    )


def _require_one(finite: Sequence[Candidate], candidates: Sequence[Candidate]) -> None:
    if not finite:
        raise PerennialError(
            "every kept checkpoint gives losses or figures that are not finite numbers",
            evidence=f"steps {[each.record.step for each in candidates]}",
            action="lower the learning rate or raise its warm-up; the training report shows where "
            "the loss left the finite numbers",
        )


def is_finite(candidate: Candidate, task: Task, metric: str) -> bool:
    """Whether every loss, every prediction and the metric is a finite number.

    Raises:
        UndefinedMetricError: the rows do not define the metric.
    """
    scored = candidate.scored
    arrays = all_finite(scored.losses) and all_finite(scored.predictions)
    return arrays and math.isfinite(scored.metric(task, metric))


def _bounded(error: float) -> float:
    """One block tells nothing about noise, so no difference is put down to it."""
    return error if math.isfinite(error) else 0.0


def _paired(drawn: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Draws of all candidates, [candidates, draws]; one without a fast form has fewer of them."""
    shared = min(len(row) for row in drawn)
    return np.stack([row[:shared] for row in drawn])
