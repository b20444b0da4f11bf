"""Find windows that end in a straight line to what comes later: gaps filled from the future.

Interpolation over a whole series needs the reading behind each gap. A window that is cut within a
gap then ends in a line that points at it, and at the label, as no other window's end does.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import read_lists
from perennial.check_skeleton.subject import Flags, Floats, Subject

POINTS = 5
SHORTEST_WINDOW = 2 * POINTS + 2
FEWEST_ROWS = 50
# Of the rows: where nearly all windows end in lines, the series is made of lines.
LEAST_SHARE, MOST_SHARE = 0.02, 0.8
# Of the variance of the label's change that slopes explain: of lines, and of other ends. A line
# that is drawn on from the past explained 0.29, one that ends in the label 0.97.
EXPLAINED, UNEXPLAINED = 0.8, 0.5
# Where a whole series was filled, most lines end before the label: gaps of 12 to 20 steps had 0.24
# to 0.48, other ends 0.01.
PARTLY_EXPLAINED, TIMES_OTHERS = 0.2, 5.0
# Times the share of windows with a line elsewhere.
ONLY_AT_END = 10.0
MOST_DIGITS = 4
# Second differences of rounded numbers reach twice their last digit; others have float32 errors.
ROUNDED, EXACT = 2.0, 1e-5


@dataclass(frozen=True)
class FilledEnd:
    """Windows [N, L] of a column of which some end in a line that tells the label."""

    name: str  # of the column
    share: float  # of windows that end in a line
    elsewhere: float  # share of windows with a line at another place
    explained: float  # share of the label's change that the lines' slopes explain
    by_others: float  # the same of other windows' slopes

    @property
    def is_only_at_end(self) -> bool:
        """Whether lines hardly occur before the windows' ends, as series of lines have them."""
        return self.share > ONLY_AT_END * self.elsewhere

    def __str__(self) -> str:
        return (
            f"{self.share:.0%} of the windows in {self.name} end in a straight line, whose slope "
            f"explains {self.explained:.0%} of the change to the label; {self.elsewhere:.0%} have "
            f"one elsewhere, and other ends explain {self.by_others:.0%}"
        )


def find_filled_end(subject: Subject) -> FilledEnd | None:
    """Return the first column whose windows end in lines that tell the label, if any."""
    label = _read_first(subject.train_rows[subject.task.columns.label])
    if label is None:
        return None
    for name, windows in _list_windows(subject):
        if found := _measure_lines(name, windows, label):
            return found
    return None


def _read_first(label: pl.Series) -> Floats | None:
    """Return labels as numbers, of lists the first one: the next reading."""
    if isinstance(label.dtype, pl.List):
        label = label.list.first()
    if not label.dtype.is_numeric() or label.null_count():
        return None
    return label.cast(pl.Float64).to_numpy()


def _list_windows(subject: Subject) -> Iterator[tuple[str, Floats]]:
    for name in subject.task.columns.features:
        column = subject.train_rows[name]
        numbers = read_lists(column) if isinstance(column.dtype, pl.List) else None
        if numbers is None or numbers.shape[1] < SHORTEST_WINDOW:
            continue
        if np.isfinite(numbers).all():
            yield name, numbers


def _measure_lines(name: str, windows: Floats, label: Floats) -> FilledEnd | None:
    is_line = _find_lines(windows)
    at_end = is_line[:, -1]
    share = float(at_end.mean())
    few = min(at_end.sum(), (~at_end).sum()) < FEWEST_ROWS
    if few or not LEAST_SHARE <= share <= MOST_SHARE:
        return None
    # What windows that end in the same way have in common is no change.
    last = windows[:, -1]
    level = np.column_stack([last, np.ones(len(last))])
    change = label - level @ np.linalg.lstsq(level, label, rcond=None)[0]
    slope = (last - windows[:, -POINTS]) / (POINTS - 1)
    explained, by_others = (
        _measure_explained(slope[rows], change[rows]) for rows in (at_end, ~at_end)
    )
    elsewhere = float(is_line[:, :-POINTS].mean(axis=0).max())
    found = FilledEnd(name, share, elsewhere, explained, by_others)
    if found.is_only_at_end:
        return found if explained >= EXPLAINED and by_others <= UNEXPLAINED else None
    return found if explained >= max(PARTLY_EXPLAINED, TIMES_OTHERS * by_others) else None


def _find_lines(windows: Floats) -> Flags:
    """Return at which steps, from the fifth on, a line of five points with a slope ends."""
    tolerance = EXACT * float(windows.std())
    for digits in range(MOST_DIGITS + 1):
        if np.allclose(windows, windows.round(digits), rtol=0, atol=1e-9):
            tolerance = ROUNDED * 10.0**-digits * (1 + 1e-6)
            break
    is_even = np.abs(np.diff(windows, n=2, axis=1)) <= tolerance
    runs = np.lib.stride_tricks.sliding_window_view(is_even, POINTS - 2, axis=1).all(axis=-1)
    rise = np.abs(windows[:, POINTS - 1 :] - windows[:, : -POINTS + 1])
    return np.asarray(runs & (rise > 2 * tolerance))


def _measure_explained(slope: Floats, change: Floats) -> float:
    if min(slope.std(), change.std()) == 0:
        return 0.0
    return float(np.corrcoef(slope, change)[0, 1] ** 2)
