"""Find labels that all stand a row behind or before their inputs."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from perennial.check_skeleton.baselines import make_table
from perennial.check_skeleton.checks.data.labels.shifted_groups import CLEAR, NOTHING
from perennial.check_skeleton.subject import Codes, Subject
from perennial.engine.task import inputs_of

# How well a model of some rows' inputs predicts the labels of other rows, which it is fitted on.
Predict = Callable[[Codes, Codes], float]

FARTHEST = 2
FEWEST_ROWS = 256
# Rows of a small sample predict something by chance.
LEAST = 0.2
# A label of the row before that is known by then is predicted as well, and rows of a series are
# like the row before.
MOST_KNOWN, MOST_ALIKE = 0.9, 0.2
IN_FILE = "their order in the file"


@dataclass(frozen=True)
class MovedRows:
    """Labels of which each belongs to another row.

    Attributes:
        description: Of the rows, with the measured correlations.
        is_certain: Whether no series explains it.
    """

    description: str
    is_certain: bool


def find_moved_rows(subject: Subject, predict: Predict) -> MovedRows | None:
    """Return where the labels are that inputs predict, if not in their own rows; else None.

    In a series, inputs tell the label of the row before, which is known by then; that of the row
    after they tell no better than their own. Rows are neighbours by their numbers, or in the file.
    """
    own = predict(np.arange(subject.num_rows()), np.arange(subject.num_rows()))
    for order, places in _list_places(subject):
        for steps in (sign * far for far in range(1, FARTHEST + 1) for sign in (1, -1)):
            rows, others = _pair(places, steps)
            if len(rows) < FEWEST_ROWS or own >= NOTHING / math.sqrt(len(rows)):
                continue
            found = predict(rows, others)
            if found < max(LEAST, CLEAR / math.sqrt(len(rows))):
                continue
            # Rows that the sample lacks make a known label look like a noisy one.
            may_be_known = order == IN_FILE or found > MOST_KNOWN
            if steps < 0 and (may_be_known or _are_alike(subject, rows, others)):
                continue
            far = f"{abs(steps)} {'row' if abs(steps) == 1 else 'rows'}"
            return MovedRows(
                f"a linear model of the inputs predicts the labels {far} "
                f"{'below' if steps > 0 else 'above'} by {order}, with a correlation of "
                f"{found:.2f}, and those of its own rows by {own:.2f}",
                is_certain=steps > 0 and not _has_time(subject),
            )
    return None


def _list_places(subject: Subject) -> Iterator[tuple[str, Codes]]:
    """Yield the rows' numbers, as of columns of ids, and their places in the sample."""
    rows, columns = subject.train_rows, subject.task.columns
    for name in subject.data.ids if subject.data else ():
        column = rows[name]
        is_number = column.dtype.is_integer() and not column.null_count()
        if is_number and name not in columns.features and column.n_unique() == len(column):
            yield name, column.to_numpy().astype(np.int64)
    if subject.num_rows() >= subject.train_split_rows:
        yield IN_FILE, np.arange(subject.num_rows())


def _pair(places: Codes, steps: int) -> tuple[Codes, Codes]:
    """Return rows, and the rows that are so many places behind them."""
    row_at = {int(place): row for row, place in enumerate(places)}
    pairs = [
        (row, row_at[int(place) + steps])
        for row, place in enumerate(places)
        if int(place) + steps in row_at
    ]
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _are_alike(subject: Subject, rows: Codes, others: Codes) -> bool:
    """Whether some input of a row correlates with one of the row that is paired with it."""
    table = np.nan_to_num(make_table(inputs_of(subject.train)).astype(np.float64))
    one, other = table[rows], table[others]
    varies = (one.std(axis=0) > 0) & (other.std(axis=0) > 0)
    if not varies.any():
        return False
    width = int(varies.sum())
    found = np.corrcoef(one[:, varies], other[:, varies], rowvar=False)[:width, width:]
    return bool(np.abs(found).max() > MOST_ALIKE)


def _has_time(subject: Subject) -> bool:
    return subject.time is not None or any(
        column.dtype.is_temporal() or column.dtype.is_nested() for column in subject.train_rows
    )
