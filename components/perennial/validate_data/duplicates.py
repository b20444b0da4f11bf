"""Keys that repeat within and across splits, counted on a sample of keys that merges."""

from dataclasses import dataclass
from math import sqrt

import polars as pl

from perennial.contracts.data import Split
from perennial.validate_data.samples import level_of, lowest_level

MAX_ENTRIES = 1 << 17
"""Entries that are kept; of more, those of a sample of keys. A share of 1% is then measured within
0.08 percentage points (two standard errors, 65,000 keys)."""
MIN_KEYS = 1_000
"""Fewer keys are all kept, however many entries each has."""
SPLITS = pl.Enum([split.value for split in Split])


@dataclass(frozen=True)
class Repeats:
    """Shares of repeated keys; every share is of rows, and 0 where there are none.

    Attributes:
        duplicate_share: Rows that repeat an earlier one.
        overlap_share: Held-out rows whose key occurs in training.
        chance_share: Training rows whose key occurs there again: what `overlap_share` would be if
            held-out rows were drawn like training rows.
        chance_error: Standard error of `overlap_share - chance_share`, if they were; no less than
            one repeated training row gives.
        conflict_share: Rows whose key comes with more than one label.
    """

    duplicate_share: float
    overlap_share: float
    chance_share: float
    chance_error: float
    conflict_share: float


def count_keys(rows: pl.DataFrame) -> pl.DataFrame:
    """Return keys as entries that merge.

    Args:
        rows: With the 64-bit hashes `key`; where needed with the `split` and, where it decides
            whether the row is used, its `day`; with a hash of the `label` where contradictions
            are of interest; with `rows` where they are counted already.
    """
    table = rows.drop_nulls("key").with_columns(pl.lit(0, pl.UInt8).alias("cut"))
    if "rows" not in rows.columns:
        table = table.with_columns(pl.lit(1, pl.Int64).alias("rows"))
    if "label" in rows.columns:
        label = pl.col("label")
        table = table.with_columns(low_label=label, high_label=label).drop("label")
    return table


def merge_keys(table: pl.DataFrame) -> pl.DataFrame:
    """Add up the rows of equal entries, of a sample of keys where there are too many."""
    level = level_of(pl.col("key"))
    levels = table.select(level).to_series()
    cut = int(table.select(pl.col("cut").max()).item() or 0)
    # Most keys are different as a rule. Then the level is known before anything is added up: from
    # it on there are few enough rows, and from the one below it too many different keys.
    enough = lowest_level(levels, MAX_ENTRIES)
    if enough > cut and table["key"].filter(levels >= enough - 1).n_unique() > MAX_ENTRIES:
        cut = enough
        counts = _added_up(table.filter(levels >= cut))
    else:
        counts = _added_up(table.filter(levels >= cut))
        keys = counts.select(pl.col("key").unique()).select(level).to_series()
        if counts.height > MAX_ENTRIES and keys.len() > MIN_KEYS:
            by_entries = lowest_level(counts.select(level).to_series(), MAX_ENTRIES)
            cut = min(by_entries, lowest_level(keys, MIN_KEYS))
            counts = counts.filter(level >= cut)
    kept = counts.with_columns(pl.lit(cut, pl.UInt8).alias("cut"))
    return kept.select(table.columns)


def _entry(table: pl.DataFrame) -> list[str]:
    return [name for name in ("key", "split", "day") if name in table.columns]


def _added_up(table: pl.DataFrame) -> pl.DataFrame:
    """Return the entries in their order, each once."""
    combine = {"rows": pl.Expr.sum, "low_label": pl.Expr.min, "high_label": pl.Expr.max}
    values = [name for name in combine if name in table.columns]
    table = table.sort("key")
    # Adding up takes ten times as long as finding what is there once.
    is_first = table["key"].ne_missing(table["key"].shift())
    again = ~(is_first & is_first.shift(-1, fill_value=True))
    once = table.filter(~again).select(*_entry(table), *values)
    if not again.any():
        return once
    repeated = table.filter(again).group_by(_entry(table))
    added = repeated.agg(combine[name](pl.col(name)) for name in values)
    return pl.concat([once, added]).sort(_entry(table))


def repeats_of(counts: pl.DataFrame) -> Repeats:
    """Return the shares of one kind of keys; `split` is null for rows that no split uses."""
    total, by_key = _rows(counts), counts.group_by("key")
    conflicts = counts.clear()
    if "low_label" in counts.columns:
        differ = pl.col("low_label").min() < pl.col("high_label").max()
        conflicts = by_key.agg(pl.col("rows").sum(), differ.alias("differ")).filter("differ")
    train = held_out = counts.clear()
    if "split" in counts.columns:
        train = counts.filter(pl.col("split") == Split.TRAIN.value)
        held_out = counts.filter(pl.col("split") != Split.TRAIN.value)
    seen = held_out.join(train.select("key").unique(), on="key", how="semi")
    again = train.group_by("key").agg(pl.col("rows").sum()).filter(pl.col("rows") > 1)
    trained, tested = max(_rows(train), 1), max(_rows(held_out), 1)
    chance, likely = _rows(again) / trained, (_rows(again) + 1) / (trained + 1)
    return Repeats(
        duplicate_share=1.0 - counts["key"].n_unique() / total if total else 0.0,
        overlap_share=_rows(seen) / tested,
        chance_share=chance,
        chance_error=sqrt(likely * (1 - likely) * (1 / trained + 1 / tested)),
        conflict_share=_rows(conflicts) / max(total, 1),
    )


def _rows(counts: pl.DataFrame) -> int:
    return int(counts["rows"].sum())
