"""Find placeholders among labels and features: one repeated number far outside all others."""

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch

from perennial.check_skeleton.free_outputs import compute_output
from perennial.check_skeleton.subject import Flags, Floats, Subject, select_rows
from perennial.engine.task import LABEL, WEIGHT, Batch, inputs_of

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
SURE_DEVIATIONS = 20.0
# Of an input: another number in place of the placeholder, and a missing one.
UNLIKE_DEVIATIONS = 1.0
PROBED_ROWS, MOSTLY = 16, 0.5


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


@dataclass(frozen=True)
class UnreplacedFeature:
    """A column, or the lists of one, with a placeholder that stays a number."""

    description: str
    is_certain: bool  # nothing that is measured is all nines, below zero and so far away


def find_unreplaced_feature(subject: Subject) -> UnreplacedFeature | None:
    """Return a feature whose value for a missing one stays a number; None if there is none.

    None, too, if `encode` replaces, cuts or squeezes it.
    """
    for name in subject.task.columns.features:
        raw = subject.train_rows[name]
        column = raw.explode() if isinstance(raw.dtype, pl.List | pl.Array) else raw
        if not column.dtype.is_numeric():
            continue
        numbers = column.cast(pl.Float64).fill_nan(None).drop_nulls().to_numpy()
        found = find_placeholder(numbers) if len(numbers) else None
        if found is None or found.deviations < VERY_FAR_DEVIATIONS or not found.is_made_up:
            continue
        middle = float(np.median(numbers[~found.is_here]))
        if tensor := _find_spoilt_input(subject, name, found.value, middle):
            is_nines = set(f"{-found.value:g}") == {"9"}
            return UnreplacedFeature(
                f"{found.value:g} is {name} of {found.is_here.mean():.1%} of the rows, "
                f"{found.deviations:.2g} standard deviations from the nearest other value, "
                f"{found.nearest:.4g}, and a number like others in {tensor}",
                is_certain=is_nines and found.deviations > SURE_DEVIATIONS,
            )
    return None


def _find_spoilt_input(subject: Subject, name: str, value: float, middle: float) -> str:
    """Return a tensor in which a placeholder counts as a number; empty if there is none.

    It is far from what an ordinary value would be there; or, where the number was averaged or cut,
    neither what that would be nor what a missing one is.
    """
    before, ordinary, missing = (
        _encode_in_place(subject, name, value, each) for each in (value, middle, None)
    )
    if before is None or ordinary is None:
        return ""
    for key, tensor in ordinary.items():
        if not tensor.is_floating_point() or before[key].shape != tensor.shape:
            continue
        usual = subject.train[key].double()
        wide = (usual.quantile(0.75, dim=0) - usual.quantile(0.25, dim=0)) / QUARTILES_OF_DEVIATION
        moved = (before[key].double() - tensor.double()).abs()
        # Flags of what is missing hardly vary.
        judged = (moved > 0) & (wide > 0)
        if not judged.any():
            continue
        unlike = moved > VERY_FAR_DEVIATIONS * wide
        if missing is not None and missing[key].shape == tensor.shape:
            from_missing = (before[key].double() - missing[key].double()).abs()
            unlike |= torch.minimum(moved, from_missing) > UNLIKE_DEVIATIONS * wide
        if float(unlike[judged].double().mean()) > MOSTLY:
            return key
    return ""


def _encode_in_place(
    subject: Subject, name: str, value: float, other: float | None
) -> Batch | None:
    """Return the inputs of rows with a value, with another one in its place; None if refused."""
    rows, kind = subject.train_rows, subject.train_rows.schema[name]
    is_list = isinstance(kind, pl.List | pl.Array)
    column = pl.col(name).cast(pl.List(kind.inner)) if is_list else pl.col(name)  # type: ignore[attr-defined]
    own = pl.element() if is_list else column
    replaced = pl.when(own == value).then(other).otherwise(own)
    chosen = rows.filter(column.list.contains(value) if is_list else own == value).head(PROBED_ROWS)
    changed = column.list.eval(replaced) if is_list else replaced
    try:
        return inputs_of(subject.task.encode(chosen.with_columns(changed.cast(kind).alias(name))))
    except Exception:  # a task may reject another value
        return None


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
