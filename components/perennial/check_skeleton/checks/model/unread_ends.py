"""Find ends of a series that a model never reads although they predict the label."""

from dataclasses import dataclass

import torch
from torch import nn

from perennial.check_skeleton.baselines import compute_control_losses, z_score
from perennial.check_skeleton.models import measure_changes, run_model
from perennial.check_skeleton.subject import Subject, select_head
from perennial.engine.task import Batch, inputs_of

ROWS = 16
SHORTEST_SERIES = 8
# Of a series: a stride that does not divide it leaves less.
LEAST_UNREAD = 0.1
# Rounding moves an answer by about 1e-7 of itself.
MOVED = 1e-5
CLEAR_ERRORS = 5.0
CLEARLY_WORSE = 1.1


@dataclass(frozen=True)
class UnreadEnd:
    """Steps at one end of a series [B, T, C] that no answer depends on."""

    name: str  # of the input
    steps: range
    is_last: bool
    length: int

    def __str__(self) -> str:
        which = "last" if self.is_last else "first"
        return f"the {which} {len(self.steps)} of {self.length} steps of {self.name}"


def find_unread_end(subject: Subject, model: nn.Module) -> UnreadEnd | None:
    """Return the end of a series without which a linear model predicts clearly worse, if unread."""
    batch = select_head(subject.train, ROWS)
    for name, tensor in inputs_of(batch).items():
        if tensor.ndim != 3 or not tensor.is_floating_point() or tensor.shape[1] < SHORTEST_SERIES:
            continue
        for is_last in (True, False):
            end = _measure_end(model, batch, name, is_last=is_last)
            if end is not None and _is_missed(subject, end):
                return end
    return None


def _measure_end(model: nn.Module, batch: Batch, name: str, *, is_last: bool) -> UnreadEnd | None:
    """Return the end that reaches no answer: it has no gradient, and other values move nothing.

    What recurrence forgets moves nothing either, but has a gradient. What is read without one, as
    by an index, moves answers.
    """
    tensor, length = batch[name].clone().requires_grad_(), batch[name].shape[1]
    try:
        output = model(**inputs_of({**batch, name: tensor}))
        (gradient,) = torch.autograd.grad(output.square().sum(), tensor)
        has_none = (gradient == 0).transpose(0, 1).flatten(1).all(dim=1)
        order = has_none.flip(0) if is_last else has_none
        unread = int(order.long().cumprod(dim=0).sum())
        steps = range(length - unread, length) if is_last else range(unread)
        changed = batch[name].clone()
        changed[:, list(steps)] = changed[:, list(steps)].roll(1, 0)
        after = run_model(model, {**batch, name: changed})
    except Exception:  # lengths or edges belong to their own steps and nodes; nothing is read
        return None
    is_short = unread < max(2, LEAST_UNREAD * length) or unread == length
    is_moved = bool((measure_changes(output.detach(), after) > MOVED).any())
    return None if is_short or is_moved else UnreadEnd(name, steps, is_last, length)


def _is_missed(subject: Subject, end: UnreadEnd) -> bool:
    """Whether a linear model of the inputs is clearly worse without the unread steps."""

    def cut(batch: Batch) -> Batch:
        series = batch[end.name].clone()
        series[:, list(end.steps)] = 0.0
        return {**batch, end.name: series}

    losses = compute_control_losses(subject)
    fewer = compute_control_losses(subject, cut(subject.train), cut(subject.validation))
    if losses is None or fewer is None:
        return False
    more = fewer[0] - losses[0]
    is_worse = fewer[0].mean() > CLEARLY_WORSE * losses[0].mean()
    return bool(is_worse) and z_score(more) >= CLEAR_ERRORS
