"""Alternatives: what would other ways of choosing have shipped from the same training?"""

from collections.abc import Sequence
from dataclasses import dataclass

# Evaluations without a new best after which Lightning's EarlyStopping ends a training.
PATIENCE = 3


@dataclass(frozen=True)
class EarlyStop:
    """What early stopping with patience would have done, as if the curve had been its own.

    Attributes:
        shipped: Index of the evaluation whose weights it ships, the best until it stopped.
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
        patience: Evaluations without a new best that it waits for.
    """
    best = 0
    for index, value in enumerate(values):
        if value > values[best]:
            best = index
        elif index - best >= patience:
            return EarlyStop(best, index, index < len(values) - 1)
    return EarlyStop(best, len(values) - 1, False)
