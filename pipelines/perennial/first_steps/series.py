"""Series: a table of times and numbers alone is learned from the numbers before each row."""

import polars as pl

HISTORY = "history"
"""Column of the values before a row, oldest first."""
# Values of a window by how many come in a day: two days, a week, two years of months. Days fit in
# the test part of a month: else windows of the next month would reach back into validation.
LENGTHS = ((12.0, 48), (0.5, 7), (0.0, 24))


def choose_length(rows: int, days: float) -> int:
    """Return how many values a window has: at most a tenth of the rows."""
    length = next(length for rate, length in LENGTHS if rows / max(days, 1.0) >= rate)
    return min(length, rows // 10)


def with_history(table: pl.LazyFrame, time: str, label: str, length: int) -> pl.LazyFrame:
    """Return the rows in the order of time, each with the values before it, and none without."""
    ordered = table.drop_nulls(label).sort(time)
    earlier = [pl.col(label).shift(steps) for steps in range(length, 0, -1)]
    return ordered.with_columns(pl.concat_list(earlier).alias(HISTORY)).slice(length)
