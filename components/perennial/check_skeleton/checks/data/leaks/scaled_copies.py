"""Tell columns that are the label in another unit, up to the rounding of both."""

import numpy as np
import polars as pl

from perennial.check_skeleton.subject import Floats

FEWEST_VALUES = 20
MOST_DIGITS = 6
# Of the rows; a few may be rounded the other way, or corrected by hand.
NEARLY_ALL = 0.995


def is_scaled_copy(column: pl.Series, label: pl.Series) -> bool:
    """Whether a column is a multiple of the label plus a constant, but for rounding."""
    if not (column.dtype.is_numeric() and label.dtype.is_numeric()):
        return False
    if column.null_count() or label.null_count():
        return False
    values, truth = (each.cast(pl.Float64).to_numpy() for each in (column, label))
    if not (np.isfinite(values).all() and np.isfinite(truth).all()):
        return False
    if min(len(np.unique(values)), len(np.unique(truth))) < FEWEST_VALUES:
        return False
    slope, constant = np.polyfit(truth, values, 1)
    reach = 0.55 * (_find_step(values) + abs(slope) * _find_step(truth)) + 1e-6 * values.std()
    return bool((np.abs(values - slope * truth - constant) <= reach).mean() >= NEARLY_ALL)


def _find_step(values: Floats) -> float:
    """Return the unit to which values are rounded, a power of ten; 0 if to none."""
    for digits in range(-MOST_DIGITS, MOST_DIGITS + 1):
        if np.allclose(values, np.round(values, digits), rtol=0.0, atol=1e-9 * np.ptp(values)):
            return float(10.0**-digits)
    return 0.0
