"""Find the loss that counts as zero where a model is to memorise a few examples."""

import math
from dataclasses import dataclass

from perennial.check_skeleton.checks.loss.densities import is_log_density
from perennial.check_skeleton.checks.training.prefix_floor import measure_prefix_floor
from perennial.check_skeleton.free_outputs import (
    compute_output,
    find_free_outputs,
    is_density,
    reach_loss_by_steps,
)
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL, Batch

# The share of the best constant's loss that counts as zero.
TOLERANCE = 0.05
# Of bugs that nothing else found, the best loss was 7 times what counts as zero, or more; of two
# healthy tasks that did not reach it, 1.3 and 4 times.
CLOSE = 5.0
# Of the way from the best constant: what has learned no more than the constant is never close.
LEAST_WAY = 0.25


@dataclass(frozen=True)
class Goal:
    """Losses of a batch that a model can reach."""

    floor: float  # the least possible loss
    margin: float  # how far above the floor still counts as zero
    constant: float  # loss of the best constant output

    @property
    def target(self) -> float:
        """Return the loss that counts as zero."""
        return self.floor + self.margin

    @property
    def close(self) -> float:
        """Return the loss below which it came close."""
        way = (1 - LEAST_WAY) * max(self.constant - self.floor, 0.0)
        return self.floor + max(min(CLOSE * self.margin, way), self.margin)


def find_goal(subject: Subject, batch: Batch) -> Goal:
    """Return what a model that can memorise the batch reaches."""
    settings = subject.settings
    output = compute_output(subject, batch)
    free = find_free_outputs(subject, output, batch)
    # Measured above the floor of the loss, which `loss_floor` checks.
    floor = max(free.floor, measure_prefix_floor(subject, output, batch))
    constant = free.constant_loss if free.is_bound else free.model_loss
    narrows = floor < 0 or is_density(subject, free.ideal, batch)
    if narrows:
        # Without end: the target is the loss that as many steps on the outputs reach.
        rate = max(settings.learning_rates)
        floor = reach_loss_by_steps(subject, output, batch, settings.overfit_steps, rate)
    elif output[0].numel() > batch[LABEL][0].numel():
        narrows = is_log_density(subject)
    room = max(constant - floor, 0.0)
    margin = TOLERANCE * room
    if narrows:
        # Or a variance of the error (half the loss is its logarithm) of the tolerated share.
        margin = max(margin, room - 0.5 * math.log(1 / TOLERANCE))
    return Goal(floor, margin, constant)
