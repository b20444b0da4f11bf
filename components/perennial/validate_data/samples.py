"""Samples that are the same whatever the order, grouping or partitioning of the rows.

A hash is of level n if it begins with n zero bits, so the levels from n on are a random sample of
one in 2^n hashes. A table keeps the levels from the lowest on at which it is small enough; tables
that are merged are cut to the same level first. The sample of rows keeps those with the smallest
hashes.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl

SAMPLE_ROWS = 40_000
STRATUM_ROWS = 2_000
"""Rows of each block where `split.train_days` or `test_days` may leave few of the others."""
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

    `table` has distinct entries with their `level` and `cut`, the lowest level kept so far; the
    columns `groups` define a group.
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


def smallest_keys(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep the rows with the smallest `__key__`, of each `__stratum__` where rows have one."""
    if rows["__stratum__"].null_count() < rows.height:
        rank = pl.col("__key__").rank("ordinal").over("__stratum__")
        return rows.filter(rank <= STRATUM_ROWS).sort("__key__")
    if rows.height > SAMPLE_ROWS:  # a tenth of the time of sorting all of them
        rows = rows.filter(pl.col("__key__") <= rows["__key__"].bottom_k(SAMPLE_ROWS).max())
    return rows.sort("__key__").head(SAMPLE_ROWS)


def uniform_sample(rows: pl.DataFrame, split: str) -> pl.DataFrame:
    """Return the rows of a merged sample with a split, up to the key up to which all are there.

    A stratum of `STRATUM_ROWS` lacks the rows beyond its last key. Those without a split count for
    that, too: without them, a cut stratum would look complete.
    """
    is_used = pl.col(split).is_not_null().any().alias("is_used")
    full = rows.group_by("__stratum__").agg(pl.len(), pl.col("__key__").max(), is_used)
    is_cut = pl.col("__stratum__").is_not_null() & (pl.col("len") >= STRATUM_ROWS)
    last = full.filter(is_cut & pl.col("is_used"))["__key__"].min()
    rows = rows.drop_nulls(split)
    return rows if last is None else rows.filter(pl.col("__key__") <= last)
