"""Labels of tasks that measure statistics: whether they are served, and whether gaps count."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from perennial.check_skeleton.checks.data.signals import has_tags, read_lists
from perennial.check_skeleton.checks.data.values.placeholders import find_placeholder
from perennial.check_skeleton.checks.loss.units import CLOSE, measure_error
from perennial.check_skeleton.free_outputs import (
    compute_output,
    fill_unread_outputs,
    find_best_outputs,
    find_free_outputs,
    probe,
)
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.subject import Flags, Floats, Subject, select_head
from perennial.engine.task import LABEL, WEIGHT, Batch, Task

ROWS = 256
# Outputs that leave hardly any loss have learned the labels.
LEARNED = 0.05
# Errors in deviations: labels in another order are off by more than one.
OTHER_ORDER = 0.5
OTHER_SCALE = 0.3
# Of the best constant's error: below 0.001 in healthy tasks.
LEFT = 0.3
STRAIGHT = 1e-3  # of the variance: what rounding and the search for the minimum leave
FEWEST_GAPS = 8
MOSTLY = 0.9
# Of the standard deviation: -1 beside amounts above zero, such as depths.
FAR = 0.1
STEP = 0.01  # of labels, in deviations
# Of the rows: tags that nearly always exclude each other are classes.
SEVERAL, ROUNDING = 0.1, 1e-4


@dataclass(frozen=True)
class Ideal:
    """What a task serves at the loss's minimum, beside the numbers of its label column [N, ...]."""

    served: Floats
    wanted: Floats
    at_start: Tensor  # statistics [N, S] of the model's first outputs
    at_minimum: Tensor


def serve_ideal(subject: Subject) -> Ideal | None:
    """Serve outputs at the loss's minimum; None where it has another form than the label."""
    task = subject.task
    count = ROWS // task.scored_together * task.scored_together
    wanted = _read_numbers(subject.train_rows[task.columns.label].head(count))
    is_own = type(task).predict is not Task.predict or task.serves_predictions
    if wanted is None or not is_own or not count:
        return None
    batch = select_head(subject.train, count)
    with made_up("outputs at the loss's minimum"):
        output = compute_output(subject, batch)
        free = find_free_outputs(subject, output, batch)
        served = task.predict(free.ideal).detach().double().numpy()
        first, last = (
            task.statistic(each, batch).detach().double().reshape(len(output), -1)
            for each in (output, free.ideal)
        )
    if served.shape != wanted.shape or not np.isfinite(served).all():
        return None
    if free.floor < 0 or free.floor > LEARNED * free.constant_loss:
        return None
    return Ideal(served, wanted, first, last)


def describe_disorder(ideal: Ideal) -> str:
    """Describe served numbers that are the labels in another order; empty if there are none.

    At the loss's minimum, `predict` gives the label column's numbers, or other quantities, such as
    risks. Where the lists that it gives hold the label's numbers, or its numbers the label's
    digits, but at other places, it joins them in another order than the loss reads them.
    """
    served, wanted = ideal.served, ideal.wanted
    error = measure_error(served, wanted)
    if error < OTHER_ORDER or _measure_same_parts(served, wanted) < MOSTLY:
        return ""
    at = int(np.abs(served - wanted).reshape(len(wanted), -1).max(axis=1).argmax())
    return (
        f"at the loss's minimum, predict is off by {error:.2g} standard deviations of the label: "
        f"{_show(wanted[at])} is served as {_show(served[at])}"
    )


def describe_other_scale(ideal: Ideal) -> str:
    """Describe served numbers that are on another scale than the label's; empty if they are not.

    As logarithms that are not turned back. A task that means to serve them measures there, too: at
    the loss's minimum its statistics are zero.
    """
    if measure_error(ideal.served, ideal.wanted) < OTHER_SCALE:
        return ""
    start, end = (each.abs().amax(dim=1).median() for each in (ideal.at_start, ideal.at_minimum))
    if float(end) < LEARNED * float(start):
        return ""
    wanted, served = ideal.wanted.ravel(), ideal.served.ravel()
    for name, change in SCALES.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            changed = change(wanted)
        is_known = np.isfinite(changed)
        if is_known.mean() < MOSTLY or not np.std(changed[is_known]):
            continue
        fitted = np.polyval(np.polyfit(changed[is_known], served[is_known], 1), changed[is_known])
        if np.var(served[is_known] - fitted) < STRAIGHT * np.var(served[is_known]):
            return (
                f"at the loss's minimum, predict gives {name}: {_show(ideal.wanted[0])} is served "
                f"as {_show(ideal.served[0])}, and the statistics measure that as an error"
            )
    return ""


def describe_remaining_errors(subject: Subject) -> str:
    """Describe errors that outputs without loss leave; empty if one of the metrics is near zero.

    Every metric to be minimised is measured where the loss has none left: what remains of all of
    them is an error of `predict` or `statistic`, as of a logarithm that is not turned back.
    """
    task, batch = subject.task, probe(subject)
    free = find_best_outputs(subject)
    if task.scored_together > 1 or not 0 <= free.floor <= LEARNED * free.constant_loss:
        return ""
    output = compute_output(subject, batch)
    ideal = fill_unread_outputs(task.losses, free.ideal, output, batch)
    weights = batch[WEIGHT].double().numpy() if WEIGHT in batch else np.ones(len(output))
    with torch.no_grad():
        ended, constant = (
            task.score(task.statistic(each, batch).double().numpy(), weights)
            for each in (ideal, free.constant.expand_as(output))
        )
    errors = {
        name: (ended[name], constant[name])
        for name, direction in task.metrics.items()
        if direction == "minimize" and name in ended and constant.get(name, 0.0) > 0
    }
    if not errors or min(own / other for own, other in errors.values()) < LEFT:
        return ""
    name, (own, other) = next(iter(errors.items()))
    return (
        f"{name} is {own:.4g} for outputs that leave no loss, and {other:.4g} for the best constant"
    )


