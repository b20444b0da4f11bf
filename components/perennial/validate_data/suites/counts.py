"""Counts of a suite: what its metrics are computed from, as tables that merge.

Parts of the rows, measured apart and merged in any order or grouping, give the same tables: sums
are of whole numbers, and samples are chosen by hashes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.validate_data.columns import merge_columns
from perennial.validate_data.samples import cut_levels, level_of
from perennial.validate_data.state import FactsState

MAX_VALUES = 1_000_000
"""Different values of a column that are counted exactly: 60 MB of short texts."""
# A float64 is a whole number of 53 bits times a power of two; squares are summed by halves.
_MANTISSA_BITS, _HALF_BITS = 53, 27
_LOW = (1 << _HALF_BITS) - 1
# In place of an exponent, which is at most 1024.
_INFINITE = 5_000
_SUMS = ("count", "whole", "high_high", "high_low", "low_low")


@dataclass(frozen=True)
class SuiteMeasures:
    """Expressions whose values a suite's metrics are computed from.

    Attributes:
        numbers: Aggregates by key: smallest and largest values of the metrics `column.min` and
            `column.max`; all others are counts, which add up.
        moments: Numeric expressions by column, null where a value is missing.
        values: Expressions whose values are counted, by key, null where one is missing.
        hashes: The same, of 64-bit hashes, where it only matters how often values occur.
        sampled: Columns of the rows that are sampled.
    """

    numbers: Mapping[str, pl.Expr]
    moments: Mapping[str, pl.Expr]
    values: Mapping[str, pl.Expr]
    hashes: Mapping[str, pl.Expr]
    sampled: Sequence[str] = ()
    sample_rows: int = 0
    sample_seed: int = 0

    def state_of(self, batch: pl.DataFrame) -> FactsState:
        """Measure a batch of rows."""
        numbers = batch.select(each.alias(key) for key, each in self.numbers.items())
        sample = batch.select(self.sampled)
        if self.sampled:
            sample = sample.with_columns(__order__=batch.hash_rows(self.sample_seed))
        return FactsState(
            {
                "numbers": numbers,
                "moments": _moments_of(batch, self.moments),
                "values": _values_of(batch, self.values, self.hashes),
                "sample": self._cut_sample(sample),
            }
        )

    def merge(self, states: Sequence[FactsState]) -> FactsState:
        """Return the state of all rows of several states."""
        merges: dict[str, Callable[[pl.DataFrame], pl.DataFrame]] = {
            "numbers": merge_columns,
            "moments": _merge_moments,
            "values": _merge_values,
            "sample": self._cut_sample,
        }
        return FactsState(
            {
                name: merge(pl.concat([state[name] for state in states]))
                for name, merge in merges.items()
            }
        )

    def _cut_sample(self, rows: pl.DataFrame) -> pl.DataFrame:
        return rows.bottom_k(self.sample_rows, by="__order__") if self.sampled else rows


@dataclass(frozen=True)
class Moments:
    """Count of a column, and exact sum and sum of squares of its finite values.

    Attributes:
        infinite: Number of values that are plus and minus infinity.
    """

    count: int
    total: Fraction
    squares: Fraction
    infinite: tuple[int, int]

    @classmethod
    def of(cls, moments: pl.DataFrame, column: str) -> "Moments":
        """Add up a column's rows of the table of moments."""
        count, total, squares = 0, Fraction(0), Fraction(0)
        infinite = {_INFINITE: 0, -_INFINITE: 0}
        for row in moments.filter(pl.col("column") == column).iter_rows(named=True):
            count += row["count"]
            if row["exponent"] in infinite:
                infinite[row["exponent"]] += row["count"]
                continue
            unit = Fraction(2) ** (row["exponent"] - _MANTISSA_BITS)
            # (high x 2^27 + low)^2, where the one bit more is the factor 2 of the mixed product.
            square = row["high_high"] << 2 * _HALF_BITS
            square += (row["high_low"] << _HALF_BITS + 1) + row["low_low"]
            total += row["whole"] * unit
            squares += square * unit**2
        return cls(count, total, squares, (infinite[_INFINITE], infinite[-_INFINITE]))

    @property
    def sum(self) -> float:
        """Return the sum, rounded once; infinite or NaN where infinite values make it so."""
        if any(self.infinite):
            sign = self.infinite[0] - self.infinite[1]
            return math.nan if all(self.infinite) else math.copysign(math.inf, sign)
        return float(self.total)

    @property
    def mean(self) -> float:
        """Return the mean, rounded once; NaN without values."""
        if not self.count or any(self.infinite):
            return self.sum if self.count else math.nan
        return float(self.total / self.count)

    @property
    def standard_deviation(self) -> float:
        """Return the sample standard deviation; NaN for fewer than two values."""
        n = self.count
        if n <= 1 or any(self.infinite):
            return math.nan
        variance = (n * self.squares - self.total**2) / (n * (n - 1))
        return math.sqrt(float(variance))


