"""Distributions: counts of each column's values in each block, in tables that merge.

Numbers are counted in bins that merge in any order (UDDSketch: Epicoco et al., 2020): every value
of 24 significant bits has its own bin until a block has too many; then all bins of that column and
block are widened together. Texts are counted on a sample of rows, chosen by hash (`samples`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.validate_data.columns import finite
from perennial.validate_data.samples import cut_levels, largest_beyond, level_of

MAX_BINS = 1_024
"""Bins of a column in one block: one of a normal column then holds at most 1% of the rows."""
MAX_TEXT_COUNTS = 16_384
"""Counts of a text column in one block, by value and level. 8,000 sampled rows place a share
within 0.011 (two standard errors), well below the smallest drift worth an alarm (0.05)."""
_GROUP = ("block", "column")
_DROPPED_BITS = np.uint64(29)  # a double has 53 significant bits; training reads 24
_HALF = np.uint64(1 << 28)
_SIGN = np.uint64(1 << 63)

Codes = NDArray[np.uint64]
Floats = NDArray[np.float64]


def encode_numbers(values: Floats) -> Codes:
    """Map finite numbers, rounded to 24 significant bits, to codes in the same order."""
    # Bits of doubles sort as the numbers do once those of negative ones are inverted, and the
    # others have the highest bit.
    bits = (values + 0.0).view(np.uint64) + _HALF  # a sum with 0 has no negative zero
    return np.where(bits & _SIGN, ~bits, bits | _SIGN) >> _DROPPED_BITS


def decode_numbers(codes: Codes) -> Floats:
    """Return the number of each code; the largest double for codes beyond it."""
    ordered = codes << _DROPPED_BITS
    below = (np.uint64(1) << _DROPPED_BITS) - np.uint64(1)
    bits = np.where(ordered & _SIGN, ordered ^ _SIGN, ~(ordered | below))
    return np.nan_to_num(bits.view(np.float64), nan=np.finfo(float).max)


def count_numbers(rows: pl.DataFrame, columns: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Count the finite values of each numeric column in each `__block__`.

    Returns:
        `column`, `block`, `code`, `shift` (0: the code's dropped bits) and `rows`.
    """
    names = pl.Enum([*columns])
    schema: dict[str, Any] = {"column": names, "block": rows["__block__"].dtype, "code": pl.UInt64,
              "shift": pl.UInt8, "rows": pl.Int64}  # fmt: skip
    tables = [pl.DataFrame(schema=schema)]
    for name, dtype in columns.items():
        keys = (pl.col("__block__").alias("block"), pl.col(name).alias("value"))
        numbers = finite("value", dtype).cast(pl.Float64)
        counts = rows.group_by(keys).len("rows").with_columns(numbers).drop_nulls()
        codes = encode_numbers(counts["value"].to_numpy())
        tables.append(
            counts.select(
                pl.lit(name, names).alias("column"),
                "block",
                pl.Series("code", codes, pl.UInt64),
                pl.lit(0, pl.UInt8).alias("shift"),
                pl.col("rows").cast(pl.Int64),
            )
        )
    return pl.concat(tables)


def merge_numbers(table: pl.DataFrame) -> pl.DataFrame:
    """Add up counts in the finest bins of which each column has at most `MAX_BINS` in a block."""
    table = _widened(table.with_columns(pl.col("shift").max().over(_GROUP)))
    # Two neighbours share a bin if every bit in which they differ is dropped.
    before = pl.col("code").shift(1).over(_GROUP)
    bits = (64 - (pl.col("code") ^ before).bitwise_leading_zeros()).fill_null(64)
    bits_of_pairs = table.select(*_GROUP, bits.cast(pl.UInt8).alias("needed"))
    needed = largest_beyond(MAX_BINS, bits_of_pairs, _GROUP, "needed")
    if needed.is_empty():
        return table
    wider = pl.max_horizontal("shift", "needed").alias("shift")
    return _widened(table.join(needed, on=_GROUP, how="left").with_columns(wider))


def _widened(table: pl.DataFrame) -> pl.DataFrame:
    """Drop the lowest `shift` bits of each code, and add up the rows of equal ones."""
    shift = table["shift"].to_numpy().astype(np.uint64)
    codes = (table["code"].to_numpy() >> shift) << shift
    keys = (*_GROUP, "code", "shift")
    table = table.with_columns(pl.Series("code", codes, pl.UInt64))
    return table.group_by(keys).agg(pl.col("rows").sum()).sort(keys)


def quantiles_of(bins: pl.DataFrame, levels: Floats) -> Floats:
    """Return quantiles of every column in every block; rows are spread evenly over a bin.

    For bins of `merge_numbers`, with G pairs of column and block, and L levels from 0 to 1: as
    `numpy.quantile` would return them, shape [G, L].
    """
    sizes = bins.group_by(_GROUP, maintain_order=True).agg(pl.col("rows").sum())["rows"].to_numpy()
    codes, counts = bins["code"].to_numpy(), bins["rows"].to_numpy()
    shift = bins["shift"].to_numpy().astype(np.uint64)
    low, until = decode_numbers(codes), np.cumsum(counts)
    beyond = decode_numbers(codes + (np.uint64(1) << shift))
    width = np.where(shift > 0, beyond - low, 0.0)
    first_rank = (np.cumsum(sizes) - sizes)[:, None]

    def at(rank: NDArray[np.int64], place: NDArray[np.int64]) -> Floats:
        within = (rank - until[place] + counts[place] + 0.5) / counts[place]
        value: Floats = low[place] + width[place] * within
        return value

    # Between two ranks, numpy's default interpolates linearly.
    ranks = levels * (sizes - 1)[:, None]
    share = ranks - np.floor(ranks)
    below = first_rank + np.floor(ranks).astype(np.int64)
    above = np.minimum(below + 1, first_rank + (sizes - 1)[:, None])
    place = np.searchsorted(until, below, side="right")
    found: Floats = (
        at(below, place) * (1 - share) + at(above, place + (above == until[place])) * share
    )
    return found


def count_texts(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Count the values of text columns in each block, apart for each level of the rows' hashes.

    Rows have `__block__`, null for no block, and their hash `__key__`.

    Returns:
        `column`, `block`, `value`, `level`, `cut` (0) and `rows`.
    """
    columns, level = pl.Enum(names), level_of(pl.col("__key__")).alias("level")
    block, cut = pl.col("__block__").alias("block"), pl.lit(0, pl.UInt8).alias("cut")
    schema: dict[str, Any] = {
        **{"column": columns, "block": rows["__block__"].dtype, "value": pl.String},
        **{"level": pl.UInt8, "cut": pl.UInt8, "rows": pl.Int64},
    }
    tables = [pl.DataFrame(schema=schema)]
    for name in names:
        counts = rows.group_by(block, pl.col(name).cast(pl.String).alias("value"), level)
        count = pl.col("rows").cast(pl.Int64)
        own = (pl.lit(name, columns).alias("column"), "block", "value", "level", cut, count)
        tables.append(counts.len("rows").drop_nulls("value").select(own))
    return pl.concat(tables)


def merge_texts(table: pl.DataFrame) -> pl.DataFrame:
    """Add up counts, on a sample of rows where a column has too many in a block."""
    keys = (*_GROUP, "value", "level")
    table = table.group_by(keys).agg(pl.col("cut").max(), pl.col("rows").sum())
    return cut_levels(table, _GROUP, MAX_TEXT_COUNTS).sort(keys)
