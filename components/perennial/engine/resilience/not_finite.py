"""Not finite: finds the rank, rows and first tensor with NaN or infinity."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import nn

from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import TrainingFailedError, join_names
from perennial.contracts.section import Section
from perennial.engine.data.batching import Indices
from perennial.engine.optimization.parameters import local
from perennial.engine.world.distributed import World

SHOWN = 5


class NotFinite(Section):
    """One rank's record of an update that is not finite."""

    rank: int
    step: int
    """The first update whose loss or gradient was not finite. Losses are read at logging steps, so
    that loss and gradients below are those of the step at which it was noticed."""
    loss: str
    """This rank's part of the global batch's mean loss; as text, for JSON has no NaN."""
    is_loss_finite: bool
    gradients: tuple[str, ...]
    """Parameters whose gradient, or this rank's part of it, is not finite. In the order of the
    backward pass: the first of them, or the loss, is the origin."""
    rows: tuple[int, ...]
    """This rank's rows of the batch, as positions in the encoded training split."""

    @property
    def file_name(self) -> str:
        """Return the file name per rank and step: a training that skips may write several."""
        return f"not-finite-step-{self.step}-rank-{self.rank}.json"


def collect(
    world: World, model: nn.Module, folder: Path, *, step: int, loss: float, rows: Indices
) -> list[NotFinite]:
    """Write this rank's record, and gather those of the other ranks.

    Args:
        world: All ranks call together.
        model: Its gradients are reduced and not yet changed.
        folder: Where every rank writes its file.
        step: The first bad update, counted from 1.
        loss: This rank's part of the loss, of the update that has just been computed.
        rows: This rank's rows of the first bad update.
    """
    own = NotFinite(
        rank=world.rank,
        step=step,
        loss=str(loss),
        is_loss_finite=math.isfinite(loss),
        gradients=tuple(bad_gradients(model)),
        rows=tuple(rows.tolist()),
    )
    write_atomically(folder / own.file_name, own.to_json().encode())
    return world.from_first(world.to_first(own))


def bad_gradients(model: nn.Module) -> list[str]:
    """Return the parameters whose gradient is not finite on this rank, last layer first."""
    return [
        name.removeprefix("module.")  # of DDP
        for name, parameter in reversed(list(model.named_parameters()))
        if parameter.grad is not None and not torch.isfinite(local(parameter.grad)).all()
    ]


def failure(
    step: int, skipped: int, seen: Sequence[NotFinite], *, seen_at: int
) -> TrainingFailedError:
    """Return the error message."""
    noticed = f" (the first bad loss; noticed at step {seen_at})" if seen_at > step else ""
    spent = f" after {skipped} updates were skipped" if skipped else ""
    losses = [f"rank {each.rank} {each.loss}" for each in seen if not each.is_loss_finite]
    where = f"ranks with such a loss: {', '.join(losses)}" if losses else "every loss is finite"
    return TrainingFailedError(
        f"the training is not finite at or before step {step}{noticed}{spent}: {where}; "
        f"{describe(seen)}",
        evidence=f"the rows of each rank's batch: errors/not-finite-step-{step}-rank-*.json",
        action="lower the learning rate or set training.clipping; if it is the first step, look "
        "for a division, root or logarithm of zero in the task's losses",
    )


def describe(seen: Iterable[NotFinite]) -> str:
    """Describe the gradients that are not finite, in one line."""
    names = list(dict.fromkeys(name for each in seen for name in each.gradients))
    if not names:
        return "every gradient is finite"
    return f"gradients that are not finite, from the last layer on: {join_names(names, SHOWN)}"
