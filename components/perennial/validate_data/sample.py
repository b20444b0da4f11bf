"""Row sample: the labelled rows with the smallest hashes, which merges in any order."""

import polars as pl

SAMPLE_ROWS = 40_000
STRATUM_ROWS = 2_000
"""Rows of each block where `split.train_days` or `test_days` may leave few of the others."""


def smallest_keys(rows: pl.DataFrame) -> pl.DataFrame:
    """Keep the rows with the smallest `__key__`, of each `__stratum__` where rows have one."""
    if rows["__stratum__"].null_count() < rows.height:
        rank = pl.col("__key__").rank("ordinal").over("__stratum__")
        return rows.filter(rank <= STRATUM_ROWS).sort("__key__")
    if rows.height > SAMPLE_ROWS:  # a tenth of the time of sorting all of them
        rows = rows.filter(pl.col("__key__") <= rows["__key__"].bottom_k(SAMPLE_ROWS).max())
    return rows.sort("__key__").head(SAMPLE_ROWS)


def uniform_sample(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of a merged sample up to the key up to which each stratum is complete."""
    full = rows.group_by("__stratum__").agg(pl.len(), pl.col("__key__").max())
    limit = full.filter(pl.col("__stratum__").is_not_null(), pl.col("len") >= STRATUM_ROWS)
    last = limit["__key__"].min()
    return rows if last is None else rows.filter(pl.col("__key__") <= last)
