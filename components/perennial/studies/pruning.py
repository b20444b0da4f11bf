"""Pruning: stop trials that are behind, by asynchronous successive halving (ASHA).

Li et al. 2020, "A system for massively parallel hyperparameter tuning", in the variant that stops
instead of pausing: a trial goes on from a rung if it is among the best `1 / reduction` of those
that reached the rung before it. "Before it" are the trials of `plan.needed`, so that the decision
depends on no timing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perennial.contracts.training import Direction, EvaluationPoint
from perennial.studies.records import StudyPlan, Trial


@dataclass(frozen=True)
class Pruned:
    """A decision to stop a trial."""

    step: int
    reason: str


def rungs(steps: int, evaluate_every: int, reduction: int) -> list[int]:
    """Return the steps at which trials are compared: evaluations a factor `reduction` apart."""
    found: set[int] = set()
    step = steps / reduction
    while step >= evaluate_every:
        found.add(int(step // evaluate_every) * evaluate_every)
        step /= reduction
    return sorted(found)


def best_until(
    points: Sequence[EvaluationPoint], step: int, metric: str, direction: Direction
) -> float | None:
    """Return the best of a metric over the evaluations up to a step; None without a value.

    The weights' moving average counts where there is one, as in the choice of a checkpoint.
    """
    found = [
        value
        for point in points
        if point.step <= step and (value := point.better_of(metric, direction)) is not None
    ]
    return (max if direction == "maximize" else min)(found, default=None)


def prune(
    plan: StudyPlan,
    places: Sequence[int],
    number: int,
    points: Mapping[int, EvaluationPoint],
    earlier: Sequence[Trial],
) -> Pruned | None:
    """Return the first rung at which a trial is stopped; None if it may go on for now.

    Args:
        plan: The study.
        places: Its rungs.
        number: The trial's number.
        points: Step → evaluation of its first training so far. A rung that lacks an earlier
            evaluation is left for later: the training was resumed elsewhere.
        earlier: The trials of `plan.needed(number)`.
    """
    if plan.study.pruning == "off" or number == 0 or plan.stage_of(number) == "confirm":
        return None
    every = evaluation_interval(plan)
    sign = 1.0 if plan.direction == "minimize" else -1.0
    for rung in places:
        if any(step not in points for step in range(every, rung + 1, every)):
            return None
        own = best_until(list(points.values()), rung, plan.metric, plan.direction)
        others = [
            value
            for trial in earlier
            if trial.trainings and trial.last_step >= rung
            for value in [
                best_until(trial.trainings[0].evaluations, rung, plan.metric, plan.direction)
            ]
            if value is not None
        ]
        compared = len(others) + 1
        if compared < plan.study.reduction:  # the best share of them is less than one trial
            continue
        limit = sorted(others, key=lambda value: sign * value)[compared // plan.study.reduction - 1]
        if own is None or sign * own > sign * limit:
            shown = "no value" if own is None else f"{own:.6g}"
            return Pruned(
                rung,
                f"stopped at step {rung}: {plan.metric} {shown} is worse than {limit:.6g}, the "
                f"limit of the best 1/{plan.study.reduction} of {compared} trials there",
            )
    return None


def evaluation_interval(plan: StudyPlan) -> int:
    """Return the steps between two evaluations of a trial."""
    training = plan.contract.get("training")
    found = training.get("evaluate_every_steps") if isinstance(training, dict) else None
    return int(str(found or 100))
