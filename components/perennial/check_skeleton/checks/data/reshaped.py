"""Reshaped inputs: numbers that keep their order although their axes should be exchanged.

`reshape` and `view` change the shape but keep the order of the numbers. A picture whose channels
were moved this way is scrambled: read in its original shape, it is far smoother. A table of points
whose axes were exchanged this way has the row's numbers in the row's order.
"""

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import permutations

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.data.signals import Codes, Numbers
from perennial.check_skeleton.subject import Subject, evaluated, head_of
from perennial.engine.task import Batch, inputs_of

ROWS, MODEL_ROWS = 512, 128
FEWEST_ROWS = 16
# Most numbers compared at once.
BUDGET = 5_000_000
FEWEST_PLACES = 4
MOST_LISTS, MOST_ORDERED = 16, 3
CHANNELS = (2, 3, 4)
SHORTEST_SIDE = 4
# Neighbours in a scrambled picture differ several times as much as in the original.
SMOOTHER = 0.5
NEARLY_ALL = 0.9
SAME = 0.999
OTHER = 0.9


def describe_torn_input(subject: Subject) -> str:
    """Describe the input that was reshaped instead of permuted; empty if none."""
    batch = inputs_of(head_of(subject.train, ROWS))
    for name, tensor in (*batch.items(), *_taken(subject, batch)):
        numbers = tensor[: max(BUDGET // max(tensor[0].numel(), 1), FEWEST_ROWS)].double().numpy()
        if len(numbers) < FEWEST_ROWS or not np.isfinite(numbers).all():
            continue
        if numbers.ndim == 4 and (found := _describe_torn_picture(numbers)):
            return f"{name} is {found}"
        if numbers.ndim == 3 and (found := _describe_torn_table(subject, numbers)):
            return f"{name} is {found}"
    return ""


class _SeenError(Exception):
    """The layer's input is recorded; the rest of the model need not run."""


def _taken(subject: Subject, batch: Batch) -> list[tuple[str, Tensor]]:
    """Return the input of the first layer with axes, if the model reshaped its own inputs."""
    model, taken = evaluated(subject.build_model()), list[tuple[str, Tensor]]()

    def note(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            taken.append((f"the input of {name or 'the model'}", given[0]))
        raise _SeenError

    knowing = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.RNNBase)
    }
    for name, module in knowing.items():
        module.register_forward_pre_hook(partial(note, name))
    if knowing:
        with torch.no_grad(), suppress(_SeenError):
            model(**head_of(batch, MODEL_ROWS))
    sizes = {tuple(each.shape[1:]): each[0].numel() for each in batch.values()}
    return [
        (name, tensor)
        for name, tensor in taken
        if tuple(tensor.shape[1:]) not in sizes and tensor[0].numel() in sizes.values()
        and len(tensor) == min(MODEL_ROWS, subject.num_rows())
    ]  # fmt: skip


def _describe_torn_picture(pictures: Numbers) -> str:
    """Describe another shape in which the pictures are far smoother; empty if none."""
    first, _, last = shape = pictures.shape[1:]
    if (first in CHANNELS) == (last in CHANNELS) or sorted(shape)[1] < SHORTEST_SIDE:
        return ""
    is_first = first in CHANNELS
    other = (*shape[1:], first) if is_first else (last, *shape[:2])
    own = _roughness(pictures, 1 if is_first else 3)
    read = _roughness(pictures.reshape(-1, *other), 3 if is_first else 1)
    varied = own > 0
    if varied.sum() < FEWEST_ROWS:
        return ""
    shares = read[varied] / own[varied]
    if np.median(shares) > SMOOTHER or (shares < 1).mean() < NEARLY_ALL:
        return ""
    return (
        f"{_axes(shape)}, but its numbers have the order {_axes(other)} of a picture: there, "
        f"neighbours differ by {np.median(shares):.0%} as much"
    )


def _axes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _roughness(pictures: Numbers, channels: int) -> Numbers:
    """Return each picture's mean squared difference between neighbours."""
    axes = [axis for axis in (1, 2, 3) if axis != channels]
    parts = [np.square(np.diff(pictures, axis=axis)).mean(axis=(1, 2, 3)) for axis in axes]
    found: Numbers = np.sum(parts, axis=0)
    return found


def _describe_torn_table(subject: Subject, encoded: Numbers) -> str:
    """Describe raw values [P, Q] that fill an input of Q x P in their old order; empty if none."""
    rows, wide = encoded.shape[1:]
    is_patched = any(
        isinstance(each, nn.Linear) and each.in_features == wide > rows
        for each in subject.build_model().modules()
    )
    for names, places, raw in _raw_tables(subject.train_rows.head(len(encoded))):
        high, across = raw.shape[1:]
        if wide != high or across > rows or high == across or is_patched:
            continue
        own, size = encoded[places], high * across
        kept = _agreement(raw, own.reshape(len(own), -1)[:, :size])
        moved = _agreement(raw.swapaxes(1, 2), own[:, :across])
        if (kept > SAME).mean() > NEARLY_ALL and np.median(moved) < OTHER:
            return f"{across} x {high}, but holds {names} in the order {high} x {across}"
    return ""


def _raw_tables(rows: pl.DataFrame) -> Iterator[tuple[str, Codes, Numbers]]:
    """Yield the rows' numbers of two axes, [N, P, Q], nested or in parallel columns."""
    lists = []
    for column in rows:
        kind = column.dtype
        if not isinstance(kind, pl.List | pl.Array) or column.null_count():
            continue
        if kind.inner.is_numeric():
            lists.append(column)
        elif (found := _table(column.to_list())) is not None:
            yield column.name, *found
    lengths: dict[tuple[int, ...], list[pl.Series]] = {}
    for column in lists:
        lengths.setdefault(tuple(map(len, column.to_list())), []).append(column)
    for group in lengths.values():
        if not 2 <= len(group) <= MOST_LISTS:
            continue
        for order in permutations(group) if len(group) <= MOST_ORDERED else [group]:
            aside = [list(each) for each in zip(*(each.to_list() for each in order), strict=True)]
            if (found := _table(aside)) is not None:
                names = ", ".join(each.name for each in order)
                yield names, *found
                yield names, found[0], found[1].swapaxes(1, 2)


def _table(values: list[list[list[float]]]) -> tuple[Codes, Numbers] | None:
    """Return the rows of the most frequent shape, as numbers; None if too few have it."""
    shapes = [
        (len(each), len(each[0])) if each and len({*map(len, each)}) == 1 else (0, 0)
        for each in values
    ]
    common = max(set(shapes), key=shapes.count)
    places = np.array([place for place, shape in enumerate(shapes) if shape == common])
    if len(places) < FEWEST_ROWS or min(common) < 2:
        return None
    try:
        return places, np.array([values[place] for place in places], dtype=np.float64)
    except (TypeError, ValueError):  # missing values, or lists in lists in lists
        return None


def _agreement(raw: Numbers, encoded: Numbers) -> Numbers:
    """Return the correlation over rows of each number with the one in its place, if both vary."""
    one, other = (each.reshape(len(each), -1) for each in (raw, encoded))
    one, other = (each - each.mean(axis=0) for each in (one, other))
    sizes = np.linalg.norm(one, axis=0) * np.linalg.norm(other, axis=0)
    varied = sizes > 1e-9
    found: Numbers = np.abs((one * other).sum(axis=0)[varied]) / sizes[varied]
    return found if len(found) >= FEWEST_PLACES else np.zeros(1)
