"""Classes defined by thresholds on one number, in contrast to separate clusters."""

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from perennial.check_skeleton.checks.data.signals import Numbers

# Rows compared on each side of a border, and how far they may reach: tails of clusters reach
# over more than one deviation of their class, slices of a range that was cut over a tenth.
NEAREST_SHARE = 0.05
LONGEST_REACH = 0.35
FEWEST_IN_CLASS = 20
MOST_CLASSES = 20


def is_cut_at_borders(values: Numbers, codes: Numbers) -> bool:
    """Whether classes are adjacent intervals of one number, without a gap between them.

    Args:
        values: One for each row.
        codes: The classes of the rows.
    """
    return bool(cut_columns(values[:, None], codes).any())


def cut_columns(values: Numbers, codes: Numbers) -> NDArray[np.bool_]:
    """Return whether `is_cut_at_borders` holds, for each of the columns [N, D]."""
    found = np.zeros(values.shape[1], dtype=np.bool_)
    classes, counts = np.unique(codes, return_counts=True)
    if not 2 <= len(classes) <= MOST_CLASSES or counts.min() < FEWEST_IN_CLASS:
        return found
    low = np.stack([values[codes == each].min(axis=0) for each in classes])
    high = np.stack([values[codes == each].max(axis=0) for each in classes])
    order = low.argsort(axis=0)
    low, high = (np.take_along_axis(each, order, axis=0) for each in (low, high))
    apart = (high[:-1] < low[1:]).all(axis=0)
    for column in np.flatnonzero(apart):
        found[column] = _touch(values[:, column], codes)
    return found


def _touch(values: Numbers, codes: Numbers) -> bool:
    parts = sorted((np.sort(values[codes == each]) for each in np.unique(codes)), key=min)
    steps = np.diff(np.unique(values))
    step = float(np.median(steps)) if len(steps) > 1 else 0.0
    for below, above in pairwise(parts):
        last = below[-1 - max(int(NEAREST_SHARE * len(below)), 1)]
        first = above[max(int(NEAREST_SHARE * len(above)), 1)]
        spread = min(below.std(), above.std())
        if not first - last - step <= 2 * LONGEST_REACH * spread:
            return False
    return True
