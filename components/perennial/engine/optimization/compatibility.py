"""Compatibility: checks combinations of optimizers, schedules and layouts. Imports no torch."""

from perennial.engine.optimization.config import Adafactor, AdamW8bit, Optimizer, Sgd
from perennial.engine.optimization.schedule_config import OneCycle, Schedule
from perennial.engine.parallelism.config import Parallelism, Strategy


def check_layout(optimizer: Optimizer, strategy: Strategy, parallelism: Parallelism) -> None:
    """Refuse an optimizer that cannot update weights laid out like this.

    Raises:
        ValueError: it cannot; what PyTorch 2.13 would raise at the first update.
    """
    is_whole = strategy in ("single", "ddp") and parallelism.tensor == parallelism.expert == 1
    if isinstance(optimizer, Sgd) and optimizer.implementation == "fused" and not is_whole:
        raise ValueError(
            f"optimizer.implementation = 'fused' of 'sgd' does not run under strategy = "
            f"{strategy!r}: PyTorch has no fused SGD for sharded weights "
            "(aten._fused_sgd_ has no sharding strategy); use 'foreach', or strategy = 'ddp'"
        )
    if isinstance(optimizer, AdamW8bit) and parallelism.tensor > 1:
        raise ValueError(
            "optimizer.name = 'adamw8bit' does not run with parallelism.tensor > 1: its blocks of "
            "256 values are cut from rows; use 'adafactor' to save memory there"
        )


def check_schedule(optimizer: Optimizer, schedule: Schedule, steps: int) -> None:
    """Refuse a schedule that does not fit the training's length or its optimizer.

    Raises:
        ValueError: it does not.
    """
    if schedule.steps not in (None, steps) and not schedule.allow_other_length:
        raise ValueError(
            f"schedule.steps = {schedule.steps} is not training.steps = {steps}: the learning rate "
            "would not end where the training does; remove it, or set "
            "schedule.allow_other_length = true"
        )
    if not isinstance(schedule, OneCycle) or not schedule.cycle_momentum:
        return
    reason = ""
    if isinstance(optimizer, Adafactor) or (isinstance(optimizer, Sgd) and not optimizer.momentum):
        reason = "has no momentum"
    elif isinstance(optimizer, AdamW8bit):
        reason = "would compile its kernel again at every step"
    if reason:
        raise ValueError(
            f"schedule.cycle_momentum: {optimizer.name!r} {reason}; set cycle_momentum = false"
        )
