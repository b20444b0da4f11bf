"""Counts keys that repeat within and across splits, in memory that does not grow with the rows."""

from dataclasses import dataclass

import polars as pl

from perennial.contracts.data import Split

MAX_KEYS = 2_000_000
_COMPACT_ROWS = 1_000_000
_SPLITS = pl.Enum([split.value for split in Split])
_SCHEMA = pl.Schema(
    [("key", pl.UInt64()), ("label", pl.UInt64()), ("split", _SPLITS), ("rows", pl.UInt32())]
)


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


class KeySample:
    """Keys, as 64-bit hashes, with the label and the split they came with.

    When too many different keys are held, all above a falling limit are dropped with all their
    repeats. What is left is a random sample of keys, so shares stay unbiased.
    """

    def __init__(self, max_keys: int = MAX_KEYS) -> None:
        self._max_keys = max_keys
        self._limit = 2**64 - 1
        self._counts = pl.DataFrame(schema=_SCHEMA)
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0

    def add(self, keys: pl.DataFrame) -> None:
        """Take in the columns `key` and `split`, and `label` where conflicts are of interest."""
        label = pl.col("label") if "label" in keys.columns else pl.lit(0, pl.UInt64).alias("label")
        part = keys.select("key", label, pl.col("split").cast(_SPLITS)).drop_nulls("key")
        self._pending.append(part.filter(pl.col("key") <= self._limit))
        self._pending_rows += self._pending[-1].height
        if self._pending_rows > _COMPACT_ROWS:
            self._compact()

    def repeats(self) -> Repeats:
        """Shares over all that was taken in."""
        self._compact()
        counts = self._counts
        train = counts.filter(pl.col("split") == Split.TRAIN.value)
        held_out = counts.filter(pl.col("split") != Split.TRAIN.value)
        seen = held_out.join(train.select("key", "label").unique(), on=["key", "label"], how="semi")
        again = train.filter(pl.col("rows") > 1)
        rows_by_key = counts.group_by("key").agg(pl.col("rows").sum(), pl.col("label").n_unique())
        distinct = counts.select("key", "label").unique().height
        conflicts = rows_by_key.filter(pl.col("label") > 1)
        total = _rows(counts)
        return Repeats(
            duplicate_share=1.0 - distinct / total if total else 0.0,
            overlap_share=_rows(seen) / max(_rows(held_out), 1),
            chance_share=_rows(again) / max(_rows(train), 1),
            conflict_share=_rows(conflicts) / max(total, 1),
        )

    def _compact(self) -> None:
        new = pl.concat(self._pending) if self._pending else self._counts.drop("rows").clear()
        counted = new.group_by("key", "label", "split").agg(pl.len().cast(pl.UInt32).alias("rows"))
        self._counts = (
            pl.concat([self._counts, counted])
            .group_by("key", "label", "split")
            .agg(pl.col("rows").sum().cast(pl.UInt32))
        )
        while self._counts.height > self._max_keys:
            self._limit //= 2
            self._counts = self._counts.filter(pl.col("key") <= self._limit)
        self._pending, self._pending_rows = [], 0


def _rows(counts: pl.DataFrame) -> int:
    return int(counts["rows"].sum())
