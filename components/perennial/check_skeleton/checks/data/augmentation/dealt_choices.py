"""Find augmentation that deals a row's choices in another order, and does not renumber the answer.

Every choice is replaced by a number of its own, by which it is known after it was moved.
"""

import torch
from torch import Tensor

from perennial.check_skeleton.checks.data.augmentation.mixing import augment_copy
from perennial.check_skeleton.models import build_noisy_model, run_model
from perennial.check_skeleton.subject import ROUNDING, Subject, are_equal, select_head
from perennial.engine.task import LABEL, Batch, inputs_of

ROWS = 64
MOST_CHOICES = 64
# Of the distance between two marks: noise, or mixed choices, move them farther.
NEAR = 0.2
# Of the rows; dealing leaves few in their order.
WRONG, FEWEST = 0.1, 4


def describe_dealt_choices(subject: Subject) -> str:
    """Describe choices [B, K, …] whose answer, a place among them, no longer names the same one.

    Empty if there are no choices, they keep their order, or the answer follows them.
    """
    batch = select_head(subject.train, ROWS)
    answer = batch[LABEL]
    if subject.task.kind not in ("multiclass", "statistic") or answer.ndim > 1:
        return ""
    places = answer.long()
    if not torch.equal(places.to(answer.dtype), answer) or int(places.min()) < 0:
        return ""
    for name, tensor in inputs_of(batch).items():
        choices = tensor.shape[1] if tensor.ndim > 1 else 0
        if not max(2, int(places.max()) + 1) <= choices <= MOST_CHOICES:
            continue
        try:
            if not _is_answered_by_place(subject, batch, name):
                continue
            after = augment_copy(subject.task, {**batch, name: _mark(tensor)}, subject.seed)
        except Exception:  # a task may accept no other inputs
            continue
        order = _read_order(after[name], tensor) if after[name].shape == tensor.shape else None
        if order is None or after[LABEL].shape != places.shape:
            continue
        moved = (order != torch.arange(choices)).any(dim=1)
        named = order.gather(1, after[LABEL].long()[:, None])[:, 0]
        wrong = int((named != places)[moved].sum())
        if wrong >= max(FEWEST, WRONG * len(places)):
            return (
                f"{wrong} of {len(places)} augmented examples have the parts of {name} in another "
                "order, in which the label names another part"
            )
    return ""


def _is_answered_by_place(subject: Subject, batch: Batch, name: str) -> bool:
    """Whether a model's outputs [B, K] move with the choices: each is of the choice at its place.

    Others may shuffle a set of parts, which no class is the number of.
    """
    model, turned = build_noisy_model(subject), batch[name].roll(1, dims=1)
    outputs = [run_model(model, {**batch, name: each}) for each in (batch[name], turned)]
    is_by_place = outputs[0].shape == batch[name].shape[:2]
    return is_by_place and are_equal(outputs[0].roll(1, dims=1), outputs[1], ROUNDING)


def _mark(tensor: Tensor) -> Tensor:
    """Return choices of the same shape, each filled with a number of its own."""
    low, high, choices = tensor.min().double(), tensor.max().double(), tensor.shape[1]
    marks = low + (high - low) * torch.arange(choices) / (choices - 1)
    marks = marks if tensor.is_floating_point() else low + torch.arange(choices)
    return marks.to(tensor.dtype).reshape(1, -1, *[1] * (tensor.ndim - 2)).expand_as(tensor).clone()


def _read_order(after: Tensor, tensor: Tensor) -> Tensor | None:
    """Return which choice stands at each place [B, K]; None if they were changed or mixed."""
    marks = _mark(tensor)[0].double().reshape(tensor.shape[1], -1)[:, 0]
    values = after.double().reshape(*tensor.shape[:2], -1)
    if not bool((values.amax(dim=2) - values.amin(dim=2) == 0).all()):
        return None
    distance = (values[:, :, :1] - marks).abs()
    step = (marks[1] - marks[0]).abs()
    if not bool(step > 0) or bool((distance.amin(dim=2) > NEAR * step).any()):
        return None
    order = distance.argmin(dim=2)
    is_dealt = order.sort(dim=1).values == torch.arange(len(marks))
    return order if bool(is_dealt.all()) else None
