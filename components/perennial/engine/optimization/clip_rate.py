"""Clip rate: detects constant clipping. Imports no torch."""

from collections.abc import Sequence

from perennial.contracts.training import StepPoint

# Logging intervals that are looked at: fewer are unreliable, more react slowly.
INTERVALS = 5
# The guides: set the limit near the 90th percentile of the norms, so that one update in ten is
# clipped; constant clipping hides another fault. More often than not is taken for constantly.
CONSTANTLY = 0.5


def constant_clipping(history: Sequence[StepPoint]) -> str | None:
    """Return a warning if a training clips most of its updates; else None.

    Args:
        history: The logged points so far; too few give no warning.
    """
    last = history[-INTERVALS:]
    if len(last) < INTERVALS:
        return None
    share = sum(point.clipped_share for point in last) / INTERVALS
    if share <= CONSTANTLY:
        return None
    return (
        f"clipping constantly: {share:.0%} of the updates of the last {INTERVALS} logging "
        "intervals were clipped, so that the limit, not the learning rate, sets the step. Raise "
        "the limit to near the 90th percentile of the gradient norms, or lower the learning rate; "
        "if norms are high from the start, look at initialisation, data and loss scale"
    )
