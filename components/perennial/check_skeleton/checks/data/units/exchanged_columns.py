"""Find two columns whose values were exchanged in some rows, as latitude and longitude."""

from itertools import combinations

import numpy as np
import polars as pl

from perennial.check_skeleton.subject import Flags, Floats, Subject

MOST_COLUMNS = 48
FEWEST_ROWS, LEAST_SHARE, LARGEST_SHARE = 5, 0.002, 0.4
# A value is nearer to the other column's median by as much; the usual ranges lie apart by that too.
TIMES_NEARER = 4.0
# Rows with another mistake, as a place at 0, 0. Flags and codes have fewer values.
MOST_BETWEEN, FEWEST_VALUES = 0.05, 20


def describe_exchanged_columns(subject: Subject) -> str:
    """Describe two columns of which some rows have each value in the other one's range.

    Empty if there are none, or their usual ranges are not far apart.
    """
    rows = subject.train_rows
    numbers = {
        name: rows[name].cast(pl.Float64).fill_null(np.nan).to_numpy()
        for name in subject.task.columns.features
        if rows[name].dtype.is_numeric()
    }
    middles = {
        name: float(np.nanmedian(values))
        for name, values in list(numbers.items())[:MOST_COLUMNS]
        if len(np.unique(values[np.isfinite(values)])) >= FEWEST_VALUES
    }
    for one, other in combinations(middles, 2):
        middle = middles[one], middles[other]
        first, second = numbers[one], numbers[other]
        is_crossed = _is_nearer(first, *middle) & _is_nearer(second, *middle[::-1])
        is_usual = _is_nearer(first, *middle[::-1]) & _is_nearer(second, *middle)
        known = np.isfinite(first) & np.isfinite(second)
        count = int(is_crossed.sum())
        is_some = max(FEWEST_ROWS, LEAST_SHARE * len(rows)) <= count <= LARGEST_SHARE * len(rows)
        between = float((~(is_crossed | is_usual))[known].mean()) if known.any() else 1.0
        if is_some and between <= MOST_BETWEEN and not _is_choice(first + second, known):
            place = int(is_crossed.argmax())
            return (
                f"{one} and {other} are exchanged in {count / len(rows):.1%} of the rows: they are "
                f"{first[place]:.6g} and {second[place]:.6g} in one, usually about "
                f"{middle[0]:.6g} and {middle[1]:.6g}"
            )
    return ""


def _is_choice(total: Floats, known: Flags) -> bool:
    """Whether two numbers always have one sum, as shares and flags of which one is set."""
    return bool(np.ptp(total[known]) < 1e-6 * (1 + np.abs(total[known]).max()))


def _is_nearer(values: Floats, far: float, near: float) -> Flags:
    """Return where values are clearly nearer to `near` than to `far`; False where unknown."""
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(values - far) > TIMES_NEARER * np.abs(values - near))
