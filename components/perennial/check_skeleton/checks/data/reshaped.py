"""Reshaped inputs: numbers that keep their order where their axes were meant to change places.

`reshape` and `view` give numbers other names and leave them where they are. A picture whose
channels were moved so is torn apart: read in the order of before, it is far smoother. A table of
points whose axes were exchanged so has the row's numbers in the row's order.
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
# Numbers that are looked at at once.
BUDGET = 5_000_000
FEWEST_PLACES = 4
MOST_LISTS, MOST_ORDERED = 16, 3
CHANNELS = (2, 3, 4)
SHORTEST_SIDE = 4
# Neighbours in a picture torn apart differ several times as much as in the picture.
SMOOTHER = 0.5
NEARLY_ALL = 0.9
SAME = 0.999
OTHER = 0.9


def torn_apart(subject: Subject) -> str:
    """The input that was reshaped where its axes were to be exchanged; empty for none."""
    batch = inputs_of(head_of(subject.train, ROWS))
    for name, tensor in (*batch.items(), *_taken(subject, batch)):
        numbers = tensor[: max(BUDGET // max(tensor[0].numel(), 1), FEWEST_ROWS)].double().numpy()
        if len(numbers) < FEWEST_ROWS or not np.isfinite(numbers).all():
            continue
        if numbers.ndim == 4 and (found := _torn_picture(numbers)):
            return f"{name} is {found}"
        if numbers.ndim == 3 and (found := _torn_table(subject, numbers)):
            return f"{name} is {found}"
    return ""


class _SeenError(Exception):
    """What a layer takes is seen, and the rest of the model need not be run."""


def _taken(subject: Subject, batch: Batch) -> list[tuple[str, Tensor]]:
    """What the first layer that knows axes takes, where the model gave an input another shape."""
    model, taken = evaluated(subject.build_model()), list[tuple[str, Tensor]]()

    def note(name: str, _: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given and isinstance(given[0], Tensor):
            taken.append((f"what {name or 'the model'} takes", given[0]))
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


def _torn_picture(pictures: Numbers) -> str:
    """In which other order the numbers of pictures are far smoother."""
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
        f"{_axes(shape)}, and its numbers are a picture in the order {_axes(other)}: there "
        f"neighbours differ by {np.median(shares):.0%} of what they do as it is"
    )


def _axes(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _roughness(pictures: Numbers, channels: int) -> Numbers:
    """Mean square of the differences between neighbours, of each picture."""
    axes = [axis for axis in (1, 2, 3) if axis != channels]
    parts = [np.square(np.diff(pictures, axis=axis)).mean(axis=(1, 2, 3)) for axis in axes]
    found: Numbers = np.sum(parts, axis=0)
    return found


def _torn_table(subject: Subject, encoded: Numbers) -> str:
    """Which raw values, [P, Q], fill an input of Q x P in the order that they had."""
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
            return f"{across} x {high}, and has {names} in the order {high} x {across}"
    return ""


def _raw_tables(rows: pl.DataFrame) -> Iterator[tuple[str, Codes, Numbers]]:
    """Numbers of two axes that rows hold, [N, P, Q], with their rows: nested, or side by side."""
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
    """The rows of the most frequent shape, as numbers; None where few have one."""
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
    """The correlation over rows of each number with what stands in its place, where both vary."""
    one, other = (each.reshape(len(each), -1) for each in (raw, encoded))
    one, other = (each - each.mean(axis=0) for each in (one, other))
    sizes = np.linalg.norm(one, axis=0) * np.linalg.norm(other, axis=0)
    varied = sizes > 1e-9
    found: Numbers = np.abs((one * other).sum(axis=0)[varied]) / sizes[varied]
    return found if len(found) >= FEWEST_PLACES else np.zeros(1)
