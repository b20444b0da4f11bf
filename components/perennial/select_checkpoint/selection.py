"""Selection: choose the best of the kept checkpoints, ignoring differences within noise.

Among candidates within the tolerance of the best, the whole curve decides: if later weights are
significantly better, the latest; otherwise the earliest, which had less time to overfit.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perennial.contracts.errors import PerennialError
from perennial.contracts.training import (
    CheckpointRecord,
    Direction,
    EvaluationPoint,
    ScoredCandidate,
)
from perennial.engine.evaluation.resampling import (
    Blocks,
    Floats,
    direction_of,
    resample,
    sign_of,
    standard_error,
)
from perennial.engine.evaluation.scoring import ScoredBatch
from perennial.engine.metrics.arrays import all_finite
from perennial.engine.task import Task

# Bootstrap draws: they give a standard error to within 2.5% (1 / sqrt(2 x 800)).
RESAMPLES = 800
# Evaluations without a new best after which Lightning's EarlyStopping ends a training.
PATIENCE = 3


@dataclass(frozen=True)
class Candidate:
    """Weights that may be chosen: a kept checkpoint's own, their moving average, or a mean.

    Attributes:
        scored: Scores on the same rows as all others.
        members: The steps whose weights are averaged, for a mean of several checkpoints; the record
            is then that of the newest.
    """

    record: CheckpointRecord
    scored: ScoredBatch
    averaged: bool = False
    members: tuple[int, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The chosen checkpoint among all that were scored, in step order.

    Attributes:
        best: The candidate with the best metric within the limits.
        last: The newest, without averaging.
        candidates: All of them, in step order, averaged weights after the step's own.
        shortfalls: For each candidate, its difference to the best, and the standard error of that
            difference.
        breaches: For each candidate, which limits it violates.
    """

    chosen: ScoredCandidate
    best: ScoredCandidate
    last: ScoredCandidate
    candidates: tuple[ScoredCandidate, ...]
    shortfalls: tuple[tuple[float, float], ...]
    breaches: tuple[tuple[str, ...], ...]
    reason: str

    def figures(self, metric: str) -> dict[str, float]:
        """Return a metric of the chosen, the best and the last candidate."""
        named = {"chosen": self.chosen, "best": self.best, "last": self.last}
        figures = {f"validation/{name}_{metric}": c.metrics[metric] for name, c in named.items()}
        return figures | {"validation/chosen_step": float(self.chosen.step)}


@dataclass(frozen=True)
class Choice:
    """The selection among a training's weights, and what it was made by."""

    metric: str
    direction: Direction
    evaluations: list[EvaluationPoint]
    blocks: Blocks
    selection: Selection


def select(
    task: Task,
    candidates: Sequence[Candidate],
    blocks: Blocks,
    *,
    metric: str,
    tolerance: float,
    limits: Mapping[str, float],
    improving: bool = False,
) -> Selection:
    """Choose the earliest, or latest, candidate within the limits and the tolerance of the best.

    `tolerance` is in standard errors of the paired difference to the best; if the curve is still
    `improving`, the latest is chosen. `limits`: metric → worst value that a checkpoint may have.

    Raises:
        PerennialError: no checkpoint has a finite metric, or none is within the limits.
    """
    finite = sorted(
        (each for each in candidates if is_finite(each, task, metric)),
        # Plain weights before averaged ones of the same step: the first of equal candidates wins.
        key=lambda each: (each.record.step, each.averaged, each.members),
    )
    _require_one(finite, candidates)
    draws = blocks.draws(RESAMPLES)
    values = paired_draws([resample(task, metric, each.scored, blocks, draws) for each in finite])
    errors = [_bounded(standard_error(row, blocks)) for row in values]
    ordered = tuple(_figures(each, task, error) for each, error in zip(finite, errors, strict=True))
    breaches = tuple(breaches_of(task, candidate.metrics, limits) for candidate in ordered)
    allowed = [number for number, broken in enumerate(breaches) if not broken]
    if not allowed:
        raise _none_allowed(ordered, breaches)
    sign = sign_of(direction_of(task, metric, "selection.metric"))
    figures = [sign * candidate.metrics[metric] for candidate in ordered]
    top = max(allowed, key=figures.__getitem__)  # the earliest of equals
    # The error of the paired difference: on shared rows it is smaller than that of each figure.
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
    """Return the latest candidate; of equal steps the first, whose weights are not averaged."""
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


def breaches_of(
    task: Task, metrics: Mapping[str, float], limits: Mapping[str, float]
) -> tuple[str, ...]:
    """Describe the violated limits of the selection; NaN and undefined metrics violate theirs."""
    found = []
    for name, limit in limits.items():
        sign = sign_of(direction_of(task, name, "selection.limits"))
        if name not in metrics:
            found.append(f"its {name} has a limit but is undefined on the validation rows")
        elif not sign * metrics[name] >= sign * limit:
            side = "below" if sign > 0 else "above"
            found.append(f"its {name} ({metrics[name]:.4g}) is {side} the limit ({limit:.4g})")
    return tuple(found)


