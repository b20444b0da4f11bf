"""Hash levels: samples that are the same whatever the order, grouping or partitioning of the rows.

A hash is of level n if it begins with n zero bits, so the levels from n on are a random sample of
one in 2^n hashes. A table keeps the levels from the lowest on at which it is small enough; tables
that are merged are cut to the same level first.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

_MAX_LEVEL = 64


def level_of(hashes: pl.Expr) -> pl.Expr:
    """Return the level of 64-bit hashes."""
    return hashes.bitwise_leading_zeros().cast(pl.UInt8)


def lowest_level(levels: pl.Series, capacity: int) -> int:
    """Return the lowest level from which on at most `capacity` entries remain."""
    counts = np.bincount(levels.to_numpy(), minlength=_MAX_LEVEL + 2)
    return int(np.argmax(np.cumsum(counts[::-1])[::-1] <= capacity))


def cut_levels(table: pl.DataFrame, groups: Sequence[str], capacity: int) -> pl.DataFrame:
    """Keep of each group the levels from the lowest on at which at most `capacity` entries remain.

    Args:
        table: Distinct entries with their `level` and `cut`, the lowest level kept so far.
        groups: Columns that define a group.
        capacity: Largest number of entries of a group.
    """
    table = table.with_columns(pl.col("cut").max().over(groups))
    table = table.filter(pl.col("level") >= pl.col("cut"))
    crowded = largest_beyond(capacity, table, groups, "level")
    if crowded.is_empty():
        return table
    lowest = crowded.select(*groups, (pl.col("level") + 1).alias("lowest"))
    raised = pl.max_horizontal("cut", "lowest").alias("cut")
    table = table.join(lowest, on=groups, how="left").with_columns(raised).drop("lowest")
    return table.filter(pl.col("level") >= pl.col("cut"))


def largest_beyond(
    capacity: int, table: pl.DataFrame, groups: Sequence[str], column: str
) -> pl.DataFrame:
    """Return the largest value that more than `capacity` entries reach, of groups that have one."""
    if table.height <= capacity:
        return table.select(*groups, column).clear()
    sizes = table.group_by(*groups, column).len().sort(column, descending=True)
    reaching = sizes.with_columns(pl.col("len").cum_sum().over(groups))
    return reaching.filter(pl.col("len") > capacity).group_by(groups).agg(pl.col(column).max())
