"""Block sketches: the distribution of every column in every block, from merged counts."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import NamedTuple, TypeAlias

import numpy as np
import polars as pl

from perennial.contracts.block import BlockFile
from perennial.contracts.validation import (
    ESCAPE,
    OTHER,
    BlockSketch,
    CategoricalSketch,
    NumericSketch,
)
from perennial.validate_data.columns import is_text
from perennial.validate_data.distributions import quantiles_of

BlockKey: TypeAlias = int | str
"""First day of a block of time since 1970, or a file's path below `data.uri`."""

NUM_QUANTILES = 129
MAX_CATEGORIES = 200
_LEVELS = np.linspace(0, 1, NUM_QUANTILES)


class Place(NamedTuple):
    """Place of a block: a span of time, or files."""

    start: datetime | None = None
    end: datetime | None = None
    files: tuple[BlockFile, ...] = ()


def count_blocks(rows: pl.DataFrame, missing: Mapping[str, pl.Expr]) -> pl.DataFrame:
    """Count the rows, and those in which each feature is missing, of each block."""
    counts = [test.sum().cast(pl.Int64).alias(name) for name, test in missing.items()]
    total = pl.len().cast(pl.Int64).alias("__rows__")
    return rows.group_by("__block__").agg(total, *counts)


def block_sketches(
    counts: pl.DataFrame,
    numbers: pl.DataFrame,
    texts: pl.DataFrame,
    features: Mapping[str, pl.DataType],
    *,
    label_means: Mapping[BlockKey, float],
    place_of: Callable[[BlockKey], Place],
) -> tuple[BlockSketch, ...]:
    """Return a sketch of each block that has rows, from merged tables of counts."""
    quantiles, categories = _quantiles(numbers), _categories(texts, counts)
    numeric_names = [name for name, dtype in features.items() if dtype.is_numeric()]
    text_names = [name for name, dtype in features.items() if is_text(dtype)]
    sketches = []
    # Their values are made here: checking half a million of them takes as long as making them.
    for row in counts.iter_rows(named=True):
        key: BlockKey = row["__block__"]
        place = place_of(key)
        numeric = {
            name: NumericSketch.model_construct(
                quantiles=quantiles.get((name, key), ()), nulls=row[name]
            )
            for name in numeric_names
        }
        categorical = {
            name: CategoricalSketch.model_construct(
                counts=categories.get((name, key), {}), nulls=row[name]
            )
            for name in text_names
        }
        sketches.append(
            BlockSketch(
                start=place.start,
                end=place.end,
                files=place.files,
                rows=row["__rows__"],
                label_mean=label_means.get(key),
                numeric=numeric,
                categorical=categorical,
            )
        )
    return tuple(sketches)


def _quantiles(numbers: pl.DataFrame) -> dict[tuple[str, BlockKey], tuple[float, ...]]:
    """Quantiles by column and block."""
    found = quantiles_of(numbers, _LEVELS)
    # Seven digits are what training reads (float32), in half of the space.
    shown = pl.Series(found.ravel()).round_sig_figs(7).to_numpy().reshape(found.shape).tolist()
    keys = numbers.select("column", "block").unique(maintain_order=True).iter_rows()
    return {key: tuple(row) for key, row in zip(keys, shown, strict=True)}


def _categories(
    texts: pl.DataFrame, counts: pl.DataFrame
) -> dict[tuple[str, BlockKey], dict[str, int]]:
    """Rows of each category, scaled from the sample to the block, by column and block."""
    # Levels have served their purpose: a tenth of the rows remains.
    by_value = texts.group_by("block", "column", "value")
    rows = by_value.agg(pl.col("rows").sum(), pl.col("cut").first())
    # Of a block whose counts were cut to level n, one row in 2^n was counted.
    weight = pl.col("rows") * pl.lit(2).pow(pl.col("cut"))
    ranked = (
        rows.group_by("column", "value")
        .agg(weight.sum())
        .sort("column", "rows", "value", descending=[False, True, False])
    )
    named = ranked.filter(pl.int_range(pl.len()).over("column") < MAX_CATEGORIES)
    value = pl.col("value")
    name = pl.when(value.str.starts_with(OTHER)).then(value + ESCAPE).otherwise(value).alias("name")
    shown = rows.join(
        named.select("column", "value", name), on=["column", "value"], how="left"
    ).with_columns(pl.col("name").fill_null(OTHER))
    names = texts["column"].unique().cast(pl.String)
    present = counts.select(
        "__block__", *((pl.col("__rows__") - pl.col(name)).alias(name) for name in names)
    ).unpivot(index="__block__", variable_name="__column__", value_name="__present__")
    scaled = pl.col("rows") * pl.col("__present__") / pl.col("rows").sum().over("column", "block")
    table = (
        shown.group_by("column", "block", "name")
        .agg(pl.col("rows").sum())
        .with_columns(pl.col("column").cast(pl.String))
        .join(present, left_on=["column", "block"], right_on=["__column__", "__block__"])
        .with_columns(scaled.round().cast(pl.Int64).alias("rows"))
        .sort("name")
        .group_by("column", "block")
        .agg("name", "rows")
    )
    return {
        (column, block): dict(zip(names, rows, strict=True))
        for column, block, names, rows in table.iter_rows()
    }
