"""Find augmentation that flips or turns a picture and its map of labels by different draws.

Both are replaced by one pattern that each of the eight flips and quarter turns moves elsewhere.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from perennial.check_skeleton.checks.data.augmentation.mixing import augment_copy
from perennial.check_skeleton.subject import Codes, Flags, Subject, select_head
from perennial.engine.task import LABEL, Batch, inputs_of

ROWS = 64
SHORTEST_SIDE = 6
# Noise, erased parts and small crops leave more of the pattern; others are not judged.
CLEAR, LEAD = 0.6, 0.2
# Of the rows; most flips move half of them.
APART, FEWEST = 0.1, 4


def describe_moved_maps(subject: Subject) -> str:
    """Describe inputs that augmentation moves apart from their maps of labels; empty if none.

    A map has a label for each pixel, for each column or row of a picture, or for each step.
    """
    batch = select_head(subject.train, ROWS)
    for name, first in _list_shared_axes(batch):
        sides = batch[LABEL].shape[first[LABEL] :]
        pattern = torch.zeros(sides, dtype=torch.bool)
        corner = [side // part for side, part in zip(sides, (2, 3)[-len(sides) :], strict=True)]
        pattern[tuple(map(slice, corner))] = True
        marked = {each: _draw(batch[each], pattern, axis) for each, axis in first.items()}
        try:
            after = augment_copy(subject.task, {**batch, **marked}, subject.seed)
        except Exception:  # a task may accept no other pictures or maps
            continue
        if any(after[each].shape != batch[each].shape for each in marked):
            continue
        (one, is_clear), (other, is_clear_too) = (
            _read(after[each], pattern, axis) for each, axis in first.items()
        )
        apart = (one != other)[is_clear & is_clear_too]
        if apart.sum() >= max(FEWEST, APART * len(apart)):
            return (
                f"{apart.sum()} of {len(apart)} augmented examples have {name} flipped or turned "
                "another way than the map of the label"
            )
    return ""


def _list_shared_axes(batch: Batch) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield inputs with the sides of the label's map, and where these begin in both."""
    label = batch[LABEL]
    for name, tensor in inputs_of(batch).items():
        sides = label.shape[-2:] if label.ndim in (3, 4) else label.shape[1:]
        if not tensor.is_floating_point() or min(sides, default=0) < SHORTEST_SIDE:
            continue
        if label.ndim in (3, 4) and tensor.ndim == 4 and tensor.shape[-2:] == sides:
            yield name, {name: 2, LABEL: label.ndim - 2}
        shared = [axis for axis in range(1, tensor.ndim) if tensor.shape[axis] == label.shape[-1]]
        if label.ndim == 2 and len(shared) == 1:
            yield name, {name: shared[0], LABEL: 1}


def _draw(tensor: Tensor, pattern: Tensor, first: int) -> Tensor:
    """Return the pattern along a tensor's axes from `first` on, from its lowest to its highest."""
    low, high = tensor.min(), tensor.max()
    shape = [1] * tensor.ndim
    shape[first : first + pattern.ndim] = pattern.shape
    return torch.where(pattern.reshape(shape), high, low).expand_as(tensor).clone()


def _read(maps: Tensor, pattern: Tensor, first: int) -> tuple[Codes, Flags]:
    """Return which flip or turn of the pattern each map shows, and where that is clear."""
    axes = list(range(first, first + pattern.ndim))
    last = maps.double().movedim(axes, list(range(-pattern.ndim, 0)))
    flat = last.reshape(len(maps), -1, *pattern.shape).mean(dim=1)
    turns = [pattern.rot90(count) for count in range(4)] if pattern.ndim == 2 else [pattern]
    shown = [each for turn in turns for each in (turn, turn.flip(0)) if each.shape == pattern.shape]
    centred, masks = (
        (each - each.mean(dim=1, keepdim=True)).nan_to_num()
        for each in (flat.flatten(1), torch.stack(shown).double().flatten(1))
    )
    # Inverted pictures show the pattern, too.
    similar = (normalize(centred) @ normalize(masks).T).abs()
    best = similar.sort(dim=1, descending=True)
    is_clear = (best.values[:, 0] >= CLEAR) & (best.values[:, 0] - best.values[:, 1] >= LEAD)
    return np.asarray(best.indices[:, 0]), np.asarray(is_clear)
