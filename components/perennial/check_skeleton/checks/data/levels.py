"""Find numbers in lists and pictures of which hardly any detail is left.

A model may divide integers, cast or clip first, which its inputs do not show. Numbers between two
levels are set to one value: if outputs stay the same, the model does not distinguish them.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.check_skeleton.checks.data.signals import find_tensors_of, read_lists
from perennial.check_skeleton.models import build_noisy_model, run_model
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Floats, Subject, select_head
from perennial.contracts.errors import BadDataError
from perennial.contracts.skeleton import CheckResult
from perennial.data.pictures import decode_picture
from perennial.engine.task import Batch, inputs_of

LIST_ROWS = 512
MOST_LEVELS = 256
PICTURES = 64
FEWEST_NUMBERS = 8
# Share of a number's bits that must remain: a threshold at the median leaves a quarter of those of
# sixteen values, an integer division hardly any.
KEPT_BITS = 0.2
# Share of all numbers with one value: higher than a threshold makes it, as of a lost picture.
ALIKE = 0.9
LEVEL_ROWS = 64
BINS = 16
DISTINCT_BINS = 0.25


class NumberMap(NamedTuple):
    """The mapping from the numbers of a list column to an input of as many numbers."""

    column: str
    values: Floats  # the different numbers of the column, rising
    inputs: Floats  # what each becomes
    kept: float  # share of a number's bits that remain
    common: float  # share of the most frequent input


def judge_lists(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge what becomes of numbers in lists; None if they keep their information."""
    for found in _map_lists(subject):
        # Sounds have so many numbers that the steps of 16 bits would show between two of them.
        every = max(len(found.values) // MOST_LEVELS, 1)
        if period := find_sawtooth_period(found.values[::every], found.inputs[::every]):
            return judge.failed(
                f"the numbers in {found.column} wrap around after {period:.6g}",
                hint="they overflow a type of too few bits (bytes, for example): cast to float32 "
                "first",
            )
        if found.kept < KEPT_BITS:
            return (judge.failed if found.common > ALIKE else judge.warned)(
                f"{len(found.values)} different numbers in {found.column} become "
                f"{len(np.unique(found.inputs))}, {found.kept:.0%} of their bits",
                hint="an integer division, a cast before the scaling, or a limit makes nearly all "
                "of them equal: cast to float32 first",
            )
    return None


def _map_lists(subject: Subject) -> Iterator[NumberMap]:
    """Yield a map for each list column and each input with one number for each of the list's."""
    rows = subject.train_rows.head(LIST_ROWS)
    tensors = inputs_of(select_head(subject.train, LIST_ROWS))
    for name in subject.task.columns.features:
        column = rows[name]
        lists = _read_pictures(column) if column.dtype == pl.Binary else read_lists(column)
        if lists is None:
            continue
        for key in tensors:
            for raw, each in _pair_numbers(lists, tensors[key][: len(lists)].double().numpy()):
                values, places = np.unique(raw, return_inverse=True)
                if len(values) < FEWEST_NUMBERS:
                    continue
                first = np.zeros(len(values))
                first[places.reshape(-1)] = each.reshape(-1)
                is_map = np.allclose(first[places].reshape(raw.shape), each, rtol=1e-4, atol=1e-6)
                # Numbers may map to those of another column by chance.
                if is_map and _is_made_of(subject, key, name):
                    kept = count_bits(each) / max(count_bits(raw), 1e-9)
                    yield NumberMap(name, values, first, kept, measure_most_common(each))


def _is_made_of(subject: Subject, key: str, name: str) -> bool:
    """Whether an input changes with a column, or with no other: lost numbers change nothing."""
    others = (each for each in subject.task.columns.features if each != name)
    return key in find_tensors_of(subject, name) or not any(
        key in find_tensors_of(subject, each) for each in others
    )


def _pair_numbers(lists: Floats, encoded: Floats) -> Iterator[tuple[Floats, Floats]]:
    """Yield lists [N, L] beside as many encoded numbers, [N, P] each; of pictures by channel.

    Channels have statistics of their own, and come first or last in the lists.
    """
    rows, channels = len(encoded), encoded.shape[1] if encoded.ndim == 4 else 1
    if encoded.size != lists.size:
        return
    yield lists, encoded.reshape(rows, -1)
    for channel in range(channels if channels > 1 else 0):
        each = encoded[:, channel].reshape(rows, -1)
        yield lists.reshape(rows, -1, channels)[:, :, channel], each
        yield lists.reshape(rows, channels, -1)[:, channel], each


def _read_pictures(column: pl.Series) -> Floats | None:
    """Return pictures of one size as rows of numbers, channels last; None for other files."""
    if column.null_count():
        return None
    try:
        found = [decode_picture(file) for file in column.head(PICTURES)]
    except BadDataError:
        return None
    if len({each.shape for each in found}) != 1:
        return None
    return np.stack(found).astype(np.float64).reshape(len(found), -1)


def count_bits(numbers: Floats) -> float:
    """Return the entropy of the different numbers, in bits."""
    _, counts = np.unique(np.round(numbers, 9), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def measure_most_common(numbers: Floats) -> float:
    """Return the share of the most frequent number."""
    _, counts = np.unique(np.round(numbers, 9), return_counts=True)
    return float(counts.max() / counts.sum())


def judge_levels(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge pictures of whose numbers the model distinguishes only a few; None for others."""
    batch = inputs_of(subject.balanced(LEVEL_ROWS))
    for name, tensor in batch.items():
        if tensor.ndim < 3 or tensor.dtype == torch.bool:
            continue
        values = np.unique(tensor.double().numpy())
        if len(values) < BINS or not np.isfinite(values).all():
            continue
        levels = _find_levels(build_noisy_model(subject), batch, name, values)
        if levels is None:
            continue
        numbers = tensor.double().numpy()
        read = np.searchsorted(levels, numbers, side="right").astype(np.float64)
        kept = count_bits(read) / max(count_bits(numbers), 1e-9)
        if kept < KEPT_BITS and len(levels) > 1:
            return (judge.failed if measure_most_common(read) > ALIKE else judge.warned)(
                f"the model distinguishes {len(levels)} of {len(values)} different numbers in "
                f"{name}, {kept:.0%} of their bits; {measure_most_common(read):.0%} of them look "
                "the same to it",
                hint="an integer division, a cast or a limit before the first layer: divide with "
                "`/`, after `float()`",
            )
    return None


def _find_levels(model: nn.Module, batch: Batch, name: str, values: Floats) -> list[float] | None:
    """Return the lowest number of each group of indistinguishable ones; None if many groups."""
    before = run_model(model, batch)

    def are_one(low: float, high: float) -> bool:
        tensor = batch[name]
        alike = torch.where((tensor >= low) & (tensor <= high), tensor.new_tensor(low), tensor)
        return torch.equal(before, run_model(model, {**batch, name: alike}))

    parts = np.array_split(values, BINS)
    apart = [not are_one(part[0], part[-1]) for part in parts]
    if sum(apart) > BINS * DISTINCT_BINS:
        return None
    # Only the few parts with distinguishable numbers are searched more closely.
    steps = [
        step
        for part, is_apart in zip(parts, apart, strict=True)
        for step in (np.array_split(part, min(BINS, len(part))) if is_apart else [part])
    ]
    groups = [float(values[0])]
    for step in steps:
        if not are_one(groups[-1], step[-1]):
            groups.append(float(step[0]))
    return groups


def find_sawtooth_period(values: Floats, inputs: Floats) -> float:
    """Return the period of numbers that rise evenly and fall back; 0 for others."""
    steps, rises = np.diff(values), np.diff(inputs)
    slopes = rises / steps
    slope = float(np.median(slopes))
    falls = slopes * np.sign(slope) < 0
    if slope == 0 or not falls.any() or falls.mean() > 0.2:
        return 0.0
    even = np.isclose(slopes[~falls], slope, rtol=1e-2)
    if even.mean() < 0.9:
        return 0.0
    back = steps[falls] - rises[falls] / slope
    period = float(np.round(back.min()))
    is_regular = period > 1 and np.allclose(back / period, np.round(back / period), atol=0.05)
    return period if is_regular else 0.0
