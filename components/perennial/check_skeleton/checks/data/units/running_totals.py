"""Find lists that are running totals in some groups of rows, as of one source, alone."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_name, list_rows_by_value
from perennial.check_skeleton.subject import Codes, Flags, Subject
from perennial.contracts.errors import join_names

SHORTEST = 5
FEWEST_ROWS, MOST_GROUPS = 40, 60
# Of the lists of a group that change at all: totals never fall, five numbers seldom rise by chance.
ALWAYS, SELDOM = 0.995, 0.1
# A total that begins with its list begins with a step; and labels are as large as what they follow.
ALIKE = 2.0


@dataclass(frozen=True)
class RunningTotals:
    """Groups whose lists add up what those of all others hold.

    Attributes:
        description: Of the groups.
        is_certain: Whether labels are as large as the steps there, and as the numbers elsewhere.
    """

    description: str
    is_certain: bool


def find_running_totals(subject: Subject) -> RunningTotals | None:
    """Return groups whose lists are running totals where others' are not; None if there are none.

    Where neither the labels nor the first numbers show that steps are added up, nothing is found:
    one kind of series may well rise and another one not.
    """
    columns, rows = subject.task.columns, subject.train_rows
    labels = _take_means(rows[columns.label])
    for name in dict.fromkeys((*columns.features, columns.label)):
        if (lists := _measure_lists(rows[name])) is None:
            continue
        for group, names, parts in _list_groups(rows.drop(columns.label, strict=False)):
            if group == name or (is_total := _tell_totals(lists, parts)) is None:
                continue
            totals, others = (
                np.concatenate(
                    [part for part, own in zip(parts, is_total, strict=True) if own == k]
                )
                for k in (True, False)
            )
            known = None if name == columns.label else labels
            is_certain = _are_labels_of_steps(lists, known, totals, others)
            first, step = (_average(lists[each], totals) for each in ("first", "step"))
            if not is_certain and not _are_alike(first, step):
                continue
            chosen = [each for each, own in zip(names, is_total, strict=True) if own]
            return RunningTotals(
                f"numbers of {name} never fall within a row of {group} {join_names(chosen)}, and "
                "do in nearly each row of all others"
                + (
                    "; labels are as large as their steps there, and as they elsewhere" * is_certain
                ),
                is_certain,
            )
    return None


def _measure_lists(column: pl.Series) -> pl.DataFrame | None:
    """Return of each row whether its list rises, and its numbers; None if there are no such lists.

    `rises` is null for lists that do not change, and for short ones.
    """
    if not isinstance(column.dtype, pl.List | pl.Array) or not column.dtype.inner.is_numeric():
        return None
    kind = pl.List(pl.Float64)
    lists = pl.col("list").list.drop_nulls()
    steps, change = lists.list.diff(), lists.list.last() - lists.list.first()
    return pl.DataFrame({"list": column.cast(kind)}).select(
        pl.when(lists.list.len() >= SHORTEST, lists.list.n_unique() > 1)
        .then((steps.list.min() >= 0) & (change > 0))
        .alias("rises"),
        lists.list.first().alias("first"),
        (change / (lists.list.len() - 1)).alias("step"),
        lists.list.mean().alias("mean"),
    )


def _take_means(column: pl.Series) -> pl.Series | None:
    """Return the numbers of a column, of lists the means; None for anything else."""
    if column.dtype.is_numeric():
        return column.cast(pl.Float64)
    found = _measure_lists(column)
    return None if found is None else found["mean"]


def _list_groups(rows: pl.DataFrame) -> Iterator[tuple[str, list[str], list[Codes]]]:
    """Yield columns of a few names, those with enough rows, and their rows."""
    for column in rows:
        if is_name(column) and 2 <= column.n_unique() <= MOST_GROUPS:
            found = list_rows_by_value(column, FEWEST_ROWS)
            yield column.name, [str(value) for value, _ in found], [part for _, part in found]


def _tell_totals(lists: pl.DataFrame, parts: list[Codes]) -> Flags | None:
    """Return which groups' lists always rise, if the others' seldom do; None if any is between."""
    rising = [lists["rises"].gather(part).drop_nulls() for part in parts]
    if len(parts) < 2 or min(map(len, rising)) < FEWEST_ROWS / 2:
        return None
    shares = np.array([_average(each, np.arange(len(each))) for each in rising])
    is_total, is_other = shares >= ALWAYS, shares <= SELDOM
    is_told = is_total.any() and is_other.any() and (is_total | is_other).all()
    return is_total if is_told else None


def _are_labels_of_steps(
    lists: pl.DataFrame, labels: pl.Series | None, totals: Codes, others: Codes
) -> bool:
    """Whether labels are as large as the steps of totals, and as the numbers of all others."""
    if labels is None:
        return False
    of_totals, of_others = (_average(labels, rows) for rows in (totals, others))
    step, mean = (_average(lists[each], totals) for each in ("step", "mean"))
    usual = _average(lists["mean"], others)
    return _are_alike(of_totals, step) and _are_alike(of_others, usual) and mean > ALIKE**2 * step


def _average(column: pl.Series, rows: Codes) -> float:
    return float(column.cast(pl.Float64).gather(rows).mean() or 0.0)  # type: ignore[arg-type]


def _are_alike(one: float, other: float) -> bool:
    return min(one, other) > 0 and abs(math.log(one / other)) < math.log(ALIKE)
