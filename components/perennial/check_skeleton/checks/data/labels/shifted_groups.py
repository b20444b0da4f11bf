"""Find groups of rows, such as devices, whose labels stand before or behind their inputs."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_plain, list_rows_by_value
from perennial.check_skeleton.subject import Codes, Flags, Floats, Subject
from perennial.contracts.errors import join_names

# A correlation of rows with their own labels, or with those of other rows.
Correlate = Callable[[Codes, Codes], float]

FEWEST_ROWS = 128
MOST_GROUPS = 40
# Rows between a label and the inputs that it belongs to: a device that is a few readings late.
FARTHEST = 8
PLACES = [sign * places for places in range(1, FARTHEST + 1) for sign in (1, -1)]
# Of rows that are clearly predicted elsewhere, chance makes a stretch that is not once in 30,000.
CLEAR = 6.0
NOTHING = 2.0
# Of the usual correlation: less is no drift of it.
LITTLE = 0.5
# Labels of slow series correlate nearly as well with their neighbours' inputs.
LEAST_GAIN = 0.05
# That are late by as many rows, and that are not late.
FEWEST_GROUPS = 2


@dataclass(frozen=True)
class Shifted:
    """Groups whose labels belong to other rows.

    Attributes:
        description: Of the groups, with the measured correlations.
        is_certain: Whether inputs and labels of the same row hardly correlate.
    """

    description: str
    is_certain: bool


@dataclass(frozen=True)
class _Groups:
    """How predictions of groups of rows correlate with labels.

    Attributes:
        column: Whose values are the groups.
        names: Of the groups.
        own: Correlation with the labels of the same rows [G].
        moved: That with labels so many rows behind [G, 2 * FARTHEST]; see `PLACES`.
        rows: Number of rows [G].
    """

    column: str
    names: list[str]
    own: Floats
    moved: Floats
    rows: Codes


def find_shifted_groups(subject: Subject, correlate: Correlate, usual: float) -> Shifted | None:
    """Return the first column whose groups are shifted against each other; None if none is.

    A group is shifted for certain if its predictions tell of other rows' labels and hardly of
    their own. It may be where several groups tell more of labels as many rows away, as those of a
    slow series do, and several others tell more of their own.
    """
    columns = subject.task.columns
    frame = subject.train_rows.drop(columns.label, strict=False)
    doubtful = None
    # Groups are rarely inputs.
    for name in sorted(frame.columns, key=columns.features.__contains__):
        if not is_plain(frame[name]) or frame[name].n_unique() > MOST_GROUPS:
            continue
        if not (groups := _measure_groups(frame[name], correlate)).names:
            continue
        best = groups.moved.argmax(axis=1)
        there = groups.moved[np.arange(len(best)), best]
        is_clear = there > np.maximum(LITTLE * usual, CLEAR / np.sqrt(groups.rows))
        counts = zip(groups.own, groups.rows, strict=True)
        is_lost = is_clear & [is_little(own, usual, rows) for own, rows in counts]
        if is_lost.any():
            return Shifted(_describe(groups, is_lost, best), is_certain=True)
        is_late = is_clear & (there - groups.own >= LEAST_GAIN)
        if doubtful or not is_late.any():
            continue
        place = np.bincount(best[is_late]).argmax()
        is_late &= best == place
        in_place = groups.own - groups.moved[:, place] >= LEAST_GAIN
        if min(is_late.sum(), in_place.sum()) >= FEWEST_GROUPS:
            doubtful = Shifted(_describe(groups, is_late, best), is_certain=False)
    return doubtful


def is_little(found: float, usual: float, rows: int) -> bool:
    """Whether a correlation is far below the usual one even if chance made it too low."""
    return found + NOTHING / math.sqrt(rows) < LITTLE * usual


def _measure_groups(column: pl.Series, correlate: Correlate) -> _Groups:
    found = list_rows_by_value(column, FEWEST_ROWS)
    return _Groups(
        column.name,
        [str(value) for value, _ in found],
        np.array([np.nan_to_num(correlate(rows, rows)) for _, rows in found]),
        np.array([list(_correlate_moved(rows, correlate)) for _, rows in found]),
        np.array([len(rows) for _, rows in found]),
    )


def _correlate_moved(rows: Codes, correlate: Correlate) -> Iterator[float]:
    """Yield the correlations with labels at the `PLACES`; 0 if nothing varies."""
    for place in PLACES:
        late, early = rows[abs(place) :], rows[: -abs(place)]
        own, other = (early, late) if place > 0 else (late, early)
        yield float(np.nan_to_num(correlate(own, other)))


def _describe(groups: _Groups, chosen: Flags, best: Codes) -> str:
    first = int(chosen.argmax())
    place = PLACES[int(best[first])]
    names = [name for name, is_chosen in zip(groups.names, chosen, strict=True) if is_chosen]
    rows = "row" if abs(place) == 1 else "rows"
    return (
        f"in rows of {groups.column} {join_names(names)}, predictions and labels correlate by "
        f"{groups.own[first]:.2f}, but by {groups.moved[first, best[first]]:.2f} with the labels "
        f"{abs(place)} {rows} {'behind' if place > 0 else 'before'}"
    )
