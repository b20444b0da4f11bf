"""Units of regression: predictions in that of encoded labels, or in that of the data's column."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import polars as pl

from perennial.check_skeleton.free_outputs import find_best_outputs, probe
from perennial.check_skeleton.subject import Floats, Subject, once
from perennial.engine.evaluation.scoring import take_one_each
from perennial.engine.task import LABEL, Task

Unit = Callable[[Floats], Floats]
"""Encoded labels → what predictions equal to them are."""

# Encoded labels are rounded to float32; of another relation much more is left.
EXACT = 1e-4
# Outputs that minimise the loss predict their labels to within this part of a deviation.
CLOSE = 0.1
# In standard deviations, and as a share of the labels around the mode.
NEAR_MODE, LIKE_MODE = 0.2, 0.75
# A density grows without end at the label, and a search ends somewhere before it.
NEAR_A_POLE = 0.3
# Errors in deviations beyond those of any scale, of at most this share of the examples.
RUNAWAY, FEW_RUNAWAYS = 10.0, 0.05
# Mean and deviation of a sample of standardised labels, from 0 and 1.
NEARLY = 0.1
# Share of labels that are near the others, even where tails are heavy.
USUAL = 0.95
# Ways back from labels that are scaled, and those that are logarithms before.
_WAYS: tuple[tuple[Unit, Unit], ...] = (
    (np.positive, np.positive),
    (np.log, np.exp),
    (np.log1p, np.expm1),
)


@once
def find_unit(subject: Subject) -> Unit:
    """Return how encoded labels become what the task predicts, and scores, for them.

    A task may learn scaled labels, and predict and score in the unit of the data's column. Then
    outputs that minimise the loss predict the column's values. Otherwise it is the identity.
    """
    task, column = subject.task, subject.train_rows[subject.task.columns.label]
    labels = take_one_each(subject.train[LABEL]).double().numpy()
    if task.kind != "regression" or labels.ndim > 1 or not column.dtype.is_numeric():
        return np.positive
    wanted = take_one_each(probe(subject)[LABEL]).double().numpy()
    best = task.predict(find_best_outputs(subject).ideal).detach().double().numpy()
    for unit in _find_ways_back(labels, column.cast(pl.Float64).to_numpy()):
        if measure_error(best, unit(wanted)) < CLOSE <= measure_error(best, wanted):
            return unit
    return np.positive


def _find_ways_back(labels: Floats, raw: Floats) -> Iterator[Unit]:
    """Yield the functions that exactly restore the column's values from the encoded labels."""
    for forth, back in _WAYS:
        with np.errstate(invalid="ignore", divide="ignore"):
            straight = forth(raw)
        if not np.isfinite(straight).all() or min(straight.std(), labels.std()) < 1e-12:
            continue
        slope, offset = np.polyfit(labels, straight, 1)
        left = np.abs(slope * labels + offset - straight).max()
        if left < EXACT * straight.std():
            yield partial(_restore, slope=float(slope), offset=float(offset), back=back)


def is_left_standardised(subject: Subject) -> bool:
    """Whether labels are standardised, and predictions of them are not scaled back.

    A served answer is then a number of deviations, of which only the task's state knows the unit.
    """
    task, column = subject.task, subject.train_rows[subject.task.columns.label]
    labels = take_one_each(subject.train[LABEL]).double().numpy()
    if task.kind != "regression" or labels.ndim > 1 or not column.dtype.is_numeric():
        return False
    raw = column.cast(pl.Float64).to_numpy()
    is_standard = abs(labels.mean()) < NEARLY and abs(labels.std() - 1) < NEARLY
    is_raw = abs(raw.mean()) < 2 * NEARLY and abs(raw.std() - 1) < 2 * NEARLY
    if not is_standard or is_raw or find_unit(subject) is not np.positive:
        return False
    return any(True for _ in _find_ways_back(labels, raw))


def _restore(values: Floats, slope: float, offset: float, back: Unit) -> Floats:
    return back(slope * values + offset)


def measure_error(predicted: Floats, wanted: Floats) -> float:
    """Return the root mean squared error in standard deviations of what is wanted.

    Without a few errors beyond any value: where a loss has several parts, or clamps one, the search
    for its minimum ends in a saturated place for some examples.
    """
    errors = np.abs(predicted - wanted) / max(float(wanted.std()), 1e-12)
    has_run_away = ~(errors < RUNAWAY)
    if has_run_away.mean() <= FEW_RUNAWAYS:
        errors = errors[~has_run_away]
    return float(np.sqrt(np.mean(errors**2)))


def judge_errors(predicted: Floats, wanted: Floats, *, is_density: bool) -> tuple[float, bool]:
    """Return the error in standard deviations, and whether predictions agree with what is wanted.

    The search for a density's pole misses it for some examples, far from which the density is
    flat; and heavy tails make a deviation that hides any error of the others. The median counts.
    """
    error = measure_error(predicted, wanted)
    if not is_density:
        return error, error < CLOSE
    distance = np.abs(wanted - np.median(wanted))
    usual = wanted[distance <= np.quantile(distance, USUAL)]
    typical = float(np.median(np.abs(predicted - wanted)) / max(float(usual.std()), 1e-12))
    agree = typical < CLOSE or max(typical, error) < NEAR_A_POLE
    return (error if agree else max(typical, error)), agree


def is_mode(value: float, labels: Floats) -> bool:
    """Whether about as many labels lie around a value, or its logarithm, as around any other."""
    scales = [(value, labels)]
    if min(value, labels.min()) > 0:
        scales.append((np.log(value), np.log(labels)))
    for own, each in scales:
        ordered, reach = np.sort(each), NEAR_MODE * each.std()
        at = np.append(ordered, own)
        around = np.searchsorted(ordered, at + reach) - np.searchsorted(ordered, at - reach)
        if around[-1] >= LIKE_MODE * around.max():
            return True
    return False


def make_perfect_predictions(task: Task, labels: Floats, classes: int) -> Floats:
    """Return predictions that are right and sure, in the unit of the encoded labels."""
    if task.kind == "regression":
        return labels
    if task.kind == "binary":
        return np.where(labels > 0.5, 0.999, 0.001)
    chance = np.full((len(labels), classes), 0.001 / classes)
    chance[np.arange(len(labels)), labels.astype(int)] += 1 - 0.001
    return chance
