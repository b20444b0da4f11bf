"""Twins: inputs that are copies of each other, while a column is not read."""

from itertools import combinations

import polars as pl
import torch

from perennial.check_skeleton.checks.data.reading import are_equal
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import inputs_of

ROWS = 64
MOST_COLUMNS = 64


def find_twin_inputs(subject: Subject) -> tuple[str, str, str] | None:
    """Find two inputs that are equal in every row, and a feature that no input depends on."""
    inputs = inputs_of(subject.train)
    twins = [
        (one, other)
        for one, other in combinations(inputs, 2)
        if inputs[one].shape == inputs[other].shape
        and torch.equal(inputs[one], inputs[other])
        and bool((inputs[one] != inputs[one][:1]).any())
    ]
    unread = _find_unread(subject) if twins else ""
    return (*twins[0], unread) if unread else None


def _find_unread(subject: Subject) -> str:
    """Return a feature whose exchange between rows changes no input; empty if none."""
    rows, label = subject.train_rows.head(ROWS), subject.task.columns.label
    before = inputs_of(subject.task.encode(rows))
    for name in list(subject.task.columns.features)[:MOST_COLUMNS]:
        values = rows[name]
        if name == label or (not values.dtype.is_nested() and values.n_unique() < 2):
            continue
        moved = pl.concat([values[1:], values[:1]])
        try:
            after = inputs_of(subject.task.encode(rows.with_columns(moved)))
        except Exception:  # only a column that is read can be rejected
            continue
        if are_equal(before, after):
            return name
    return ""