def counted_values(values: pl.DataFrame, key: str, dtype: pl.DataType) -> tuple[pl.DataFrame, int]:
    """Return `value` and `count` of each different value, and the level n of the sample.

    One in 2^n different values is kept, with all its rows.
    """
    found = values.filter(pl.col("key") == key)
    table = found.select(pl.col("text").cast(dtype).alias("value"), "count")
    return table, int(str(found["cut"].max() or 0))


def _moments_of(batch: pl.DataFrame, moments: Mapping[str, pl.Expr]) -> pl.DataFrame:
    tables = []
    for column, expression in moments.items():
        values = batch.select(expression.cast(pl.Float64)).to_series().drop_nulls().to_numpy()
        tables.append(_decomposed(values).with_columns(pl.lit(column).alias("column")))
    schema = {"exponent": pl.Int32, **dict.fromkeys(_SUMS, pl.Int128), "column": pl.String}
    return pl.concat(tables) if tables else pl.DataFrame(schema=schema)


def _decomposed(values: NDArray[np.float64]) -> pl.DataFrame:
    """Sums of the values of each exponent."""
    is_finite = np.isfinite(values)
    mantissa, exponent = np.frexp(np.where(is_finite, values, 0.0))
    whole = np.ldexp(mantissa, _MANTISSA_BITS).astype(np.int64)
    high, low = whole >> _HALF_BITS, whole & _LOW
    special = np.where(values > 0, _INFINITE, -_INFINITE)
    parts = pl.DataFrame(
        {
            "exponent": np.where(is_finite, exponent, special).astype(np.int32),
            "whole": whole,
            "high_high": high * high,
            "high_low": high * low,
            "low_low": low * low,
        }
    )
    return parts.group_by("exponent").agg(
        pl.len().cast(pl.Int128).alias("count"),
        *(pl.col(name).cast(pl.Int128).sum() for name in _SUMS[1:]),
    )


def _merge_moments(table: pl.DataFrame) -> pl.DataFrame:
    merged = (
        table.group_by("column", "exponent").agg(pl.col(_SUMS).sum()).sort("column", "exponent")
    )
    return merged.select(table.columns)


def _values_of(
    batch: pl.DataFrame, values: Mapping[str, pl.Expr], hashes: Mapping[str, pl.Expr]
) -> pl.DataFrame:
    empty = pl.DataFrame(
        schema={
            "key": pl.String, "text": pl.String, "hash": pl.UInt64, "count": pl.Int64,
            "cut": pl.UInt8,
        }
    )  # fmt: skip
    texts = {key: (each.cast(pl.String), pl.col("value").hash()) for key, each in values.items()}
    numbers = {key: (each, pl.col("value")) for key, each in hashes.items()}
    tables = []
    for key, (value, hashed) in {**texts, **numbers}.items():
        counts = batch.select(value.alias("value")).drop_nulls().group_by("value")
        tables.append(
            counts.agg(pl.len().cast(pl.Int64).alias("count")).select(
                pl.lit(key).alias("key"),
                pl.col("value").alias("text")
                if key in texts
                else pl.lit(None, pl.String).alias("text"),
                hashed.alias("hash"),
                "count",
                pl.lit(0, pl.UInt8).alias("cut"),
            )
        )
    return _cut_values(pl.concat([empty, *tables]))


def _merge_values(table: pl.DataFrame) -> pl.DataFrame:
    merged = [
        part.group_by("hash")
        .agg(pl.col("key", "text").first(), pl.col("count").sum(), pl.col("cut").max())
        .select(table.columns)
        for part in table.partition_by("key")
    ]
    return _cut_values(pl.concat([table.clear(), *merged]))


def _cut_values(table: pl.DataFrame) -> pl.DataFrame:
    """Keep of each key a sample of its values where they are too many to count."""
    levels = table.with_columns(level_of(pl.col("hash")).alias("level"))
    return cut_levels(levels, ["key"], MAX_VALUES).select(table.columns)
