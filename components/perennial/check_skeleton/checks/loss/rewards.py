"""Find penalties with the wrong sign, which a training can lower without limit."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import probe
from perennial.check_skeleton.models import (
    build_noisy_model,
    is_own_loss,
    is_trained_otherwise,
    run_model,
)
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL, Batch

# On all weights. Entropies and other bounded terms stay, logarithms rise by half.
FACTORS = (1.0, 3.0, 9.0)
GROWN = 2.0
# Of the penalty, and of the losses of which it is the difference.
SAME, ROUNDING = 1e-2, 1e-5


class Added(NamedTuple):
    """What `training_losses` adds to `losses`, [B]."""

    penalty: Tensor
    changed: Tensor  # the same outputs with the labels of other rows
    rounding: Tensor  # of the losses that are subtracted from each other


def describe_reward(subject: Subject) -> str:
    """Describe how what training adds to the loss falls as weights grow; empty if it does not.

    A penalty does not depend on labels, but for a positive factor, and is never far below zero.
    """
    if not is_trained_otherwise(subject.task):
        return ""
    batch = probe(subject)
    try:
        with torch.no_grad():
            found = list(_measure_penalties(subject, batch))
    except Exception:  # labels of other rows, or larger weights, are not possible in every task
        return ""
    added = [each for _, each in found if each is not None]
    penalties = {
        "training_losses": [each.penalty for each in added] if _are_free_of_labels(added) else [],
        "auxiliary_losses": [auxiliary for auxiliary, _ in found if auxiliary is not None],
    }
    for name, values in penalties.items():
        means = [float(each.mean()) for each in values]
        is_falling = all(after < GROWN * before < 0 for before, after in pairwise(means))
        if len(means) == len(FACTORS) and is_falling and float(torch.cat(values).max()) <= 0:
            sizes = zip(FACTORS, means, strict=True)
            shown = ", ".join(f"{mean:.3g} at {factor:g} times" for factor, mean in sizes)
            return f"what {name} adds to the loss is, by the size of the weights, {shown}"
    return ""


def _measure_penalties(
    subject: Subject, batch: Batch
) -> Iterator[tuple[Tensor | None, Added | None]]:
    """Yield the auxiliary losses, and what the training losses add, under each factor."""
    task, model = subject.task, build_noisy_model(subject)
    other = {**batch, LABEL: batch[LABEL].roll(1, 0)}
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    for factor in FACTORS:
        for parameter, own in zip(model.parameters(), kept, strict=True):
            parameter.copy_(factor * own)
        output = run_model(model, batch)
        auxiliary = task.auxiliary_losses(model)
        if not is_own_loss(task):
            yield auxiliary, None
            continue
        losses, others = (task.losses(output, each) for each in (batch, other))
        penalty = task.training_losses(output, batch) - losses
        changed = task.training_losses(output, other) - others
        yield auxiliary, Added(penalty, changed, ROUNDING * (losses.abs() + others.abs()))


def _are_free_of_labels(added: Sequence[Added]) -> bool:
    """Whether other labels change a penalty by a positive factor only, as by their number."""
    if not added:
        return False
    ratio = added[-1].changed / added[-1].penalty
    return bool((ratio > 0).all()) and all(
        bool(
            (
                (each.changed - ratio * each.penalty).abs()
                <= SAME * each.changed.abs() + (1 + ratio) * each.rounding
            ).all()
        )
        for each in added
    )