SCALES: dict[str, Callable[[Floats], Floats]] = {
    "logarithms of the label's numbers": np.log1p,
    "logarithms of the label's numbers, without 1 added": np.log,
    "roots of the label's numbers": np.sqrt,
}


def _measure_same_parts(served: Floats, wanted: Floats) -> float:
    """Return the share of rows [N, L] with the same numbers, or of numbers with the same digits."""
    if wanted.ndim == 1:
        if not (wanted == wanted.round()).all() or min(wanted.min(), served.min()) < 0:
            return 0.0
        width = len(f"{max(wanted.max(), served.max()):.0f}")
        served, wanted = (
            np.array([list(f"{each:0{width}.0f}") for each in values], dtype=np.float64)
            for values in (served, wanted)
        )
    near = CLOSE * wanted.std()
    is_same = np.isclose(np.sort(served, axis=1), np.sort(wanted, axis=1), rtol=0.0, atol=near)
    return float(is_same.all(axis=1).mean())


def _read_numbers(column: pl.Series) -> Floats | None:
    """Return a column of different numbers [N], or of lists of one length [N, L]."""
    if column.dtype.is_numeric() and not column.null_count() and column.n_unique() > 2:
        return column.cast(pl.Float64).to_numpy()
    return read_lists(column)


def _show(values: Floats) -> str:
    return str(np.atleast_1d(values)[:8].round(4).tolist())


def describe_shared_probabilities(subject: Subject, served: Tensor) -> str:
    """Describe probabilities of tags that add up to 1; empty if they do not, or each row has one.

    Args:
        subject: The subject of the check.
        served: What `predict` gives for each row, [N, C].
    """
    labels = subject.train[LABEL]
    if not has_tags(subject) or served.shape[1:] != labels.shape[1:]:
        return ""
    is_share = bool(((served >= 0) & (served <= 1)).all())
    if not is_share or bool(((served.sum(dim=1) - 1).abs() > ROUNDING).any()):
        return ""
    counts = labels.sum(dim=1)
    if float((counts != 1).double().mean()) < SEVERAL:
        return ""
    return (
        f"the probabilities that are served for {served.shape[1]} tags add up to 1 in each row, "
        f"but rows have {int(counts.min())} to {int(counts.max())} of them, "
        f"{float(counts.mean()):.2g} on average"
    )


def describe_counted_gaps(subject: Subject) -> str:
    """Describe missing numbers in lists of labels that the loss counts; empty if it counts none.

    The loss must not depend on outputs that have no label.
    """
    task = subject.task
    if task.scored_together > 1:
        return ""
    is_gap = _find_gaps(subject.train_rows[task.columns.label].head(ROWS))
    batch = select_head(subject.train, ROWS)
    output = compute_output(subject, batch)
    if is_gap is None or output.shape[:2] != is_gap.shape or is_gap.sum() < FEWEST_GAPS:
        return ""
    free = output.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(task.losses(free, batch).sum(), free)
    counts = gradient.flatten(2).abs().sum(dim=2) if gradient.ndim > 2 else gradient
    counted = float((counts.detach().numpy()[is_gap] != 0).mean())
    if counted < MOSTLY or _knows_gaps(subject, output.detach(), batch, is_gap):
        return ""
    return f"{int(is_gap.sum())} missing numbers among {is_gap.size} labels count in the loss"


def _knows_gaps(subject: Subject, output: Tensor, batch: Batch, is_gap: Flags) -> bool:
    """Whether the loss does not take what stands for a missing number as a number.

    As -1 for a failure that was not seen yet: beside it the loss leaps, or stays as it is, where
    a number's loss changes twice as much with twice the step.
    """
    labels = batch[LABEL]
    if labels.shape != is_gap.shape or not (labels.is_floating_point() and labels.isfinite().all()):
        return False
    step = STEP * labels.std() * torch.from_numpy(is_gap)
    with torch.no_grad():
        here, near, far = (
            subject.task.losses(output, {**batch, LABEL: labels + times * step}).double()
            for times in range(3)
        )
    once, twice = (each[torch.from_numpy(is_gap.any(axis=1))] for each in (near - here, far - here))
    is_number = (once != 0) & torch.isclose(twice, 2 * once, rtol=0.25, atol=0.0)
    return float(is_number.double().mean()) < MOSTLY


def _find_gaps(column: pl.Series) -> Flags | None:
    """Return which numbers of lists of one length are missing, as by -1; None for anything else."""
    if isinstance(column.dtype, pl.Array):
        column = column.arr.to_list()
    if not isinstance(column.dtype, pl.List) or not column.dtype.inner.is_numeric():
        return None
    number = pl.element().cast(pl.Float64).fill_null(float("nan"))
    found = read_lists(column.list.eval(number.is_nan().cast(pl.UInt8)))
    if found is None:
        return None
    is_gap: Flags = found == 1
    if is_gap.any():
        return is_gap
    numbers = np.array(column.to_list(), dtype=np.float64)
    own = find_placeholder(numbers.ravel(), FAR)
    return own.is_here.reshape(numbers.shape) if own is not None and own.is_made_up else is_gap
