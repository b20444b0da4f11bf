"""Schedule: which learning rate does an update use? A closed form: resuming needs no state."""

import math

from components.engine.optimization.config import Schedule


def learning_rate(peak: float, schedule: Schedule, step: int, steps: int) -> float:
    """The learning rate of one update.

    Args:
        peak: The highest rate.
        schedule: Shape and warm-up.
        step: The update, counted from 0.
        steps: The budget. The update after the last would have rate 0, unless constant.
    """
    warmup_steps = round(schedule.warmup_fraction * steps)
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    if schedule.shape == "constant":
        return peak
    progress = (step - warmup_steps) / (steps - warmup_steps)
    if schedule.shape == "linear":
        return peak * (1.0 - progress)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
