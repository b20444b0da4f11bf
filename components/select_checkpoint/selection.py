"""Selection: which of the kept checkpoints is best, when differences within noise do not count."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from components.contracts.errors import PerennialError
from components.contracts.training import CheckpointRecord, Direction, ScoredCandidate
from components.engine.evaluation.resampling import Blocks, resample, sign_of, standard_error
from components.engine.evaluation.scoring import Scored
from components.engine.task import Task

# Draws of the bootstrap: its standard error is then known to within 2.5% (1 / sqrt(2 x 800)).
RESAMPLES = 800


@dataclass(frozen=True)
class Candidate:
    """Weights that may be chosen: a kept checkpoint's own, or their moving average.

    Attributes:
        record: The checkpoint.
        scored: On the same rows as all others.
        averaged: Whether these are the averaged weights.
    """

    record: CheckpointRecord
    scored: Scored
    averaged: bool = False


@dataclass(frozen=True)
class Selection:
    """The chosen checkpoint among all that were scored, in step order.

    Attributes:
        chosen: The one that goes to the gate.
        best: The one with the best figure.
        last: The newest, as it was trained.
        candidates: All of them, in step order, averaged weights after the step's own.
        shortfalls: For each candidate, how far it falls behind the best, and the standard error
            of that difference.
        reason: Why the chosen one, in a sentence.
    """

    chosen: ScoredCandidate
    best: ScoredCandidate
    last: ScoredCandidate
    candidates: tuple[ScoredCandidate, ...]
    shortfalls: tuple[tuple[float, float], ...]
    reason: str

    def figures(self, metric: str) -> dict[str, float]:
        """What each way of choosing would have shipped."""
        named = {"chosen": self.chosen, "best": self.best, "last": self.last}
        figures = {f"validation/{name}_{metric}": c.metrics[metric] for name, c in named.items()}
        return figures | {"validation/chosen_step": float(self.chosen.step)}


def metric_and_direction(task: Task, name: str) -> tuple[str, Direction]:
    """The metric that a section names, and which way it is better.

    Raises:
        PerennialError: the task has no such metric.
    """
    if name == "loss":
        return name, "minimize"
    chosen = name or next(iter(task.metrics))
    if chosen not in task.metrics:
        raise PerennialError(
            f"selection.metric = {name!r} is no metric of the task",
            evidence=f"it has {', '.join(task.metrics)} and loss",
            action="name one of them, or leave it empty for the first",
        )
    return chosen, task.metrics[chosen]


def select(
    task: Task,
    candidates: Sequence[Candidate],
    blocks: Blocks,
    *,
    metric: str,
    direction: Direction,
    tolerance: float,
) -> Selection:
    """Choose the earliest checkpoint that the best one does not clearly beat.

    Args:
        task: Computes the metric.
        candidates: All weights of the kept checkpoints, scored on the same rows.
        blocks: Of those rows.
        metric: What is compared.
        direction: Which way it is better.
        tolerance: In standard errors of the paired difference to the best.

    Raises:
        PerennialError: no checkpoint has a finite figure.
    """
    finite = sorted(
        (each for each in candidates if _finite(each.scored)),
        key=lambda each: (each.record.step, each.averaged),
    )
    _require_one(finite, candidates)
    draws = blocks.draws(RESAMPLES)
    values = _paired([resample(task, metric, each.scored, blocks, draws) for each in finite])
    ordered = tuple(
        ScoredCandidate(
            step=each.record.step,
            uri=each.record.uri,
            metrics=each.scored.metrics(task),
            standard_error=_bounded(standard_error(row, blocks)),
            kept_as=each.record.kept_as,
            averaged=each.averaged,
        )
        for each, row in zip(finite, values, strict=True)
    )
    sign = sign_of(direction)
    figures = [sign * candidate.metrics[metric] for candidate in ordered]
    top = int(np.argmax(figures))  # the earliest of equals
    shortfalls = tuple(
        (figures[top] - figure, _bounded(standard_error(values[top] - row, blocks)))
        for figure, row in zip(figures, values, strict=True)
    )
    within = [number for number, (gap, error) in enumerate(shortfalls) if gap <= tolerance * error]
    number = within[0] if within else top
    return Selection(
        chosen=ordered[number],
        best=ordered[top],
        last=max(ordered, key=lambda each: (each.step, not each.averaged)),
        candidates=ordered,
        shortfalls=shortfalls,
        reason=_reason(metric, ordered, shortfalls, number, top),
    )


def _reason(
    metric: str,
    candidates: Sequence[ScoredCandidate],
    shortfalls: Sequence[tuple[float, float]],
    number: int,
    top: int,
) -> str:
    chosen, best = candidates[number], candidates[top]
    others = len(candidates) - 1
    if others == 0:
        return f"{chosen.title} is the only checkpoint kept"
    if number == top:
        return (
            f"{chosen.title} has the best {metric}, {chosen.metrics[metric]:.4g}, and no "
            f"earlier one of the {others} others comes close enough"
        )
    gap, error = shortfalls[number]
    return (
        f"{chosen.title} is the earliest whose {metric}, {chosen.metrics[metric]:.4g}, is "
        f"within noise of the best, {best.metrics[metric]:.4g} at {best.title}: they differ by "
        f"{gap:.2g}, the standard error of the difference is {error:.2g}"
    )


def _require_one(finite: Sequence[Candidate], candidates: Sequence[Candidate]) -> None:
    if not finite:
        raise PerennialError(
            "every kept checkpoint gives losses that are not finite numbers",
            evidence=f"steps {[each.record.step for each in candidates]}",
            action="lower the learning rate or raise its warm-up; the training report shows where "
            "the loss left the finite numbers",
        )


def _finite(scored: Scored) -> bool:
    return bool(np.isfinite(scored.losses).all() and np.isfinite(scored.predictions).all())


def _bounded(error: float) -> float:
    """One block tells nothing about noise, so no difference is put down to it."""
    return error if math.isfinite(error) else 0.0


def _paired(drawn: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Draws of all candidates, [candidates, draws]; one without a fast form has fewer of them."""
    shared = min(len(row) for row in drawn)
    return np.stack([row[:shared] for row in drawn])
