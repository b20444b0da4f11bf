"""Overfit one batch: what cannot learn a few examples by heart cannot learn anything."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat

import torch
from pydantic import JsonValue

from components.check_skeleton.free_outputs import free_outputs, output_of
from components.check_skeleton.short_training import simplified, updates
from components.check_skeleton.subject import Subject, mean_loss
from components.check_skeleton.verdict import CURVES, Judge
from components.contracts.skeleton import CheckResult
from components.engine.task import LABEL, Batch, inputs_of

# A model with ten times more numbers in play than examples can learn them by heart; with fewer,
# failing to is no proof of a bug.
PARAMETERS_PER_EXAMPLE = 10


@dataclass(frozen=True)
class Fit:
    """One batch, learned by heart or not.

    Attributes:
        losses: Before each update.
        target: What counts as zero.
    """

    losses: Sequence[float]
    target: float

    @property
    def learned(self) -> bool:
        """Whether the loss got to what counts as zero."""
        return min(self.losses) <= self.target

    def __str__(self) -> str:
        return f"{self.losses[0]:.4g} → {min(self.losses):.3g} (zero is {self.target:.3g})"


def overfit_one_batch(subject: Subject) -> CheckResult:
    """Can the model learn two examples, and one batch, by heart?"""
    settings = subject.settings
    judge = Judge(
        "overfit_one_batch",
        expected=f"loss below {settings.overfit_tolerance:.0%} of the best constant's within "
        f"{settings.overfit_steps} updates",
        source="guides: if you cannot overfit a tiny batch, stop everything",
    )
    two, batch = subject.balanced(2), subject.balanced(settings.overfit_rows)
    rows = len(batch[LABEL])
    small, large = _best_fit(subject, two), _best_fit(subject, batch)
    shown = f"2 examples: {small}; {rows} examples: {large}"
    curves: JsonValue = {
        name: [[float(step), loss] for step, loss in enumerate(fit.losses)]
        for name, fit in (("2 examples", small), (f"{rows} examples", large))
    }
    if small.learned and large.learned:
        return judge.passed(shown, **{CURVES: curves})
    numbers = _numbers_in_play(subject, batch)
    if small.learned and numbers < PARAMETERS_PER_EXAMPLE * rows:
        return judge.warned(
            shown,
            hint=f"only {numbers} parameters are in play, too few to learn {rows} examples by "
            "heart; show that a larger model can",
            **{CURVES: curves},
        )
    return judge.failed(
        shown,
        hint=f"{numbers} parameters are in play and no learning rate of {settings.learning_rates} "
        "does it: read parameter_gradients, initial_loss and loss_floor first, then the model",
        **{CURVES: curves},
    )


def _best_fit(subject: Subject, batch: Batch) -> Fit:
    """The fit at the first learning rate that learns the batch, else the lowest one."""
    settings, fits = subject.settings, []
    free = free_outputs(subject.task, output_of(subject, batch), batch)
    # Measured above the loss's own floor: that is `loss_floor`'s to judge.
    target = free.floor + settings.overfit_tolerance * max(free.constant_loss - free.floor, 0.0)
    for rate in settings.learning_rates:
        model = simplified(subject.build_model())
        batches = repeat(batch, settings.overfit_steps + 1)
        losses = []
        for loss in updates(subject.task, model, batches, rate):
            losses.append(float(loss.detach()))
            if losses[-1] <= target:
                break
        fits.append(Fit(losses, target))
        if fits[-1].learned:
            return fits[-1]
    return min(fits, key=lambda fit: min(fit.losses))


def _numbers_in_play(subject: Subject, batch: Batch) -> int:
    """How many single parameters get a gradient from this batch."""
    model = simplified(subject.build_model())
    loss = mean_loss(subject.task.losses(model(**inputs_of(batch)), batch), batch)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters or not loss.requires_grad:
        return 0
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    return sum(int((gradient != 0).sum()) for gradient in gradients if gradient is not None)
