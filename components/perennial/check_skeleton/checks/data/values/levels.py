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
from perennial.check_skeleton.subject import Codes, Floats, Subject, select_head
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
# Days, hours, minutes and months wrap around by design.
CALENDAR = (7, 12, 24, 30, 31, 52, 53, 60, 365, 366)
LARGEST_BYTE, NEARLY_ALL = 255, 240
# Levels on each side of where bytes wrap around; step from the last to the first, of the range.
SIDE, NEAR_ENDS = 4, 0.1
LEVEL_ROWS = 64
BINS = 16
DISTINCT_BINS = 0.25


class NumberMap(NamedTuple):
    """The mapping from the numbers of a list column to an input of as many numbers."""

    column: str
    values: Floats  # the different numbers of the column, rising
    inputs: Floats  # what each becomes
    counts: Codes  # how often each occurs
    kept: float  # share of a number's bits that remain
    common: float  # share of the most frequent input


def judge_lists(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge what becomes of numbers in lists; None if they keep their information."""
    for found in _map_lists(subject):
        # Sounds have so many numbers that the steps of 16 bits would show between two of them.
        every = max(len(found.values) // MOST_LEVELS, 1)
        period = find_sawtooth_period(found.values[::every], found.inputs[::every])
        if period and period not in CALENDAR:
            return judge.failed(
                f"the numbers in {found.column} wrap around after {period:.6g}",
                hint="they overflow a type of too few bits (bytes, for example): cast to float32 "
                "first",
            )
        if border := find_wrapped_bytes(found):
            return judge.failed(
                f"bytes in {found.column} below {border:g} become larger than all others",
                hint="they are read as signed, or something is subtracted from them before the "
                "cast: np.uint8 wraps around. Cast to float32 first",
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
    chosen: slice | list[int]
    for name in subject.task.columns.features:
        column = rows[name]
        lists, chosen = read_lists(column), slice(None)
        if column.dtype == pl.Binary:
            lists, chosen = _read_files(column)
        if lists is None:
            continue
        for key in tensors:
            encoded = tensors[key][chosen].double().numpy()
            if column.dtype == pl.Binary and encoded.size > lists.size:  # the rest is padding
                encoded = encoded.reshape(len(lists), -1)[:, : lists.shape[1]]
            for raw, each in _pair_numbers(lists, encoded):
                values, places, counts = np.unique(raw, return_inverse=True, return_counts=True)
                if len(values) < FEWEST_NUMBERS:
                    continue
                first = np.zeros(len(values))
                first[places.reshape(-1)] = each.reshape(-1)
                is_map = np.allclose(first[places].reshape(raw.shape), each, rtol=1e-4, atol=1e-6)
                # Numbers may map to those of another column by chance.
                if is_map and _is_made_of(subject, key, name):
                    kept = count_bits(each) / max(count_bits(raw), 1e-9)
                    yield NumberMap(name, values, first, counts, kept, measure_most_common(each))


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


def _read_files(column: pl.Series) -> tuple[Floats | None, list[int]]:
    """Return pictures of one size, channels last, or the longest files, as numbers; and their rows.

    Shorter files may be padded.
    """
    if column.null_count():
        return None, []
    files = column.head(PICTURES).to_list()
    try:
        found = [decode_picture(file) for file in files]
    except BadDataError:
        counts = np.bincount(np.frombuffer(b"".join(files), dtype=np.uint8), minlength=256)
        # Numbers on both sides of 0 are frequent, as are those on both sides of a middle at 128.
        is_signed = (
            counts[:SIDE].sum() + counts[-SIDE:].sum() > counts[128 - SIDE : 128 + SIDE].sum()
        )
        found = [np.frombuffer(file, dtype=np.int8 if is_signed else np.uint8) for file in files]
    shape = max(each.shape for each in found)
    rows = [row for row, each in enumerate(found) if each.shape == shape]
    return np.stack([found[row] for row in rows]).astype(np.float64).reshape(len(rows), -1), rows


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


def find_wrapped_bytes(found: NumberMap) -> float:
    """Return the byte below which all inputs lie above those of all others; 0 if none does.

    Inputs rise on both sides of it, and bytes there are more frequent than at the two ends. If not
    all 256 occur, the lowest do not follow the highest at once, as hours of a day may.
    """
    values, inputs = found.values, found.inputs
    if np.ptp(values) > LARGEST_BYTE or (values != values.round()).any():
        return 0.0
    rises = np.diff(inputs) * np.sign(np.median(np.diff(inputs)))
    falls = np.flatnonzero(rises < 0)
    if len(falls) != 1 or not SIDE <= (fall := int(falls[0]) + 1) <= len(values) - SIDE:
        return 0.0
    gap = abs(float(inputs[0] - inputs[-1])) / float(np.ptp(inputs))
    is_turn = float(-rises.min()) == float(np.ptp(inputs))
    follows = gap < NEAR_ENDS if np.ptp(values) > NEARLY_ALL else gap > NEAR_ENDS
    near = found.counts[fall - SIDE : fall + SIDE].sum()
    far = found.counts[:SIDE].sum() + found.counts[-SIDE:].sum()
    return float(values[fall]) if is_turn and follows and near > far else 0.0
