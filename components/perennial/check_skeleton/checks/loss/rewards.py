"""Find penalties with the wrong sign, which a training can lower without limit."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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

# On all weights. Bounded terms stop growing, and logarithms rise by the same each time.
FACTORS = (1.0, 3.0, 9.0, 27.0, 81.0, 243.0)
FEWEST_FACTORS = 3  # of them, before numbers overflow
GROWN = 2.0
# Of the penalty, and of the losses of which it is the difference.
SAME, ROUNDING = 1e-2, 1e-5
# Share of rows whose loss falls without limit; the others' labels hold the outputs.
FALLING = 0.05


@dataclass(frozen=True)
class Reward:
    """What training adds to the loss and lowers without limit as weights grow."""

    shown: str
    is_held: bool  # whether the rest of the loss grows faster, so that the sum has a minimum

    def __str__(self) -> str:
        return self.shown


class Added(NamedTuple):
    """What `training_losses` adds to `losses`, [B]."""

    penalty: Tensor
    whole: Tensor  # the training losses
    changed: Tensor  # the same outputs with the labels of other rows
    rounding: Tensor  # of the losses that are subtracted from each other


def find_reward(subject: Subject) -> Reward | None:
    """Find what training adds to the loss that falls without limit as weights grow.

    A penalty does not depend on labels, but for a positive factor, and is never far below zero.
    What falls is held where the losses grow faster: part of a loss that counts less in training, as
    a divergence in a bound, or the spread of an ensemble's members, is subtracted on purpose.
    """
    if not is_trained_otherwise(subject.task):
        return None
    batch = probe(subject)
    try:
        with torch.no_grad():
            found = list(_measure_penalties(subject, batch))
    except Exception:  # labels of other rows, or larger weights, are not possible in every task
        return None
    added = [each for _, each in found if each is not None]
    auxiliary = [own for own, _ in found if own is not None]
    if len(added) >= FEWEST_FACTORS and _are_free_of_labels(added[:FEWEST_FACTORS]):
        wholes = torch.stack([each.whole for each in added])
        is_falling = (wholes[-FEWEST_FACTORS:].diff(dim=0) < 0).all(dim=0)
        if shown := _describe_fall("training_losses", [each.penalty for each in added]):
            return Reward(shown, is_held=float(is_falling.double().mean()) < FALLING)
    shown = _describe_fall("auxiliary_losses", auxiliary)
    return Reward(shown, is_held=False) if shown else None


def _describe_fall(name: str, values: Sequence[Tensor]) -> str:
    """Describe values below zero that at least double at every factor; empty if they do not."""
    means = [float(each.mean()) for each in values]
    is_falling = all(after < GROWN * before < 0 for before, after in pairwise(means))
    if len(means) < FEWEST_FACTORS or not is_falling or float(torch.cat(list(values)).max()) > 0:
        return ""
    sizes = zip(FACTORS, means[:FEWEST_FACTORS], strict=False)
    shown = ", ".join(f"{mean:.3g} at {factor:g} times" for factor, mean in sizes)
    return f"what {name} adds to the loss is, by the size of the weights, {shown}"


def _measure_penalties(
    subject: Subject, batch: Batch
) -> Iterator[tuple[Tensor | None, Added | None]]:
    """Yield the auxiliary losses, and what the training losses add, under each factor.

    Ends before numbers are no longer finite.
    """
    task, model = subject.task, build_noisy_model(subject)
    other = {**batch, LABEL: batch[LABEL].roll(1, 0)}
    kept = [parameter.detach().clone() for parameter in model.parameters()]
    for factor in FACTORS:
        for parameter, own in zip(model.parameters(), kept, strict=True):
            parameter.copy_(factor * own)
        output = run_model(model, batch)
        auxiliary = task.auxiliary_losses(model)
        if auxiliary is not None and not bool(auxiliary.isfinite().all()):
            return
        if not is_own_loss(task):
            yield auxiliary, None
            continue
        losses, others = (task.losses(output, each) for each in (batch, other))
        whole = task.training_losses(output, batch)
        changed = task.training_losses(output, other) - others
        if not bool((whole.isfinite() & losses.isfinite() & others.isfinite()).all()):
            return
        rounding = ROUNDING * (losses.abs() + others.abs())
        yield auxiliary, Added(whole - losses, whole, changed, rounding)


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
