"""Pooling: whether the answer for a whole sequence depends on its padding."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.attention import masks_padding, observed_attention
from perennial.check_skeleton.checks.model.padding import Padding
from perennial.check_skeleton.subject import Subject, stirred_model
from perennial.engine.task import Batch, inputs_of

# An equal step at all positions of padding moves a mean as far as one at all words, and further in
# short texts; behind a mask it moves nothing.
READ_SHARE = 0.2
LEAST = 1e-3
LAYOUTS = {1: 2, 2: 1}
"""Dimension of positions → dimension of numbers, in the output of a layer."""


@dataclass(frozen=True)
class PooledPadding:
    """An answer that depends on padding, though the model gets a mask.

    Attributes:
        layer: The last layer with an output for each position.
        told_by: What marks padding.
        share: How far the answer moves with padding, relative to words.
    """

    layer: str
    told_by: str
    share: float


def pooled_padding(
    subject: Subject, batch: Batch, tokens: str, padding: Padding
) -> PooledPadding | None:
    """Return how padding affects the answer for a whole sequence; None where it does not.

    Args:
        subject: Builds the model.
        batch: Texts with padding.
        tokens: The input with their codes.
        padding: Padding of these texts.
    """
    rows, length = batch[tokens].shape
    # The first token of the padding may mark the end of the text.
    is_padding = Padding(padding.code, padding.content + 1, padding.is_left).covers(length)
    is_word = ~padding.covers(length)
    if not bool(is_padding.any(dim=1).all()):
        return None
    told_by = _told_by(subject, batch, is_padding, is_word)
    if not told_by:
        return None
    model = stirred_model(subject)
    with torch.no_grad():
        name, before = _last_of_positions(model, batch, (rows, length))
        if not name or before.ndim > 2 or before.shape[1:] == (length,):
            return None
        moved = [_moved(model, batch, (name, before), where) for where in (is_padding, is_word)]
    if moved[0] <= LEAST or moved[0] <= READ_SHARE * moved[1]:
        return None
    return PooledPadding(name, told_by, moved[0] / max(moved[1], 1e-12))


def _told_by(subject: Subject, batch: Batch, is_padding: Tensor, is_word: Tensor) -> str:
    """Return what marks padding: a mask of the model or a layer, or masked attention."""
    found: list[str] = []

    def tells(given: object) -> bool:
        if not isinstance(given, Tensor) or given.numel() != is_word.numel():
            return False
        mask = given.reshape(is_word.shape).double()
        inside, outside = mask[is_word], mask[is_padding]
        is_even = (inside == inside[0]).all() & (outside == outside[0]).all()
        return bool(is_even & (inside[0] != outside[0]))

    def note(module: nn.Module, given: tuple[object, ...], named: dict[str, object]) -> None:
        if any(tells(each) for each in (*given, *named.values())):
            found.append(f"the mask passed to {type(module).__name__}")

    model = stirred_model(subject)
    for each in model.modules():
        each.register_forward_pre_hook(note, with_kwargs=True)
    with torch.no_grad():
        model(**inputs_of(batch))
    if found:
        return found[0]
    seen, observed = subject.once(observed_attention)
    return "the mask of its attention" if masks_padding(subject, seen, observed) else ""


def _last_of_positions(
    model: nn.Module, batch: Batch, shape: tuple[int, int]
) -> tuple[str, Tensor]:
    """Return the last layer, not an embedding, with outputs per position; and the answers."""
    called: list[str] = []
    handles = []

    def watch(name: str, module: nn.Module) -> torch.utils.hooks.RemovableHandle:
        def note(_: nn.Module, given: object, output: object) -> None:
            if _axis(output, shape):
                called.append("" if isinstance(module, nn.Embedding) else name)

        return module.register_forward_hook(note)

    for name, module in model.named_modules():
        if name:
            handles.append(watch(name, module))
    try:
        answers: Tensor = model(**inputs_of(batch))
    finally:
        for handle in handles:
            handle.remove()
    return (called[-1] if called else ""), answers


def _axis(output: object, shape: tuple[int, int]) -> int:
    """Return the dimension of the positions in a layer's output; 0 where there is none."""
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor) or first.ndim != 3 or first.shape[0] != shape[0]:
        return 0
    return next((axis for axis in LAYOUTS if first.shape[axis] == shape[1]), 0)


def _moved(model: nn.Module, batch: Batch, at: tuple[str, Tensor], where: Tensor) -> float:
    """Return how far answers move, on average, with a layer's output at some positions."""
    name, before = at

    def step(_: nn.Module, given: object, output: object) -> object:
        first = output[0] if isinstance(output, tuple) else output
        assert isinstance(first, Tensor)
        axis = _axis(first, (where.shape[0], where.shape[1]))
        numbers = LAYOUTS[axis]
        size, generator = [1, 1, 1], torch.Generator().manual_seed(0)
        size[numbers] = first.shape[numbers]
        added = first.std() * torch.randn(size, generator=generator)
        moved = first + added * where.unsqueeze(numbers)
        return (moved, *output[1:]) if isinstance(output, tuple) else moved

    handle = model.get_submodule(name).register_forward_hook(step)
    try:
        return float((model(**inputs_of(batch)) - before).abs().mean())
    finally:
        handle.remove()
