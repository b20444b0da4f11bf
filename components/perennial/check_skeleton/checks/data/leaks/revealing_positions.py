"""Find the position of lists, or of the encoded inputs, that holds the label, or marks a class."""

import numpy as np
import polars as pl
from torch import Tensor

from perennial.check_skeleton.checks.data.signals import (
    find_cut_columns,
    is_plain,
    is_position_read,
)
from perennial.check_skeleton.subject import Codes, Floats, Subject, select_head
from perennial.engine.task import LABEL, inputs_of

ROWS = 1024
# Fewer rows may agree by chance.
FEWEST_ROWS = 64
# A forecast of which more is known by design, as by a decoder's first inputs, is no mistake.
KNOWN_PART = 0.25
FEWEST_NUMBERS = 8
MOST_COLUMNS = 8192
MOST_LABELS = 64
MOST_POSITIONS = 64
# Of the label's deviation: what single precision leaves of equality.
ROUNDING = 1e-4
# Parts of a picture that hardly vary within a class, beside their range over all classes, and that
# hardly a picture of another class shares: a frame, a stamp, a watermark of the class's source.
STEADY, SHARED, FEWEST_PARTS, FEWEST_PICTURES = 0.05, 0.01, 4, 20
# A constant series is equal at many positions, so it does not show where the label was taken.
MOST_EQUAL = 0.25


def describe_label_position(subject: Subject) -> str:
    """Describe the position of the inputs, raw or encoded, that is the label; empty if none.

    Skipped for a single number, of which the label may be a function by design.
    """
    columns = subject.task.columns
    is_single = len(columns.features) == 1 and is_plain(
        subject.train_rows[next(iter(columns.features))]
    )
    if columns.label in columns.features or is_single or subject.num_rows() < FEWEST_ROWS:
        return ""
    return _describe_list_position(subject) or _describe_input_position(subject)


def _describe_input_position(subject: Subject) -> str:
    """Describe a number of the encoded inputs, or a difference, that determines the label."""
    batch = select_head(subject.train, ROWS)
    labels = batch[LABEL].double().reshape(len(batch[LABEL]), -1).numpy()
    tensors = {
        name: each.double().numpy()
        for name, each in inputs_of(batch).items()
        if each.ndim > 1 and each[0].numel() <= MOST_COLUMNS
    }
    if labels.shape[1] > MOST_LABELS or sum(each[0].size for each in tensors.values()) < 2:
        return ""
    is_class = subject.task.kind in ("binary", "multiclass")
    for name, values in tensors.items():
        shown = f"{name}[{{}}] is the label"
        for axis in range(values.ndim):
            if axis and values.shape[axis] < FEWEST_NUMBERS:
                continue
            with np.errstate(invalid="ignore"):  # of masks with infinite values
                numbers = np.diff(values, axis=axis) if axis else values
            place = _find_place(
                numbers.reshape(len(values), -1), labels, is_class=is_class,
                most_known=0.0 if axis else KNOWN_PART,
            )  # fmt: skip
            if place is not None:
                return shown.format(place)
            shown = f"a difference of neighbours in {name} (number {{}}) is the label"
    return ""


def _find_place(
    numbers: Floats, labels: Floats, *, is_class: bool, most_known: float
) -> int | None:
    """Return the last of the columns that determine all labels, or a few; None if none does."""
    varying, scaled = _standardise(numbers)
    few = max(MOST_EQUAL * numbers.shape[1], 1)
    following = [varying[_find_following(scaled, each)] for each in labels.T]
    found = [each if len(each) <= few else each[:0] for each in following]
    known = [int(each[-1]) for each in found if len(each)]
    if known and (len(known) == len(found) or len(known) <= most_known * len(found)):
        return known[-1]
    if is_class and labels.shape[1] == 1:
        cut = np.flatnonzero(find_cut_columns(numbers, labels[:, 0]))
        if 0 < len(cut) <= few:
            return int(cut[-1])
    return None


def describe_stamp(subject: Subject) -> str:
    """Describe parts of pictures that are alike in one class alone; empty if there are none."""
    batch = select_head(subject.train, ROWS)
    if subject.task.kind not in ("binary", "multiclass") or batch[LABEL].ndim > 1:
        return ""
    pictures = (pair for pair in inputs_of(batch).items() if pair[1].ndim == 4)
    found = (_find_stamp(name, each.flatten(1), batch[LABEL]) for name, each in pictures)
    return next(filter(None, found), "")


