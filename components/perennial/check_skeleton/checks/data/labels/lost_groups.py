"""Find groups of rows, as of one plate, whose labels are not those of their inputs, or turned."""

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.stats import ks_2samp

from perennial.check_skeleton.checks.data.labels.shifted_groups import Correlate
from perennial.check_skeleton.checks.data.signals import is_name, list_rows_by_value
from perennial.check_skeleton.subject import Codes, Floats, Subject
from perennial.contracts.errors import join_names

FEWEST_ROWS, MOST_GROUPS, IN_GROUPS = 24, 500, 0.7
FEWEST_LOST, FEWEST_KEPT = 3, 3
# Of the usual correlation of the better half: that of lost groups, and of hardly any group between.
LOST, KEPT, MOST_BETWEEN = 0.35, 0.6, 0.1
LEAST_USUAL, ERRORS = 0.5, 3.0
# Labels that another row has are as large as all others; a group that is another thing's differ.
SAME_LABELS = 1e-3
MOST_TURNED, CLEARLY_TURNED, TURNED_ERRORS = 50, 0.25, 4.0


def describe_lost_groups(
    subject: Subject, labels: Floats, correlate: Correlate, is_lost: Callable[[Codes, Codes], bool]
) -> str:
    """Describe groups whose predictions have nothing to do with labels, if others' clearly have.

    Their labels seem to be those of other rows of the group. Empty if there are none.

    `is_lost` decides whether a model of these rows alone learns nothing either.
    """
    for name, names, parts in _list_groups(subject):
        found = np.array([np.nan_to_num(correlate(rows, rows)) for rows in parts])
        usual = float(np.quantile(found, 0.75))
        errors = 1 / math.sqrt(float(np.median([len(rows) for rows in parts])))
        if usual < max(LEAST_USUAL, ERRORS * errors):
            continue
        away = found < LOST * usual
        between = ~away & (found < KEPT * usual)
        if between.mean() > MOST_BETWEEN or away.mean() > 0.75:
            continue
        kept = ~away & ~between
        if away.sum() < FEWEST_LOST or kept.sum() < FEWEST_KEPT:
            continue
        # Of groups that are lost by chance, some lie far below and others little.
        if found[away].mean() > ERRORS * errors / math.sqrt(away.sum()) + LOST / 3 * usual:
            continue
        rows, others = (
            np.sort(np.concatenate([part for part, own in zip(parts, chosen, strict=True) if own]))
            for chosen in (away, kept)
        )
        same = [ks_2samp(each[rows], each[others]).pvalue for each in labels.T]
        if min(same) < SAME_LABELS or not is_lost(rows, others):
            continue
        shown = [each for each, own in zip(names, away, strict=True) if own]
        return (
            f"in rows of {name} {join_names(shown)}, a linear model's "
            f"predictions and the labels correlate by {found[away].mean():.2f}; in those of "
            f"{kept.sum()} others by {found[kept].mean():.2f}"
        )
    return ""


def describe_turned_groups(subject: Subject, correlate: Correlate) -> tuple[str, bool]:
    """Describe groups whose labels fall where those of all other groups rise; empty if none do.

    As of a colleague who notes a correction in place of an error. Returns also whether the inputs
    do not tell these groups, so that no model can learn it.
    """
    features = subject.task.columns.features
    for column in subject.train_rows.drop(subject.task.columns.label):
        if column.name == subject.time or not is_name(column):
            continue
        if not 2 < column.n_unique() <= MOST_TURNED:
            continue
        found = list_rows_by_value(column, FEWEST_ROWS)
        if len(found) < 3 or sum(len(rows) for _, rows in found) < IN_GROUPS * len(column):
            continue
        own = np.array([np.nan_to_num(correlate(rows, rows)) for _, rows in found])
        sizes = np.array([len(rows) for _, rows in found])
        clear = np.maximum(CLEARLY_TURNED, TURNED_ERRORS / np.sqrt(sizes))
        turned, kept = own < -clear, own > clear
        # Labels that are about something else in each group are turned in about half of them.
        if not turned.any() or (turned | kept).mean() < 1 or turned.sum() >= kept.sum():
            continue
        shown = [
            str(value) for (value, _), is_turned in zip(found, turned, strict=True) if is_turned
        ]
        return (
            f"in rows of {column.name} {join_names(shown)}, a linear model's predictions and the "
            f"labels correlate by {own[turned].mean():.2f}; in those of {kept.sum()} others by "
            f"{own[kept].mean():.2f}"
        ), column.name not in features
    return "", False


def _list_groups(subject: Subject) -> Iterator[tuple[str, list[str], list[Codes]]]:
    """Yield columns that are no inputs, with the groups that nearly all rows fall into."""
    columns = subject.task.columns
    for column in subject.train_rows.drop(columns.label, *columns.features, strict=False):
        # Before a machine is built in or fails, whole days have no signal.
        if column.name == subject.time or not is_name(column):
            continue
        most = min(MOST_GROUPS, len(column) // FEWEST_ROWS + 1)
        if not FEWEST_LOST + FEWEST_KEPT <= column.n_unique() <= most:
            continue
        found = list_rows_by_value(column, FEWEST_ROWS)
        parts = [rows for _, rows in found]
        if len(parts) >= FEWEST_LOST + FEWEST_KEPT and sum(map(len, parts)) > IN_GROUPS * len(
            column
        ):
            yield column.name, [str(value) for value, _ in found], parts
