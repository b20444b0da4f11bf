"""Find columns that are sums or means of labels over time, their own row's label among them."""

from collections.abc import Iterator, Sequence
from itertools import combinations

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_name
from perennial.check_skeleton.subject import Floats, Subject

# Labels before the row, and after it; over longer windows, one weighs too little beside rounding.
BEFORE, AFTER = 14, 3
FEWEST_ROWS = 4 * BEFORE
MOST_GROUPS = 400
# Of the usual step in time: months differ as much.
SAME_STEP = 0.12
# Of the column's variance: what labels leave of it where it was computed from them.
UNEXPLAINED, NOTHING = 0.02, 1e-4
# As many times more is left by the labels before alone, and by the row's own alone.
TIMES_MORE = 5.0
# Rows between two of a sample may be missing, and grow a count, too.
FEWEST_OF_A_NAME, FEWEST_STEPS, GROWN = 2, 50, 0.8


def find_running_label(subject: Subject) -> str:
    """Return a feature that labels add up to, its row's own or later ones among them; else empty.

    A mean over a window that ends before the row, as of pandas' `shift(1).rolling(7).mean()`, is
    explained by the labels before alone; without the shift it is not. Looks at series
    of one step in time, each of a value of one column, or of two, where the sample has all rows.
    Before that, at counts that grow by the row's own label, in whatever time.
    """
    columns, time = subject.task.columns, subject.time
    # Days for validation lie between those for training.
    frame = pl.concat([subject.train_rows, subject.validation_rows])
    label = frame[columns.label]
    is_number = label.dtype.is_numeric() or label.dtype == pl.Boolean
    if time not in frame.columns or not is_number or label.null_count():
        return ""
    numbers = [
        name for name in columns.features if frame[name].dtype.is_numeric() and name != label.name
    ]
    for column in frame.drop(label.name, time):
        if is_name(column) and column.n_unique() <= frame.height / FEWEST_OF_A_NAME:
            ordered = frame.sort(column.name, time)
            for name in numbers:
                if name != column.name and _counts_own(ordered, name, label.name, column.name):
                    return name
    for groups in _list_groups(frame.drop(label.name), time):
        ordered = frame.sort(*groups, time)
        lagged = _take_labels(ordered, label.name, time, groups)
        for name in numbers:
            if _adds_up(ordered[name].cast(pl.Float64).to_numpy(), lagged):
                return name
    return ""


def _counts_own(ordered: pl.DataFrame, name: str, label: str, group: str) -> bool:
    """Whether a number grows by each row's own label, and not by that of the row before.

    As gifts so far that count the one that is to be predicted.
    """
    values, labels = pl.col(name).cast(pl.Float64), pl.col(label).cast(pl.Float64)
    found = ordered.select(
        values.diff().over(group).alias("step"),
        labels.alias("own"),
        labels.shift(1).over(group).alias("before"),
    ).drop_nulls()
    grown = found.filter(pl.col("own") != pl.col("before"))
    if len(grown) < FEWEST_STEPS:
        return False
    own, before = ((grown["step"] == grown[each]).mean() for each in ("own", "before"))
    return float(own or 0.0) >= GROWN and float(before or 0.0) <= 1 - GROWN  # type: ignore[arg-type]


def _take_labels(ordered: pl.DataFrame, label: str, time: str, groups: Sequence[str]) -> Floats:
    """Return the labels around each row [N, AFTER + 1 + BEFORE], the latest first; NaN at gaps."""
    at, own = pl.col(time).to_physical().cast(pl.Float64), pl.col(label).cast(pl.Float64)
    wide = at.shift(-AFTER) - at.shift(BEFORE)
    taken = [at.diff(), wide, *(own.shift(lag) for lag in range(-AFTER, BEFORE + 1))]
    found = ordered.select(
        (each.over(*groups) if groups else each).alias(str(place))
        for place, each in enumerate(taken)
    ).to_numpy()
    step, width, labels = found[:, 0], found[:, 1:2], found[:, 2:]
    usual = np.median(step[step > 0]) if (step > 0).any() else np.nan
    return np.where(np.abs(width / usual / (AFTER + BEFORE) - 1) < SAME_STEP, labels, np.nan)


def _list_groups(frame: pl.DataFrame, time: str) -> Iterator[Sequence[str]]:
    """Yield columns in whose groups no time comes twice: no column, one, or two."""
    named = [
        column.name
        for column in frame
        if column.name != time and is_name(column) and 2 <= column.n_unique() <= MOST_GROUPS
    ]
    for size in range(3):
        for groups in combinations(named, size):
            if not frame.select(*groups, time).is_duplicated().any():
                yield groups


def _adds_up(values: Floats, labels: Floats) -> bool:
    """Whether values [N] are a sum of labels [N, AFTER + 1 + BEFORE], not of those before alone."""
    known = np.isfinite(values) & np.isfinite(labels).all(axis=1)
    if known.sum() < FEWEST_ROWS or not values[known].std() > 0:
        return False
    inner = values[known] - values[known].mean()
    parts = labels[known] - labels[known].mean(axis=0)

    def measure_rest(chosen: Floats) -> float:
        rest = inner - chosen @ np.linalg.lstsq(chosen, inner, rcond=None)[0]
        return float((rest**2).mean() / (inner**2).mean())

    of_all = measure_rest(parts)
    fewer = parts[:, AFTER + 1 :], parts[:, AFTER : AFTER + 1]
    return of_all < UNEXPLAINED and min(map(measure_rest, fewer)) > TIMES_MORE * of_all + NOTHING
