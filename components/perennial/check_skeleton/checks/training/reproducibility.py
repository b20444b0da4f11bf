"""Reproducibility: two runs under one seed must agree bit for bit."""

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.short_training import shuffled_batches, updates
from perennial.check_skeleton.subject import Subject, seeded
from perennial.contracts.skeleton import CheckResult

STEPS = 5


@check(
    "reproducibility",
    expects=f"equal initial weights and equal losses for {STEPS} updates, twice",
    source="guides: fix every random seed",
)
def check_reproducibility(subject: Subject, judge: Judge) -> CheckResult:
    """Check that initial weights and losses depend only on the seed."""
    (first, first_losses), (again, losses_again) = (_run(subject) for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        return judge.failed(
            "the initial weights differ under one seed",
            hint="initialise with torch's global generator only; the engine seeds it",
        )
    if not np.array_equal(first_losses, losses_again, equal_nan=True):
        return judge.failed(
            f"the losses differ: {first_losses[-1]:.6g} and {losses_again[-1]:.6g}",
            hint="the model or the loss draws numbers from an unseeded generator",
        )
    if _draw_after_build(subject, subject.seed) == _draw_after_build(subject, subject.seed + 1):
        return judge.failed(
            "build_model sets the global seed",
            hint="remove manual_seed from the task: it makes all ranks and all dropout masks equal",
        )
    return judge.passed(f"loss {losses_again[-1]:.6g} after {STEPS} updates, twice")


def _run(subject: Subject) -> tuple[list[Tensor], list[float]]:
    """Return initial weights and losses of a few updates, with dropout, as in training."""
    with seeded(subject.seed):
        model = subject.task.build_model()
        model.train()
        start = [value.detach().clone() for value in model.state_dict().values()]
        batches = shuffled_batches(subject, subject.train, STEPS)
        rate = subject.settings.learning_rates[0]
        return start, [float(loss.detach()) for loss in updates(subject.task, model, batches, rate)]


def _draw_after_build(subject: Subject, seed: int) -> float:
    with seeded(seed):
        subject.task.build_model()
        return float(torch.rand(()))
