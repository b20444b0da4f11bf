"""Find times until an event that end at the data's export, because the event had not happened."""

import numpy as np
import polars as pl

from perennial.check_skeleton.subject import Floats, Subject

UNITS = {"days": 86_400.0, "hours": 3_600.0, "minutes": 60.0, "seconds": 1.0}
# Rows that end at one moment, and rows in all.
FEWEST_ALIKE, FEWEST_ROWS = 5, 10
LEAST_SHARE = 0.005
# Digits after the point to which times may be rounded; finer ones count as these.
DIGITS = 3


def describe_cut_times(subject: Subject) -> str:
    """Describe labels of a regression that all end at one moment, beyond which none lasts.

    Where an export takes the time so far for what is still on its way, the row's time and its label
    add up to the export. Times to an event need a loss that knows of it (Tobit, Cox). Empty if
    there are none.
    """
    time = subject.time
    rows = pl.concat([subject.train_rows, subject.validation_rows])
    label = rows[subject.task.columns.label]
    if subject.task.kind != "regression" or time is None or not label.dtype.is_numeric():
        return ""
    if rows.schema.get(time) != pl.Datetime or label.null_count() or rows[time].null_count():
        return ""
    start = rows[time].dt.epoch("us").to_numpy() / 1e6
    lasting = label.cast(pl.Float64).to_numpy()
    if not (np.isfinite(lasting).all() and lasting.min() >= 0):
        return ""
    step = _find_step(lasting)
    for name, unit in UNITS.items():
        # Counts of days, at midnights, add up to few moments.
        if len(np.unique(start % unit)) < FEWEST_ROWS:
            continue
        ends = _find_ends(start, start + lasting * unit, step * unit)
        found = sum(count for _, count in ends)
        if found >= max(FEWEST_ROWS, LEAST_SHARE * len(rows)):
            moment = np.datetime64(int(ends[0][0] * 1e6), "us").astype("datetime64[m]")
            return (
                f"{found} of {len(rows)} labels, as {name}, end at {len(ends)} moments, as "
                f"{ends[0][1]} at about {str(moment).replace('T', ' ')}, and no label lasts beyond "
                "one"
            )
    return ""


def _find_step(values: Floats) -> float:
    """Return to which multiple of a power of ten nearly all values are rounded."""
    for digits in range(DIGITS):
        if np.isclose(values, values.round(digits), rtol=0.0, atol=1e-6).mean() > 1 - LEAST_SHARE:
            return float(10.0**-digits)
    return float(10.0**-DIGITS)


def _find_ends(start: Floats, end: Floats, step: float) -> list[tuple[float, int]]:
    """Return moments at which several rows end, and that no row lasts beyond, with their number."""
    ordered = np.sort(end)
    last = np.searchsorted(ordered, ordered + step, side="right")
    counts = last - np.arange(len(ordered))
    found, place = list[tuple[float, int]](), 0
    while place < len(ordered):
        count, moment = int(counts[place]), float(ordered[place])
        if count >= FEWEST_ALIKE and _is_last(start, end, moment, moment + step):
            found.append((moment, count))
            place += count
        else:
            place += 1
    return found


def _is_last(start: Floats, end: Floats, first: float, last: float) -> bool:
    """Whether rows that began at several times end between two moments, and none lasts beyond."""
    is_beyond = (start < first) & (end > last)
    begun = np.unique(start[(end >= first) & (end <= last)])
    return len(begun) >= FEWEST_ALIKE and not is_beyond.any()
