"""Find placeholders among labels and features: one repeated number far outside all others."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from perennial.check_skeleton.free_outputs import compute_output
from perennial.check_skeleton.subject import Flags, Floats, Subject, select_rows
from perennial.engine.task import LABEL, WEIGHT, inputs_of

FEWEST_ROWS, LEAST_SHARE = 5, 0.002
# Most labels are readings, not placeholders.
LARGEST_SHARE = 0.5
# Of the widest step between neighbours among the other values, from the hundredth nearest to their
# median. Counts, grades and zeros beside amounts are at most one step away.
FAR_STEPS = 5.0
TAIL = 0.01
# Of the others' deviation: a nearer number does little harm to a fit.
FAR_DEVIATIONS = 0.5
QUARTILES_OF_DEVIATION = 1.349
# Of a feature: nothing beside amounts, as no mortgage, is nearer.
VERY_FAR_DEVIATIONS = 5.0
PROBED_ROWS = 16
MOST_COLUMNS = 256


@dataclass(frozen=True)
class Placeholder:
    """A repeated number far outside all others."""

    value: float
    is_here: Flags  # which numbers have the value, [N]
    nearest: float  # the nearest other value
    deviations: float  # distance to it in deviations of the other numbers

    @property
    def is_made_up(self) -> bool:
        """Whether it is all nines, or the only number below zero: a longest delay is neither."""
        return set(f"{abs(self.value):g}") == {"9"} or self.value < 0 <= self.nearest


def describe_placeholder(subject: Subject) -> str:
    """Describe a value of the label that may stand for a missing one; empty if there is none."""
    raw, codes = subject.train_rows[subject.task.columns.label], subject.train[LABEL]
    if not raw.dtype.is_numeric() or raw.null_count():
        return ""
    found = find_placeholder(raw.cast(pl.Float64).to_numpy())
    if found is None or not _is_outside(codes.double().numpy(), found.is_here):
        return ""
    if not _is_counted(subject, found.is_here):
        return ""
    return (
        f"{found.value:g} is the label of {found.is_here.mean():.1%} of the rows, "
        f"{found.deviations:.2g} standard deviations from the nearest other value, "
        f"{found.nearest:.4g}"
    )


def describe_placeholder_feature(subject: Subject) -> str:
    """Describe a value of a feature that may stand for a missing one and stays a number.

    Empty if there is none, or if `encode` replaces, cuts or squeezes it.
    """
    columns = {
        f"{name}[{place}]": tensor[:, place].double().numpy()
        for name, tensor in inputs_of(subject.train).items()
        if tensor.is_floating_point() and tensor.ndim == 2 and tensor.shape[1] <= MOST_COLUMNS
        for place in range(tensor.shape[1])
    }
    for name in subject.task.columns.features:
        raw = subject.train_rows[name]
        if not raw.dtype.is_numeric():
            continue
        numbers = raw.cast(pl.Float64).fill_nan(None)
        found = find_placeholder(numbers.fill_null(strategy="mean").to_numpy())
        if found is None or found.deviations < VERY_FAR_DEVIATIONS or not found.is_made_up:
            continue
        for place, values in columns.items():
            own = find_placeholder(values) if _is_outside(values, found.is_here) else None
            if own is not None and own.deviations >= VERY_FAR_DEVIATIONS:
                return (
                    f"{found.value:g} is {name} of {found.is_here.mean():.1%} of the rows, "
                    f"{found.deviations:.2g} standard deviations from the nearest other value, "
                    f"{found.nearest:.4g}, and a number like others in {place}"
                )
    return ""


def find_placeholder(numbers: Floats, far: float = FAR_DEVIATIONS) -> Placeholder | None:
    """Return the smallest or largest number [N] if it is repeated and far from all others.

    So many of the others' standard deviations, and several of their steps.
    """
    for value in (numbers.min(), numbers.max()):
        is_here = numbers == value
        others = np.unique(numbers[~is_here])
        count = int(is_here.sum())
        if not max(FEWEST_ROWS, LEAST_SHARE * len(numbers)) <= count:
            continue
        if count > LARGEST_SHARE * len(numbers) or len(others) < FEWEST_ROWS:
            continue
        distances = np.abs(others - value)
        gap, nearest = float(distances.min()), float(others[distances.argmin()])
        low, high = np.quantile(numbers[~is_here], (0.25, 0.75))
        deviation = (high - low) / QUARTILES_OF_DEVIATION
        start, middle = np.quantile(np.abs(numbers[~is_here] - value), (TAIL, 0.5))
        steps = np.diff(np.sort(distances[(distances >= start) & (distances <= middle)]))
        is_far = len(steps) > 0 and gap > FAR_STEPS * steps.max()
        if is_far and gap > far * deviation > 0:
            return Placeholder(float(value), is_here, nearest, gap / deviation)
    return None


def _is_outside(codes: Floats, is_here: Flags) -> bool:
    """Whether these codes [N] are below or above all others: encode did not replace them."""
    own, others = codes[is_here], codes[~is_here]
    return bool(own.max() < others.min() or own.min() > others.max())


def _is_counted(subject: Subject, is_here: Flags) -> bool:
    """Whether the training's loss depends on the outputs of these rows."""
    index = torch.from_numpy(is_here.nonzero()[0][:PROBED_ROWS])
    batch = select_rows(subject.train, index)
    if WEIGHT in batch and not bool(batch[WEIGHT].any()):
        return False
    try:
        free = compute_output(subject, batch).detach().clone().requires_grad_()
        (gradient,) = torch.autograd.grad(subject.task.training_losses(free, batch).sum(), free)
    except Exception:  # other checks report losses that raise
        return True
    return bool(gradient.any())
