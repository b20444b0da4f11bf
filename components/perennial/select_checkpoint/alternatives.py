"""Alternatives: the checkpoints that other selection rules would have chosen."""

from collections.abc import Sequence
from dataclasses import dataclass

from perennial.contracts.training import Direction, EvaluationPoint, ScoredCandidate
from perennial.engine.evaluation.resampling import sign_of

# Evaluations without a new best after which Lightning's EarlyStopping ends a training.
PATIENCE = 3


@dataclass(frozen=True)
class EarlyStop:
    """The outcome of early stopping with patience on a curve.

    Attributes:
        shipped: Index of the evaluation whose weights it chooses, the best until it stopped.
        stopped: Index of the evaluation at which it stopped; the last one if it never did.
        is_early: Whether it would have stopped before the end.
    """

    shipped: int
    stopped: int
    is_early: bool


def early_stop(values: Sequence[float], patience: int = PATIENCE) -> EarlyStop:
    """Follow a curve until it has no new best for `patience` evaluations.

    Args:
        values: At each evaluation, signed so that higher is better; at least one.
        patience: Number of evaluations without a new best before it stops.
    """
    best = 0
    for index, value in enumerate(values):
        if value > values[best]:
            best = index
        elif index - best >= patience:
            return EarlyStop(best, index, index < len(values) - 1)
    return EarlyStop(best, len(values) - 1, False)


@dataclass(frozen=True)
class Alternative:
    """The choice of another selection rule.

    Attributes:
        name: Name of the rule.
        step: Step of the weights that it chooses.
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
    stop = early_stop(values)
    ways = {
        "last checkpoint": (last, last),
        f"best {metric} during training": (values.index(max(values)), last),
        f"early stopping, patience {PATIENCE}": (stop.shipped, stop.stopped),
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
