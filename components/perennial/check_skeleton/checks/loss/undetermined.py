"""Metrics that depend on what the loss leaves free: the level of all outputs of an example."""

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import compute_output
from perennial.check_skeleton.models import Losses
from perennial.check_skeleton.subject import Subject, select_head
from perennial.engine.task import LABEL, WEIGHT, Batch, Task

PROBED_ROWS = 256
# A loss that has a level moves by its own size; what is left of one that has none is rounding.
SAME_LOSS, OTHER_METRIC = 1e-4, 0.02
# How PyTorch, its distributions and tasks reject values; other exceptions are bugs of the task.
REJECTIONS = ValueError, RuntimeError, ArithmeticError, AssertionError


@torch.no_grad()
def describe_undetermined_metrics(subject: Subject) -> str:
    """Describe metrics that change with a constant added to an example's outputs, unlike the loss.

    A softmax compares the outputs of an example with each other: sigmoids and thresholds of single
    outputs are then decided by chance. Empty if there are none, or the loss rejects other outputs.
    Other exceptions of the loss are raised.
    """
    task, group = subject.task, subject.task.scored_together
    rows = max(min(PROBED_ROWS, task.scoring_rows) // group, 1) * group
    batch = select_head(subject.validation, rows)
    output = compute_output(subject, batch)
    if not output.is_floating_point() or output.ndim < 2 or output.shape[-1] < 2:
        return ""
    generator = torch.Generator().manual_seed(subject.seed)
    trained = task.augment({name: each.clone() for name, each in batch.items()}, generator)
    for losses, some in ((task.training_losses, trained), (task.losses, batch)):
        own = compute_output(subject, some)
        losses(own, some)  # what raises on the model's own output is a bug, not a rejection
        # Of classes that a row does not have, the scores are minus infinity.
        spread = 2.0 * max(float(own[own.isfinite()].std()), 1.0)
        # Outputs of an untrained model are all alike.
        output = own + spread * torch.randn(own.shape, generator=generator)
        # All in one direction: a mean over examples need not follow levels of both signs.
        level = spread * (1 + torch.rand((*own.shape[:-1], 1), generator=generator))
        try:
            # An embedding beside its distances is free in the loss, but not in the model.
            level = level * find_read_columns(losses, output, some)
            moved = losses(output, some), losses(output + level, some)
        except REJECTIONS:  # a loss that rejects some outputs, such as variances, sets their level
            return ""
        size = float(moved[0].abs().mean())
        if not np.isfinite(size) or not torch.allclose(*moved, SAME_LOSS, SAME_LOSS * size):
            return ""
    before, after = (_score(task, each, batch) for each in (output, output + level))
    changed = [name for name in before if not np.isclose(before[name], after[name], OTHER_METRIC)]
    if not changed:
        return ""
    return "a constant added to all outputs of an example changes no loss, but " + ", ".join(
        f"{name} from {before[name]:.4g} to {after[name]:.4g}" for name in changed
    )


def find_read_columns(losses: Losses, output: Tensor, batch: Batch) -> Tensor:
    """Return which columns of the last dimension, [C], the loss has a gradient for."""
    with torch.enable_grad():
        free = output.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(losses(free, batch).sum(), free)
    return (gradient != 0).flatten(0, -2).any(dim=0)


def _score(task: Task, output: Tensor, batch: Batch) -> dict[str, float]:
    if task.kind == "statistic":
        weights = batch.get(WEIGHT, torch.ones(len(batch[LABEL])))
        return task.score(task.statistic(output, batch).double().numpy(), weights.double().numpy())
    return task.score(task.predict(output).double().numpy(), batch[LABEL].double().numpy())