def _find_stamp(name: str, pictures: Tensor, codes: Tensor) -> str:
    step = -(-pictures.shape[1] // MOST_COLUMNS)
    numbers, labels = pictures[:, ::step].double().numpy(), codes.numpy()
    reach = STEADY * np.ptp(np.quantile(numbers, [0.01, 0.99], axis=0), axis=0)
    for code, count in zip(*np.unique(labels, return_counts=True), strict=True):
        if not FEWEST_PICTURES <= count <= len(labels) - FEWEST_PICTURES:
            continue
        own, other = numbers[labels == code], numbers[labels != code]
        low, high = np.quantile(own, [0.01, 0.99], axis=0)
        alike = (other >= low - reach) & (other <= high + reach)
        places = np.flatnonzero((high - low < reach) & (alike.mean(axis=0) <= SHARED))
        if len(places) >= FEWEST_PARTS:
            return (
                f"{len(places)} of {numbers.shape[1]} numbers of {name}, as that at "
                f"{step * places[0]}, are the same in all pictures of class "
                f"{code:g} and in hardly another"
            )
    return ""


def _standardise(numbers: Floats) -> tuple[Codes, Floats]:
    """Return which columns vary and are finite, and those with mean 0 and deviation 1."""
    finite = np.isfinite(numbers).all(axis=0)
    deviation = np.where(finite, np.where(finite, numbers, 0.0).std(axis=0), 0.0)
    varying = np.flatnonzero(deviation > 0)
    return varying, (numbers[:, varying] - numbers[:, varying].mean(axis=0)) / deviation[varying]


def _find_following(scaled: Floats, label: Floats) -> Codes:
    """Return the columns of which the label is a multiple plus a constant."""
    if len(np.unique(label)) < FEWEST_NUMBERS or not np.isfinite(label).all():
        return np.zeros(0, dtype=np.int64)
    truth = (label - label.mean()) / label.std()
    correlation = truth @ scaled / len(truth)
    near = np.flatnonzero(np.abs(correlation) > 1 - ROUNDING)
    left = np.abs(truth[:, None] - scaled[:, near] * np.sign(correlation[near]))
    return np.asarray(near[left.max(axis=0, initial=0.0) < ROUNDING])


def _describe_list_position(subject: Subject) -> str:
    """Describe a list position that is the label, or whose step from its neighbour is.

    Of a label that is a list, if all elements or a few have a position.
    """
    rows = subject.train_rows.head(ROWS)
    labels = _list_labels(rows[subject.task.columns.label])
    for name in subject.task.columns.features if labels else ():
        column = rows[name]
        if isinstance(column.dtype, pl.Array):
            column = column.arr.to_list()
        if not isinstance(column.dtype, pl.List) or column.dtype.inner.is_nested():
            continue
        if column.null_count() or (shortest := int(column.list.len().min() or 0)) == 0:  # type: ignore[arg-type]
            continue
        positions = range(-1, -min(shortest, MOST_POSITIONS) - 1, -1)
        places = [*positions, *range(min(shortest, MOST_POSITIONS))]
        values = {place: column.list.get(place) for place in places}
        found = [_find_equal_place(subject, name, values, label) for label in labels]
        known = [place for place in found if place is not None]
        if known and (len(known) == len(labels) or len(known) <= KNOWN_PART * len(labels)):
            return f"{name}[{known[-1]}] is the label"
        if len(labels) > 1:
            continue
        if (place := _find_moving_place(column, labels[0], positions)) and is_position_read(
            subject, name, place
        ):
            return f"whether {name}[{place}] is above {name}[{place - 1}] is the label"
    return ""


def _list_labels(label: pl.Series) -> list[pl.Series]:
    """Return the label, or each element of one that is a list; empty where some are missing."""
    if isinstance(label.dtype, pl.List) and not label.dtype.inner.is_nested():
        lengths = label.list.len()
        if lengths.n_unique() == 1 and 0 < lengths[0] <= MOST_LABELS:
            labels = [label.list.get(place) for place in range(lengths[0])]
            return [] if any(each.null_count() for each in labels) else labels
    return [] if label.dtype.is_nested() or label.null_count() else [label]


def _find_equal_place(
    subject: Subject, name: str, values: dict[int, pl.Series], label: pl.Series
) -> int | None:
    """Return the place of a list that is the label in all rows, other than its neighbours."""
    if label.n_unique() < FEWEST_NUMBERS:
        return None
    shares = {place: _measure_equal(each, label) for place, each in values.items()}
    for place, share in shares.items():
        beside = [shares[place + step] for step in (-1, 1) if place + step in shares]
        moves = all(each < 1 - MOST_EQUAL / 2 for each in beside)
        if share == 1.0 and moves and is_position_read(subject, name, place):
            return place
    return None


def _measure_equal(values: pl.Series, label: pl.Series) -> float:
    """Return how often two columns agree where they are known; 0 if they cannot be compared."""
    numbers = values.dtype.is_numeric() and label.dtype.is_numeric()
    if (values.dtype != label.dtype and not numbers) or values.null_count() > len(values) / 2:
        return 0.0
    return float((values == label).mean() or 0.0)  # type: ignore[arg-type]


def _find_moving_place(column: pl.Series, label: pl.Series, positions: range) -> int:
    """Return the position, from the end, whose step has the label's sign; 0 if none.

    For two classes, in every row; a step of zero may belong to either class.
    """
    if label.n_unique() != 2 or not column.list.get(0).dtype.is_numeric() or len(positions) < 2:
        return 0
    upper = (label == label.max()).to_numpy()
    if min(upper.sum(), (~upper).sum()) < FEWEST_ROWS / 2:
        return 0
    for place in positions[:-1]:
        step = (column.list.get(place) - column.list.get(place - 1)).to_numpy()
        for sign in (1, -1):
            is_up = upper if sign == 1 else ~upper
            if (step[is_up] >= 0).all() and (step[~is_up] <= 0).all() and np.mean(step == 0) < 0.5:
                return place
    return 0
