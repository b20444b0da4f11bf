"""Find augmentation that flips or turns a picture and its map of labels by different draws.

Both are replaced by one pattern that each of the eight flips and quarter turns moves elsewhere.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from perennial.check_skeleton.checks.data.mixing import augment_copy
from perennial.check_skeleton.subject import Codes, Flags, Subject, select_head
from perennial.engine.task import LABEL, inputs_of

ROWS = 64
SHORTEST_SIDE = 6
# Noise, erased parts and small crops leave more of the pattern; others are not judged.
CLEAR, LEAD = 0.6, 0.2
# Of the rows; most flips move half of them.
APART, FEWEST = 0.1, 4


def describe_moved_maps(subject: Subject) -> str:
    """Describe pictures that augmentation moves apart from their maps of labels; empty if none."""
    batch = select_head(subject.train, ROWS)
    label = batch[LABEL]
    for name, picture in inputs_of(batch).items():
        sides = picture.shape[-2:]
        is_map = picture.ndim == 4 and label.ndim in (3, 4) and label.shape[-2:] == sides
        if not is_map or min(sides) < SHORTEST_SIDE:
            continue
        pattern = torch.zeros(sides, dtype=torch.bool)
        pattern[: sides[0] // 2, : sides[1] // 3] = True
        marked = {name: _draw(picture, pattern), LABEL: _draw(label, pattern)}
        try:
            after = augment_copy(subject.task, {**batch, **marked}, subject.seed)
        except Exception:  # a task may accept no other pictures or maps
            continue
        if any(after[each].shape != batch[each].shape for each in marked):
            continue
        (one, is_clear), (other, is_clear_too) = (_read(after[each], pattern) for each in marked)
        apart = (one != other)[is_clear & is_clear_too]
        if apart.sum() >= max(FEWEST, APART * len(apart)):
            return (
                f"{apart.sum()} of {len(apart)} augmented examples have {name} flipped or turned "
                "another way than the map of the label"
            )
    return ""


def _draw(tensor: Tensor, pattern: Tensor) -> Tensor:
    """Return the pattern in a tensor's shape, from its lowest to its highest number."""
    low, high = tensor.min(), tensor.max()
    return torch.where(pattern, high, low).expand_as(tensor).clone()


def _read(maps: Tensor, pattern: Tensor) -> tuple[Codes, Flags]:
    """Return which flip or turn of the pattern each map shows, and where that is clear."""
    flat = maps.double().reshape(len(maps), -1, *pattern.shape).mean(dim=1)
    turns = [pattern.rot90(count) for count in range(4)]
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
