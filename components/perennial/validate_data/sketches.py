"""Block sketches: the distribution of every column in every block, from one pass.

Counts are exact. Distributions come from all rows of a block, or from a sample of them when a
block has more than its share of the memory; the sample takes the rows with the smallest hash, so
it does not depend on the order of the rows nor on how they are cut into partitions.
"""

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from perennial.contracts.block import BlockFile
from perennial.contracts.validation import BlockSketch, CategoricalSketch, NumericSketch
from perennial.validate_data.columns import finite, is_text

BlockKey: TypeAlias = date | int
"""First day of a block of time, or a file's position in the snapshot."""

NUM_QUANTILES = 129
MAX_CATEGORIES = 200
OTHER = "(other)"
# A million sampled rows of 25 columns are 0.2 GB. 10,000 rows place a quantile's rank within 0.01
# (two standard errors), well below the smallest drift worth an alarm (an effect of 0.05).
SAMPLE_ROWS = 1_000_000
MAX_BLOCK_ROWS = 10_000
MIN_BLOCK_ROWS = 1_000
_COMPACT_ROWS = 500_000


class Place(NamedTuple):
    """Place of a block: a span of time, or files."""

    start: datetime | None = None
    end: datetime | None = None
    files: tuple[BlockFile, ...] = ()


def block_capacity(num_blocks: int) -> int:
    """Return the number of rows of each block to keep."""
    return min(max(SAMPLE_ROWS // max(num_blocks, 1), MIN_BLOCK_ROWS), MAX_BLOCK_ROWS)


class RowSample:
    """The rows with the smallest keys of every block."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: pl.DataFrame | None = None
        self._pending: list[pl.DataFrame] = []
        self._pending_rows = 0

    def add(self, rows: pl.DataFrame) -> None:
        """Take in rows with the columns `__key__` and `__block__`."""
        self._pending.append(rows)
        self._pending_rows += rows.height
        if self._pending_rows > _COMPACT_ROWS:
            self._compact()

    def rows(self) -> pl.DataFrame:
        """The sample, ordered by key."""
        self._compact()
        if self._kept is None:
            raise ValueError("no rows were taken in")
        return self._kept

    def _compact(self) -> None:
        parts = [part for part in (self._kept, *self._pending) if part is not None]
        rank = pl.int_range(pl.len()).over("__block__")
        self._kept = pl.concat(parts).sort("__key__").filter(rank < self._capacity)
        self._pending, self._pending_rows = [], 0


class BlockCounts:
    """Exact rows, missing values and label sums per block.

    Args:
        missing: Feature → whether its value is missing.
        label: The label as a number, null where it is missing; None for labels that are text.
    """

    def __init__(self, missing: Mapping[str, pl.Expr], label: pl.Expr | None) -> None:
        self._aggregates = [pl.len().cast(pl.Int64).alias("__rows__")]
        self._aggregates += [
            test.sum().cast(pl.Int64).alias(name) for name, test in missing.items()
        ]
        if label is not None:
            self._aggregates += [
                label.cast(pl.Float64).sum().alias("__label_sum__"),
                label.count().cast(pl.Int64).alias("__labels__"),
            ]
        self._parts: list[pl.DataFrame] = []

    def add(self, rows: pl.DataFrame) -> None:
        """Take in rows with the column `__block__`."""
        self._parts.append(rows.group_by("__block__").agg(self._aggregates))

    def result(self) -> pl.DataFrame:
        """One row per block, in order of the keys; rows without a block are left out."""
        table = pl.concat(self._parts).drop_nulls("__block__")
        return table.group_by("__block__").agg(pl.all().sum()).sort("__block__")


def top_categories(sample: pl.DataFrame, names: Sequence[str]) -> dict[str, list[str]]:
    """The most frequent values of each text column over the whole sample, most frequent first."""
    return {
        name: sample.select(pl.col(name).cast(pl.String).alias("value"))
        .drop_nulls()
        .group_by("value")
        .len()
        .sort(["len", "value"], descending=[True, False])
        .head(MAX_CATEGORIES)["value"]
        .to_list()
        for name in names
    }


def block_sketches(
    counts: pl.DataFrame,
    sample: pl.DataFrame,
    features: Mapping[str, pl.DataType],
    label_means: Mapping[BlockKey, float],
    place_of: Callable[[BlockKey], Place],
) -> tuple[BlockSketch, ...]:
    """One sketch per block that has rows."""
    categories = top_categories(
        sample, [name for name, dtype in features.items() if is_text(dtype)]
    )
    blocks = {key[0]: part for key, part in sample.partition_by("__block__", as_dict=True).items()}
    sketches = []
    for row in counts.iter_rows(named=True):
        key: BlockKey = row["__block__"]
        rows, place = blocks[key], place_of(key)
        sketches.append(
            BlockSketch(
                start=place.start,
                end=place.end,
                files=place.files,
                rows=row["__rows__"],
                label_mean=label_means.get(key),
                numeric={
                    name: NumericSketch(quantiles=_quantiles(rows, name, dtype), nulls=row[name])
                    for name, dtype in features.items()
                    if dtype.is_numeric()
                },
                categorical={
                    name: CategoricalSketch(
                        counts=_category_counts(rows[name], known, row["__rows__"] - row[name]),
                        nulls=row[name],
                    )
                    for name, known in categories.items()
                },
            )
        )
    return tuple(sketches)


def _quantiles(rows: pl.DataFrame, name: str, dtype: pl.DataType) -> tuple[float, ...]:
    values = rows.select(finite(name, dtype).cast(pl.Float64)).to_series().drop_nulls().drop_nans()
    if values.is_empty():
        return ()
    levels = [index / (NUM_QUANTILES - 1) for index in range(NUM_QUANTILES)]
    # Seven digits are what training reads (float32), in half of the space.
    return tuple(float(f"{value:.7g}") for value in np.quantile(values.to_numpy(), levels))


def _category_counts(values: pl.Series, known: Sequence[str], total: int) -> dict[str, int]:
    """Rows per category, scaled from the sample to the block."""
    present = values.drop_nulls().cast(pl.String)
    if present.is_empty():
        return {}
    named = pl.when(pl.col("value").is_in(known)).then("value").otherwise(pl.lit(OTHER))
    table = (
        present.alias("value").to_frame().select(value=named).group_by("value").len().sort("value")
    )
    scale = total / present.len()
    return {value: round(count * scale) for value, count in table.iter_rows()}
