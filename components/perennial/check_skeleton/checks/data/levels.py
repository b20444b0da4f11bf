"""Levels: how many different numbers of a picture the model distinguishes.

A model may divide integers, cast or clip first, which its inputs do not show. Numbers between two
levels are set to one value: if outputs stay the same, the model does not distinguish them.
"""

import numpy as np
import torch
from torch import nn

from perennial.check_skeleton.checks.data.lists import ALIKE, KEPT_BITS, bits_of, commonest
from perennial.check_skeleton.checks.data.signals import Numbers
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Subject, stirred_model
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import Batch, inputs_of

ROWS = 8
BINS = 16
TOLD_BINS = 0.25


def judge_levels(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge pictures of whose numbers the model distinguishes only a few; None for others."""
    batch = inputs_of(subject.balanced(ROWS))
    for name, tensor in batch.items():
        if tensor.ndim < 3 or tensor.dtype == torch.bool:
            continue
        values = np.unique(tensor.double().numpy())
        if len(values) < BINS or not np.isfinite(values).all():
            continue
        levels = _find_levels(stirred_model(subject), batch, name, values)
        if levels is None:
            continue
        numbers = tensor.double().numpy()
        read = np.searchsorted(levels, numbers, side="right").astype(np.float64)
        kept = bits_of(read) / max(bits_of(numbers), 1e-9)
        if kept < KEPT_BITS and len(levels) > 1:
            return (judge.failed if commonest(read) > ALIKE else judge.warned)(
                f"the model distinguishes {len(levels)} of {len(values)} different numbers in "
                f"{name}, {kept:.0%} of their bits; {commonest(read):.0%} of them look the same to "
                "it",
                hint="an integer division, a cast or a limit before the first layer: divide with "
                "`/`, after `float()`",
            )
    return None


def _find_levels(model: nn.Module, batch: Batch, name: str, values: Numbers) -> list[float] | None:
    """Return the lowest number of each group of indistinguishable ones; None if many groups."""
    with torch.no_grad():
        before = model(**batch)

    def are_one(low: float, high: float) -> bool:
        tensor = batch[name]
        alike = torch.where((tensor >= low) & (tensor <= high), tensor.new_tensor(low), tensor)
        with torch.no_grad():
            return torch.equal(before, model(**{**batch, name: alike}))

    parts = np.array_split(values, BINS)
    apart = [not are_one(part[0], part[-1]) for part in parts]
    if sum(apart) > BINS * TOLD_BINS:
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
