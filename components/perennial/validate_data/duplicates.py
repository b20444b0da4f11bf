"""Keys that repeat within and across splits, counted on a sample of keys that merges."""

from dataclasses import dataclass

import polars as pl

from perennial.contracts.data import Split
from perennial.validate_data.hash_levels import level_of, lowest_level

MAX_ENTRIES = 1 << 17
"""Entries that are kept; of more, those of a sample of keys. A share of 1% is then measured within
0.08 percentage points (two standard errors, 65,000 keys)."""
MIN_KEYS = 1_000
"""Fewer keys are all kept, however many entries each has."""
SPLITS = pl.Enum([split.value for split in Split])
_ENTRY = ("key", "split", "day")


@dataclass(frozen=True)
class Repeats:
    """Shares of repeated keys; every share is of rows, and 0 where there are none.

    Attributes:
        duplicate_share: Rows that repeat an earlier one.
        overlap_share: Held-out rows whose key occurs in training.
        chance_share: Training rows whose key occurs there again: what `overlap_share` would be if
            held-out rows were drawn like training rows.
        conflict_share: Rows whose key comes with more than one label.
    """

    duplicate_share: float
    overlap_share: float
    chance_share: float
    conflict_share: float


def count_keys(rows: pl.DataFrame) -> pl.DataFrame:
    """Return keys as entries that merge.

    Args:
        rows: With the 64-bit hashes `key`; where needed with a hash of the `label`, the `split`
            and, where it decides whether the row is used, its `day`.
    """
    given = rows.columns
    label = pl.col("label") if "label" in given else pl.lit(0, pl.UInt64)
    return rows.drop_nulls("key").select(
        "key",
        pl.col("split") if "split" in given else pl.lit(None, SPLITS).alias("split"),
        pl.col("day") if "day" in given else pl.lit(None, pl.Date).alias("day"),
        label.alias("low_label"),
        label.alias("high_label"),
        pl.col("rows") if "rows" in given else pl.lit(1, pl.Int64).alias("rows"),
        level_of(pl.col("key")).alias("level"),
        pl.lit(0, pl.UInt8).alias("cut"),
    )


def merge_keys(table: pl.DataFrame) -> pl.DataFrame:
    """Add up the rows of equal entries, of a sample of keys where there are too many."""
    cut = int(table.select(pl.col("cut").max()).item() or 0)
    table = table.filter(pl.col("level") >= cut)
    # Most keys are different as a rule. Then it is enough to add up those from the highest level
    # on of which there are too many rows: a quarter of a million of them.
    crowded = max(lowest_level(table["level"], MAX_ENTRIES) - 1, cut)
    for lowest in dict.fromkeys((crowded, cut)):
        counts = _added_up(table.filter(pl.col("level") >= lowest))
        level_of_keys = counts.unique("key")["level"]
        if counts.height > MAX_ENTRIES and level_of_keys.len() > MIN_KEYS:
            by_entries = lowest_level(counts["level"], MAX_ENTRIES)
            cut = min(by_entries, lowest_level(level_of_keys, MIN_KEYS))
            break
    kept = counts.filter(pl.col("level") >= cut).with_columns(pl.lit(cut, pl.UInt8).alias("cut"))
    return kept.select(table.columns).sort(_ENTRY)


def _added_up(table: pl.DataFrame) -> pl.DataFrame:
    return table.group_by(_ENTRY).agg(
        pl.col("level").first(),
        pl.col("rows").sum(),
        pl.col("low_label").min(),
        pl.col("high_label").max(),
    )


def repeats_of(counts: pl.DataFrame) -> Repeats:
    """Return the shares of one kind of keys; `split` is null for rows that no split uses."""
    train = counts.filter(pl.col("split") == Split.TRAIN.value)
    held_out = counts.filter(pl.col("split") != Split.TRAIN.value)
    seen = held_out.join(train.select("key").unique(), on="key", how="semi")
    again = train.group_by("key").agg(pl.col("rows").sum()).filter(pl.col("rows") > 1)
    by_key = counts.group_by("key").agg(
        pl.col("rows").sum(), pl.col("low_label").min(), pl.col("high_label").max()
    )
    conflicts = by_key.filter(pl.col("low_label") < pl.col("high_label"))
    total = _rows(counts)
    return Repeats(
        duplicate_share=1.0 - by_key.height / total if total else 0.0,
        overlap_share=_rows(seen) / max(_rows(held_out), 1),
        chance_share=_rows(again) / max(_rows(train), 1),
        conflict_share=_rows(conflicts) / max(total, 1),
    )


def _rows(counts: pl.DataFrame) -> int:
    return int(counts["rows"].sum())
