"""Find amounts that the rows of one class have changed, as a fee with the charge for a reminder."""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_ordered
from perennial.check_skeleton.subject import Codes, Floats

MOST_VALUES, FEWEST_OF_A_VALUE = 100, 8
# Along the values, how often those of the class and those of the others take turns.
FEWEST_TURNS = 3


def has_values_of_one_class(column: pl.Series, codes: Codes | Floats) -> bool:
    """Whether one class has several values of its own, and they lie between those of the others.

    A bound, as of adults and children, divides the values once.
    """
    if column.null_count() or column.dtype == pl.Boolean or not is_ordered(column):
        return False
    values = column.to_physical().cast(pl.Float64).to_numpy()
    different, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    if not 4 <= len(different) <= MOST_VALUES or counts.min() < FEWEST_OF_A_VALUE:
        return False
    for code in np.unique(codes):
        own = np.bincount(place, codes == code, len(different))
        is_own = own == counts
        if ((own == 0) | is_own).all() and np.count_nonzero(np.diff(is_own)) >= FEWEST_TURNS:
            return True
    return False
