"""Find numbers for each class, as counts of neighbours' labels, that count the row's own label."""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import find_tensors_of, read_lists
from perennial.check_skeleton.subject import Codes, Floats, Subject
from perennial.engine.task import LABEL

FEWEST_IN_CLASS = 30
# Of the rows of other classes: a number that nearly every row has tells nothing.
LEAST_ABSENT = 0.3
# Rows: where the own class has the largest number in all, the label is made of the numbers.
FEWEST_SMALLER = 5


def describe_self_count(subject: Subject) -> str:
    """Describe a column of lists with a number for each class, that of the own class never absent.

    Counts of neighbours' labels are 0 for the own class in some rows, unless they count the row
    itself. Empty if there is no such column, or `encode` does not read it.
    """
    codes = subject.train[LABEL].numpy()
    if subject.task.kind not in ("binary", "multiclass") or codes.ndim > 1:
        return ""
    for name in subject.task.columns.features:
        numbers = _read_numbers(subject.train_rows[name], len(np.unique(codes)))
        own = None if numbers is None else _find_own_places(numbers, codes)
        if numbers is not None and own is not None and find_tensors_of(subject, name):
            is_single = (numbers > 0).sum(axis=1) == 1
            return (
                f"{name} has a number for each class; that of the row's own class is above 0 in "
                f"every row, and in {is_single.mean():.0%} of them the only one"
            )
    return ""


def _read_numbers(column: pl.Series, classes: int) -> Floats | None:
    """Return lists of as many numbers as classes, none below 0, as an array [N, C]."""
    numbers = read_lists(column)
    if numbers is None or numbers.shape[1] != classes or not bool((numbers >= 0).all()):
        return None
    return numbers


def _find_own_places(numbers: Floats, codes: Codes) -> list[int] | None:
    """Return the place of each class that all its rows have, and many others lack; None if none."""
    found = []
    for code in np.unique(codes):
        is_own = codes == code
        is_always = (numbers[is_own] > 0).all(axis=0)
        is_telling = (numbers[~is_own] == 0).mean(axis=0) >= LEAST_ABSENT
        places = np.flatnonzero(is_always & is_telling)
        if len(places) != 1 or is_own.sum() < FEWEST_IN_CLASS:
            return None
        found.append(int(places[0]))
    own = numbers[np.arange(len(codes)), np.array(found)[np.unique(codes, return_inverse=True)[1]]]
    is_made_of = (own < numbers.max(axis=1)).sum() < FEWEST_SMALLER
    return None if is_made_of or len(set(found)) < len(found) else found
