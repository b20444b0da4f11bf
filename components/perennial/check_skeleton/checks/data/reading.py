"""Whether `encode` reads a column, or a position of the lists in it."""

import numpy as np
import polars as pl

from perennial.check_skeleton.subject import Subject
from perennial.engine.task import Batch, inputs_of

ROWS = 64


def is_read(subject: Subject, name: str) -> bool:
    """Whether the inputs of some rows change with the values of a column."""
    rows = _spread(subject)
    return _is_changed(subject, rows, rows[name].gather(_others(rows[name])))


def is_position_read(subject: Subject, name: str, position: int) -> bool:
    """Whether the inputs change with one position of a column's lists; below 0, from the end."""
    rows = _spread(subject)
    lists = rows[name].to_list()
    held = pl.Series([each[position] for each in lists])
    changed = [list(each) for each in lists]
    for each, value in zip(changed, held.gather(_others(held)).to_list(), strict=True):
        each[position] = value
    return _is_changed(subject, rows, pl.Series(name, changed, dtype=rows[name].dtype))


def _is_changed(subject: Subject, rows: pl.DataFrame, column: pl.Series) -> bool:
    try:
        before = inputs_of(subject.task.encode(rows))
        after = inputs_of(subject.task.encode(rows.with_columns(column)))
    except Exception:  # only a column that is read can be rejected
        return True
    return not are_equal(before, after)


def are_equal(before: Batch, after: Batch) -> bool:
    """Whether two batches hold the same tensors."""
    return before.keys() == after.keys() and all(
        before[name].shape == after[name].shape
        and bool(((before[name] == after[name]) | (before[name] != before[name])).all())
        for name in before
    )


def _spread(subject: Subject) -> pl.DataFrame:
    every = max(subject.train_rows.height // ROWS, 1)
    return subject.train_rows.gather_every(every).head(ROWS)


def _others(values: pl.Series) -> pl.Series:
    """Return places of values to take instead, shifted by half the sorted order."""
    order = values.arg_sort().to_numpy()
    places = np.empty_like(order)
    places[order] = np.roll(order, len(order) // 2)
    return pl.Series(places)
