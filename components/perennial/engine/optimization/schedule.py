"""Schedule: learning rate of an update in closed form; resuming needs no state."""

import math

from perennial.engine.config.optimization import (
    Constant,
    OneCycle,
    Schedule,
    Stepwise,
    WarmupStableDecay,
)

# The defaults of torch.optim.lr_scheduler.OneCycleLR: the first rate as a share of the peak, and
# the momentum at the first step, the peak and the last step.
CYCLE_START = 0.04
CYCLE_MOMENTA = (0.95, 0.85, 0.95)


def learning_rate(peak: float, schedule: Schedule, step: int, steps: int) -> float:
    """Return the learning rate of one update.

    Args:
        peak: The highest rate.
        schedule: Shape and warm-up.
        step: The update, counted from 0.
        steps: The budget. The update after the last would have the final rate.
    """
    length = schedule.steps or steps
    if isinstance(schedule, OneCycle):
        ends = (CYCLE_START, 1.0, schedule.final_fraction)
        return peak * _cycle(schedule, ends, step, length)
    warmup_steps = round(schedule.warmup_fraction * length)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if isinstance(schedule, Constant):
        return peak
    if isinstance(schedule, Stepwise):
        passed = sum(step >= round(milestone * length) for milestone in schedule.milestones)
        return peak * float(schedule.factor**passed)
    shape: str = schedule.shape
    start = warmup_steps
    if isinstance(schedule, WarmupStableDecay):
        shape = "sqrt"
        # Rounding both ends may make them overlap by a step.
        start = max(start, length - round(schedule.decay_fraction * length))
    left = _left(shape, _progress(step, start, length))
    return peak * (schedule.final_fraction + (1.0 - schedule.final_fraction) * left)


def momentum(schedule: Schedule, step: int, steps: int) -> float | None:
    """Return the momentum of one update; None keeps the optimizer's own."""
    if not isinstance(schedule, OneCycle) or not schedule.cycle_momentum:
        return None
    return _cycle(schedule, CYCLE_MOMENTA, step, schedule.steps or steps)


def _progress(step: int, start: int, end: int) -> float:
    """Return how much of a stretch lies behind: 0 at its first update, 1 behind its last."""
    if step < start:
        return 0.0
    return 1.0 if step >= end else (step - start) / (end - start)


def _left(shape: str, progress: float) -> float:
    """Return the share of the way down that is left."""
    if shape == "linear":
        return 1.0 - progress
    if shape == "sqrt":
        return 1.0 - math.sqrt(progress)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def _cycle(schedule: OneCycle, ends: tuple[float, float, float], step: int, length: int) -> float:
    """Go from the first value over the second to the third; steps as PyTorch counts."""
    first, turn, last = ends
    turning = max(schedule.rise_fraction * length - 1.0, 0.0)
    if step <= turning and turning > 0.0:
        start, end, progress = first, turn, step / turning
    else:
        behind = length - 1.0 - turning
        start, end, progress = turn, last, min((step - turning) / behind, 1.0) if behind else 1.0
    return end + (start - end) * _left("cosine", progress)
