"""Find groups of rows, as of one source, in another unit or with lists in another order."""

import math
from dataclasses import dataclass

import numpy as np
import polars as pl
from scipy.optimize import linear_sum_assignment

from perennial.check_skeleton.checks.data.signals import is_name, list_rows_by_value, read_lists
from perennial.check_skeleton.subject import Codes, Flags, Floats, Subject, once
from perennial.contracts.errors import join_names

FEWEST_ROWS = 40
FEWEST_GROUPS, MOST_GROUPS = 5, 60
# Of the rows, if most groups are too small: an observer seen once is none.
IN_GROUPS = 0.7
# Percents and fractions, metres and kilometres: hardly a real difference is as large and as exact.
POWERS = (100.0, 1000.0, 1e6)
# Of the distance of the two kinds of groups: their own spread, three errors of their means, and the
# part between them that no group lies in.
SPREAD, INEXACT, EMPTY = 0.15, 0.15, 0.5
FEWEST_POSITIVE = 0.3
QUANTILES = np.linspace(0.1, 0.9, 9)
# Largest difference of shares below a quantile, where both kinds have the same shape.
SAME_SHAPE = 0.08
PARTS = range(4, 33)
# Of the parts' usual distance from each other: out of place, and in it. Parts that are alike lie as
# far from their place in every group.
AWAY, BACK = 0.3, 0.35
TIMES_FARTHER = 3.0


@dataclass(frozen=True)
class OtherGroups:
    """Groups that differ from all others by what a source does, not by what they are.

    Attributes:
        description: Of the groups, with what was measured.
        is_certain: Whether nothing in the world makes such a difference.
    """

    description: str
    is_certain: bool


@dataclass(frozen=True)
class _Groups:
    column: str
    names: list[str]
    rows: list[Codes]  # the rows of each group

    def name(self, chosen: Flags) -> str:
        """Return the chosen groups as a text."""
        names = [name for name, is_chosen in zip(self.names, chosen, strict=True) if is_chosen]
        return f"{self.column} {join_names(names)}"


def find_groups_in_another_unit(subject: Subject, numbers: dict[str, Floats]) -> OtherGroups | None:
    """Return groups of which a number is a power of ten larger or smaller; None if there are none.

    `numbers` are logarithms, NaN where there is none. Labels of two units make any metric wrong,
    but a single group may be as large; of features a model may know the group.
    """
    label = subject.task.columns.label
    for groups in _list_groups(subject):
        for name, values in numbers.items():
            if name == groups.column:
                continue
            parts = [values[rows][np.isfinite(values[rows])] for rows in groups.rows]
            if min(map(len, parts)) < FEWEST_ROWS * FEWEST_POSITIVE:
                continue
            if (found := _split_by_power(parts)) is None:
                continue
            is_other, power = found
            return OtherGroups(
                f"{name} of {groups.name(is_other)} is a factor of {power:g} away from that of all "
                "others, in the middle and at both ends",
                is_certain=name == label and is_other.sum() > 1,
            )
    return None


def _split_by_power(parts: list[Floats]) -> tuple[Flags, float] | None:
    """Return which groups are of the rarer of two units, and the factor between them."""
    middles = np.array([np.median(part) for part in parts])
    order = np.argsort(middles)
    gaps = np.diff(middles[order])
    if not gaps.max() > 0:
        return None
    border = middles[order][int(gaps.argmax())]
    is_low = middles <= border
    low, high = middles[is_low], middles[~is_low]
    distance = float(high.mean() - low.mean())
    spread = max(float(low.std()), float(high.std()))
    error = 3 * spread * math.sqrt(1 / len(low) + 1 / len(high))
    power = min(POWERS, key=lambda each: abs(math.log(each) - distance))
    off = abs(math.log(power) - distance)
    is_apart = gaps.max() > EMPTY * distance and spread < SPREAD * distance
    if not is_apart or max(off, error) > INEXACT * distance:
        return None
    below, above = (
        np.concatenate([part for part, own in zip(parts, is_low, strict=True) if own == side])
        for side in (True, False)
    )
    shares = np.searchsorted(np.sort(below + distance), np.quantile(above, QUANTILES)) / len(below)
    chance = 1 / math.sqrt(min(len(below), len(above)))
    if np.abs(shares - QUANTILES).max() > SAME_SHAPE + chance:
        return None
    is_other = is_low if is_low.sum() <= len(parts) / 2 else ~is_low
    return is_other, power


def find_groups_in_another_order(subject: Subject) -> OtherGroups | None:
    """Return groups whose lists have their parts in another order than those of most groups.

    Each part is known by its quantiles. Lists that are turned round, as days of another time zone,
    may be right.
    """
    columns = subject.task.columns
    for name in dict.fromkeys((*columns.features, columns.label)):
        column = subject.train_rows[name]
        lists = read_lists(column) if isinstance(column.dtype, pl.List | pl.Array) else None
        if lists is None or lists.shape[1] not in PARTS:
            continue
        for groups in _list_groups(subject):
            if found := _find_other_order(name, lists, groups):
                return found
    return None


def _find_other_order(name: str, lists: Floats, groups: _Groups) -> OtherGroups | None:
    marks = np.stack([np.quantile(lists[rows], QUANTILES, axis=0).T for rows in groups.rows])
    usual = np.median(marks, axis=0)  # [parts, quantiles]
    scale = float(np.abs(usual[:, None] - usual[None]).mean())
    if not scale > 0:
        return None
    costs = np.abs(marks[:, :, None] - usual[None, None]).mean(axis=3) / scale
    own = costs.diagonal(axis1=1, axis2=2).mean(axis=1)
    orders = np.stack([linear_sum_assignment(each)[1] for each in costs])
    least = np.take_along_axis(costs, orders[:, :, None], axis=2)[:, :, 0].mean(axis=1)
    usually = np.median(own)
    is_other = (own > np.maximum(AWAY, TIMES_FARTHER * usually)) & (least < BACK * own)
    is_other &= least < 2 * usually + AWAY / 10
    if not is_other.any() or is_other.sum() > len(own) / 2:
        return None
    order = orders[is_other][0]
    is_other &= (orders == order).all(axis=1)
    turns = (order - np.arange(len(order))) % len(order)
    return OtherGroups(
        f"parts of {name} come in another order for {groups.name(is_other)}: there the places of "
        f"the usual parts are {order.tolist()}",
        is_certain=bool((turns != turns[0]).any()),
    )


@once
def _list_groups(subject: Subject) -> list[_Groups]:
    """Return columns of names that nearly all rows fall into, a few each."""
    columns, groups = subject.task.columns, list[_Groups]()
    frame = subject.train_rows.drop(columns.label, strict=False)
    for column in frame:
        if not is_name(column) or not FEWEST_GROUPS <= column.n_unique() <= MOST_GROUPS:
            continue
        found = [pair for pair in list_rows_by_value(column, FEWEST_ROWS) if pair[0] is not None]
        names, rows = [str(value) for value, _ in found], [rows for _, rows in found]
        if len(names) >= FEWEST_GROUPS and sum(map(len, rows)) > IN_GROUPS * len(column):
            groups.append(_Groups(column.name, names, rows))
    return groups
