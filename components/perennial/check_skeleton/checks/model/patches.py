"""Patches: whether the label of a picture depends on the places of its parts."""

import warnings

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from perennial.check_skeleton.subject import Subject, head_of, rows_of
from perennial.engine.task import LABEL, Batch, inputs_of

TILED_ROWS = 4
# Rounding moves an output by about 1e-7 of itself.
SAME = 1e-5
ROWS = 1024
MOST_NUMBERS = 1024
FEWEST_PARTS = 4
CLEAR_ERRORS = 5.0


def blind_to_positions(subject: Subject, model: nn.Module, batch: Batch) -> tuple[str, int] | None:
    """Return an input whose square parts can change places without effect, and their side."""
    few = rows_of(batch, slice(TILED_ROWS))
    order = torch.Generator().manual_seed(subject.seed)
    for name, tensor in inputs_of(few).items():
        if tensor.ndim != 4 or not tensor.is_floating_point():
            continue
        height, width = tensor.shape[2:]
        for side in range(1, min(height, width) + 1):
            if height % side or width % side or (height, width) == (side, side):
                continue
            moved = _tiles_moved(tensor, side, order)
            if not torch.equal(moved, tensor) and _is_same(model, few, {name: moved}):
                return name, side
    return None


def _tiles_moved(pictures: Tensor, side: int, order: torch.Generator) -> Tensor:
    """Return pictures [B, C, H, W] with their square parts in another order."""
    height, width = pictures.shape[2:]
    tiles = nn.functional.unfold(pictures, side, stride=side)  # [B, C * side * side, tiles]
    moved = tiles[:, :, torch.randperm(tiles.shape[2], generator=order)]
    return nn.functional.fold(moved, (height, width), side, stride=side)


def _is_same(model: nn.Module, batch: Batch, other: Batch) -> bool:
    """Whether other values of some inputs leave every output unchanged."""
    with torch.no_grad():
        before, after = (model(**inputs_of({**batch, **each})) for each in ({}, other))
    return bool(((after - before).abs() <= SAME * (1 + before.abs())).all())


def told_by_places(subject: Subject, name: str, side: int) -> str:
    """Return the accuracy of a linear classifier on pictures and on their parts without places.

    Empty where the parts alone do as well, or nothing can be measured.
    """
    if subject.task.kind not in ("binary", "multiclass"):
        return ""
    batch = head_of(subject.train, ROWS)
    pictures, labels = batch[name], batch[LABEL].numpy().astype(np.int64)
    tiles = nn.functional.unfold(pictures, side, stride=side)
    half = len(labels) // 2
    is_small = pictures[0].numel() <= MOST_NUMBERS
    if not is_small or tiles.shape[2] < FEWEST_PARTS or len(np.unique(labels[:half])) < 2:
        return ""
    # A bag of parts contains, number by number, its values in sorted order.
    bag = tiles.sort(dim=2).values
    right = [_right(each.flatten(1), labels, half) for each in (pictures, bag)]
    gain = right[0].astype(float) - right[1].astype(float)
    error = float(gain.std() / np.sqrt(len(gain)))
    if gain.mean() < CLEAR_ERRORS * max(error, 1e-12):
        return ""
    return (
        f"a linear classifier is right on {right[0].mean():.0%} of pictures, and on "
        f"{right[1].mean():.0%} without the places of their parts"
    )


def _right(
    numbers: Tensor, labels: "np.ndarray[tuple[int], np.dtype[np.int64]]", half: int
) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
    """Return which examples of the second half are right after a fit on the first half."""
    found = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, max_iter=50))
    values = numbers.to(torch.float64).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a few steps are enough
        found.fit(values[:half], labels[:half])
    return np.asarray(found.predict(values[half:]) == labels[half:])