def _none_allowed(
    candidates: Sequence[ScoredCandidate], breaches: Sequence[tuple[str, ...]]
) -> PerennialError:
    pairs = zip(candidates, breaches, strict=True)
    return PerennialError(
        "no checkpoint is within the limits in selection.limits",
        evidence="; ".join(f"{each.title}: {' and '.join(broken)}" for each, broken in pairs),
        action="relax a limit that is too strict, or change the training",
    )


def _reason(
    metric: str,
    candidates: Sequence[ScoredCandidate],
    shortfalls: Sequence[tuple[float, float]],
    numbers: tuple[int, int],
    *,
    improving: bool,
) -> str:
    """Return why the first of the numbers was chosen, given that the second has the best metric."""
    number, top = numbers
    chosen, best = candidates[number], candidates[top]
    if len(candidates) == 1:
        return f"{chosen.title}: the only checkpoint kept"
    figure = f"{chosen.metrics[metric]:.4g}"
    if number == top:
        reason = f"{chosen.title}: best {metric} ({figure})"
        side = "later" if improving else "earlier"
        has_others = bool(candidates[top + 1 :] if improving else candidates[:top])
        return f"{reason}; no {side} checkpoint is within the tolerance" if has_others else reason
    gap, error = shortfalls[number]
    side = "latest checkpoint, as the curve still improves," if improving else "earliest checkpoint"
    return (
        f"{chosen.title}: {side} within the tolerance of the best; {metric} {figure} against "
        f"{best.metrics[metric]:.4g} ({best.title}), difference {gap:.2g}, "
        f"standard error {error:.2g}"
    )


def _require_one(finite: Sequence[Candidate], candidates: Sequence[Candidate]) -> None:
    if not finite:
        raise PerennialError(
            "every kept checkpoint has losses or metrics that are not finite",
            evidence=f"steps {[each.record.step for each in candidates]}",
            action="lower the learning rate or lengthen its warm-up; the training report shows "
            "where the loss became infinite or NaN",
        )


def is_finite(candidate: Candidate, task: Task, metric: str) -> bool:
    """Whether every loss, every prediction and the metric are finite.

    Raises:
        UndefinedMetricError: the rows do not define the metric.
    """
    scored = candidate.scored
    arrays = all_finite(scored.losses) and all_finite(scored.predictions)
    return arrays and math.isfinite(scored.metric(task, metric))


def _bounded(error: float) -> float:
    """Return a finite error: with one block, noise is unknown and no difference counts as noise."""
    return error if math.isfinite(error) else 0.0


def paired_draws(drawn: Sequence[Floats]) -> Floats:
    """Stack the draws of all candidates, [candidates, draws]; some have fewer draws."""
    shared = min(len(row) for row in drawn)
    return np.stack([row[:shared] for row in drawn])


def early_stop(values: Sequence[float], patience: int = PATIENCE) -> tuple[int, int]:
    """Follow a curve until it has no new best for `patience` evaluations.

    `values` are signed so that higher is better.

    Returns:
        Indices of the best evaluation until it stopped, and of that at which it stopped.
    """
    best = 0
    for index, value in enumerate(values):
        if value > values[best]:
            best = index
        elif index - best >= patience:
            return best, index
    return best, len(values) - 1


@dataclass(frozen=True)
class Alternative:
    """The choice of another selection rule.

    Attributes:
        ends: The step at which its training would have ended.
        sampled: Their metric on the sample, on which the rule decides.
        figure: Their metric on all validation rows; None if they were not kept.
        lead: By how much the chosen weights are better there; negative if they are worse.
    """

    name: str
    step: int
    ends: int
    sampled: float
    figure: float | None
    lead: float | None


def alternatives(
    evaluations: Sequence[EvaluationPoint],
    candidates: Sequence[ScoredCandidate],
    chosen: ScoredCandidate,
    *,
    metric: str,
    direction: Direction,
) -> tuple[Alternative, ...]:
    """Return the choices of `last`, the best metric during training, and early stopping."""
    if not evaluations:
        return ()
    sign = sign_of(direction)
    values = [sign * point.metrics[metric] for point in evaluations]
    last = len(values) - 1
    ways = {
        "last checkpoint": (last, last),
        f"best {metric} during training": (values.index(max(values)), last),
        f"early stopping, patience {PATIENCE}": early_stop(values),
    }
    kept = {each.step: each.metrics[metric] for each in candidates if each.is_plain}
    found = []
    for name, (shipped, ended) in ways.items():
        point = evaluations[shipped]
        figure = kept.get(point.step)
        # Not the sign times the difference, which can be minus zero.
        lead = None if figure is None else sign * chosen.metrics[metric] - sign * figure
        ends = evaluations[ended].step
        found.append(Alternative(name, point.step, ends, point.metrics[metric], figure, lead))
    return tuple(found)
