"""Single steps: whether the answer for a sequence depends on only one of its positions."""

import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.attention import observed_attention
from perennial.check_skeleton.checks.model.padding import padding_of
from perennial.check_skeleton.subject import Subject, rows_of
from perennial.engine.task import LABEL, Batch, inputs_of

PROBED_ROWS = 16
FEWEST_STEPS = 4
MOST_STEPS = 64
# Rounding moves an answer by about 1e-7 of itself.
MOVED = 1e-5


def single_step(subject: Subject, model: nn.Module) -> str:
    """Return the sequence of which the model reads only one position; empty where there is none.

    Models without recurrence and attention may take the last step by design, as simple forecasts.

    Args:
        subject: Its examples are changed, one position at a time.
        model: A model from `stirred_model`.
    """
    found, _ = subject.once(observed_attention)
    kinds = (nn.RNNBase, nn.MultiheadAttention)
    if not (found.lengths or any(isinstance(each, kinds) for each in model.modules())):
        return ""
    for name, tensor in inputs_of(subject.train).items():
        batch, content = _longest(subject.train, name)
        if content < FEWEST_STEPS or tensor.shape[1] > MOST_STEPS:
            continue
        try:
            seen = _seen(model, batch, name)
        except Exception:  # lengths or edges belong to their own tokens and nodes
            continue
        if seen is not None and int(seen.any()) and int(seen.sum(dim=0).max()) == 1:
            steps = {int(step) for step in seen.float().argmax(dim=0)}
            which = f"position {steps.pop()}" if len(steps) == 1 else "one position"
            return f"{name}: {which} of {content} or more"
    return ""


def _longest(batch: Batch, name: str) -> tuple[Batch, int]:
    """Return the examples with the longest sequences, and their shortest length; 0 for none."""
    tensor = batch[name]
    is_steps = tensor.ndim == 3 and tensor.is_floating_point() and tensor.shape[1] > 1
    few = torch.arange(min(PROBED_ROWS, len(tensor)))
    if is_steps:
        return rows_of(batch, few), tensor.shape[1]
    if tensor.ndim != 2 or tensor.is_floating_point() or name == LABEL:
        return batch, 0
    padding = padding_of(tensor)
    if padding is None:
        return batch, 0
    rows = padding.content.argsort(descending=True)[: len(few)]
    return rows_of(batch, rows), int(padding.content[rows].min())


@torch.no_grad()
def _seen(model: nn.Module, batch: Batch, name: str) -> Tensor | None:
    """Return which answers move with which positions, [T, B]; None if each position has its own."""
    before: Tensor = model(**inputs_of(batch))
    length = batch[name].shape[1]
    if before.ndim > 2 or before.shape[1:2] == (length,):
        return None
    seen: list[Tensor] = []
    for step in range(length):
        seen.append(_sees(model, batch, (name, step), before))
        if int(torch.stack(seen).sum(dim=0).max()) > 1:
            break  # several positions are seen, whatever the others do
    return torch.stack(seen)


def _sees(model: nn.Module, batch: Batch, place: tuple[str, int], before: Tensor) -> Tensor:
    """Return which answers move when a position is taken from another example, [B]."""
    name, step = place
    changed = batch[name].clone()
    changed[:, step] = batch[name][:, step].roll(1, 0)
    after = model(**inputs_of({**batch, name: changed}))
    moved: Tensor = ((after - before).abs() / (1 + before.abs())).reshape(len(before), -1)
    return moved.amax(dim=1) > MOVED
