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
    sizes = dict.fromkeys(each.shape[1] for each in inputs_of(batch).values() if each.ndim > 1)
    for choices in sizes:
        if max(2, int(places.max()) + 1) <= choices <= MOST_CHOICES:
            wrong = _count_wrong(subject, batch, choices)
            if wrong >= max(FEWEST, WRONG * len(places)):
                return (
                    f"{wrong} of {len(places)} augmented examples have their {choices} choices in "
                    "another order, in which the label names another one"
                )
    return ""


def _count_wrong(subject: Subject, batch: Batch, choices: int) -> int:
    """Count rows whose answer names another choice after augmentation.

    Texts, makers and sizes of the choices may be tensors of their own, which move together.
    """
    tensors = inputs_of(batch).items()
    parts = {name: each for name, each in tensors if each.shape[1:2] == (choices,)}
    try:
        if not _is_answered_by_place(subject, batch, parts):
            return 0
        marked = {name: _mark(each) for name, each in parts.items()}
        after = augment_copy(subject.task, {**batch, **marked}, subject.seed)
    except Exception:  # a task may accept no other inputs
        return 0
    orders = [
        _read_order(after[name], each) if after[name].shape == each.shape else None
        for name, each in parts.items()
    ]
    known = [order for order in orders if order is not None]
    if not known or after[LABEL].shape != batch[LABEL].shape:
        return 0
    moved = (known[0] != torch.arange(choices)).any(dim=1)
    named = known[0].gather(1, after[LABEL].long()[:, None])[:, 0]
    return int((named != batch[LABEL].long())[moved].sum())


def _is_answered_by_place(subject: Subject, batch: Batch, parts: Batch) -> bool:
    """Whether a model's outputs [B, K] move with the choices: each is of the choice at its place.

    Others may shuffle a set of parts, which no class is the number of.
    """
    model, turned = build_noisy_model(subject), {n: each.roll(1, 1) for n, each in parts.items()}
    outputs = [run_model(model, {**batch, **each}) for each in (parts, turned)]
    is_by_place = outputs[0].shape == (len(batch[LABEL]), *next(iter(parts.values())).shape[1:2])
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
