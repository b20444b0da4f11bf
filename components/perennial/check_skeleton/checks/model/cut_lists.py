"""Lists of items that are cut at the wrong end: what is cut off tells more of the label."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.model.lost_words import (
    Gain,
    compare_readings,
    compute_losses,
    compute_prior_losses,
    find_classes,
)
from perennial.check_skeleton.subject import Subject, compute_example_keys
from perennial.engine.task import LABEL, inputs_of

LISTS = 3000
LONGEST = 32  # lists in which each place is tried
FEWEST_LISTS = 64
MOST_PLACES = 128
PENALTY = 30.0  # items are many, and rows of a class few


@dataclass(frozen=True)
class CutList:
    """What the ends of a column's lists tell of the label.

    Attributes:
        kept: Number of items that are read, from one end.
        cut: Which part is cut off, "beginning" or "end".
        gain: Of as many items of the other end.
    """

    kept: int
    cut: str
    gain: Gain


def measure_cut_lists(subject: Subject, name: str) -> CutList | None:
    """Compare what is read of a column's lists of items with as many items of the other end.

    Returns: None where lists are not cut, labels are no classes, or there are too few rows.
    """
    every = max(subject.num_rows() // LISTS, 1)
    rows = subject.train_rows.gather_every(every)
    least_share = 0.0 if subject.task.kind == "multiclass" else 0.5
    classes = find_classes(subject.train[LABEL][::every].numpy(), least_share)
    lists = [[str(item) for item in each or ()] for each in rows[name].to_list()]
    if classes is None or (classes >= 0).sum() < FEWEST_LISTS:
        return None
    kept, cut = _find_cut(subject, rows, name)
    if not cut:
        return None
    known = [(items, code) for items, code in zip(lists, classes, strict=True) if code >= 0]
    codes = np.array([code for _, code in known])
    constant = compute_prior_losses(codes)
    first, last = (
        compute_losses(
            [items[part] for items, _ in known], codes, constant, longest=1, penalty=PENALTY
        )
        for part in (slice(kept), slice(-kept, None))
    )
    read, other = (first, last) if cut == "end" else (last, first)
    return CutList(kept, cut, compare_readings(codes, read, other))


def _find_cut(subject: Subject, rows: pl.DataFrame, name: str) -> tuple[int, str]:
    """Return how many items of the longest lists are read, and which part is cut off, if any."""
    by_length = rows[name].list.len().fill_null(0).arg_sort(descending=True)
    rows = rows[by_length.head(LONGEST)]
    lengths = rows[name].list.len().fill_null(0).to_numpy()
    lists = rows[name].to_list()
    usual = [item for item, _ in Counter(item for each in lists for item in each).most_common(2)]
    if len(usual) < 2 or lengths[-1] < 2 or lengths[0] > MOST_PLACES:
        return 0, ""
    before = compute_example_keys(inputs_of(subject.task.encode(rows)))
    is_read = np.zeros((len(lists), lengths[0]), dtype=np.bool_)
    for place in range(lengths[0]):
        changed = [_with_other(each, place, usual) for each in lists]
        series = pl.Series(name, changed, rows.schema[name])
        after = compute_example_keys(inputs_of(subject.task.encode(rows.with_columns(series))))
        is_read[:, place] = [one != other for one, other in zip(before, after, strict=True)]
    counts = is_read.sum(axis=1)
    if not counts.max() < lengths[-1] or counts.min() != counts.max():
        return 0, ""
    kept = int(counts[0])
    is_last = all(own[size - kept : size].all() for own, size in zip(is_read, lengths, strict=True))
    cut = "end" if is_read[:, :kept].all() else "beginning" if is_last else ""
    return (kept, cut) if kept else (0, "")


def _with_other(items: list[object], place: int, usual: list[object]) -> list[object]:
    """Return a list with a common item, which encode knows, at a place."""
    if place >= len(items):
        return items
    other = usual[0] if items[place] != usual[0] else usual[-1]
    return [*items[:place], other, *items[place + 1 :]]
