"""Find lists of places in another list, as edges of a graph, that some rows count from one."""

from itertools import permutations

import numpy as np
import polars as pl

from perennial.check_skeleton.subject import Subject

FEWEST_ROWS, LEAST_SHARE = 20, 0.01
# Of the rows: the last place is named by some other list in most of them, where places are meant.
LAST_NAMED = 0.6


def describe_counted_places(subject: Subject) -> str:
    """Describe a list whose numbers are places in another list, counted from 1 in some rows.

    There they name the place after the last one, and never the first. Empty if there is none.
    """
    rows = subject.train_rows
    lists = [
        name
        for name in subject.task.columns.features
        if isinstance(rows.schema[name], pl.List) and not rows[name].null_count()
    ]
    for name, other in permutations(lists, 2):
        if not rows.schema[name].inner.is_integer():  # type: ignore[attr-defined]
            continue
        least, most, length = (
            each.cast(pl.Float64).fill_null(np.nan).to_numpy()
            for each in (rows[name].list.min(), rows[name].list.max(), rows[other].list.len())
        )
        is_from_one = (most == length) & (least >= 1)
        is_place = (most < length) & (least >= 0)
        named = float((most[is_place] == length[is_place] - 1).mean()) if is_place.any() else 0.0
        is_rare = FEWEST_ROWS <= is_from_one.sum() <= is_place.sum()
        both = is_from_one | is_place | np.isnan(most)
        if is_rare and named > LAST_NAMED and both.all() and is_from_one.mean() > LEAST_SHARE:
            return (
                f"{name} holds places in {other}, counted from 0 in {is_place.mean():.0%} of the "
                f"rows; in {is_from_one.mean():.0%} they go beyond its end, and none is the first"
            )
    return ""
