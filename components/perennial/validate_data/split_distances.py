"""Split distances: how far the columns of validation and test are from training's.

A distance is the largest difference of the cumulative shares (Kolmogorov-Smirnov) of a number, and
the total variation of a category. It is judged beside what blocks of time or files differ among
themselves, because the rows of one block are not independent, and beside the noise of a sample.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import ks_2samp

from perennial.contracts.data import Split
from perennial.contracts.validation import BlockSketch
from perennial.data.dataset import SPLIT_COLUMN
from perennial.validate_data.columns import finite, is_text

MIN_DISTANCE = 0.1
"""Smaller ones matter little to any model, however certain they are."""
_DEVIATIONS = 3.0
# Smirnov's critical value, which 1% of the samples of equal distributions exceed.
_SAMPLE_NOISE = 1.63
_MIN_ROWS = 100
_HELD_OUT = (Split.VALIDATION, Split.TEST)


@dataclass(frozen=True)
class SplitDistance:
    """Distance of one column of a split from that of training.

    Attributes:
        limit: Largest distance that blocks and chance explain.
    """

    column: str
    split: Split
    distance: float
    limit: float

    @property
    def fact(self) -> str:
        """Return the name of the distance among the facts."""
        return f"{self.split.value}_distance:{self.column}"


def split_distances(
    sample: pl.DataFrame, features: Mapping[str, pl.DataType], blocks: Sequence[BlockSketch]
) -> Iterator[SplitDistance]:
    """Yield the distance of each feature of validation and test from that of training.

    `sample` has random rows with the name of their split.
    """
    parts = {
        split: sample.filter(pl.col(SPLIT_COLUMN) == split.value)
        for split in (Split.TRAIN, *_HELD_OUT)
    }
    for name, dtype in features.items():
        if not (dtype.is_numeric() or is_text(dtype)):
            continue
        values = {split: _values(rows, name, dtype) for split, rows in parts.items()}
        train, of_blocks = values[Split.TRAIN], _block_distances(blocks, name)
        for split in _HELD_OUT:
            rows = len(values[split])
            if min(len(train), rows) < _MIN_ROWS:
                continue
            by_chance = _chance_distance(train, values[split])
            share = rows / sum(map(len, values.values()))
            limit = max(MIN_DISTANCE, _block_noise(of_blocks, share)) + by_chance
            distance = _distance(train, values[split])
            yield SplitDistance(name, split, round(distance, 4), round(limit, 4))


def _values(rows: pl.DataFrame, name: str, dtype: pl.DataType) -> pl.Series:
    if is_text(dtype):
        return rows[name].cast(pl.String).drop_nulls().alias("value")
    return rows.select(finite(name, dtype).cast(pl.Float64)).to_series().drop_nulls().drop_nans()


def _distance(first: pl.Series, second: pl.Series) -> float:
    if first.dtype == pl.String:
        shares = [dict(each.value_counts(normalize=True).iter_rows()) for each in (first, second)]
        return _variation(*shares)
    # Its p-value, which takes rows for independent, is not used: the cheap method suffices.
    return float(ks_2samp(first.to_numpy(), second.to_numpy(), method="asymp").statistic)


def _chance_distance(first: pl.Series, second: pl.Series) -> float:
    """Return the distance that samples of one distribution seldom have."""
    spread = 1 / len(first) + 1 / len(second)
    beyond = _SAMPLE_NOISE * math.sqrt(spread)
    if first.dtype != pl.String:
        return beyond
    # Each category's difference is nearly normal, so half of its mean size is
    # sqrt(share x spread / 2 pi); those of many categories add up, as in identifiers.
    shares = pl.concat([first, second]).value_counts(normalize=True)["proportion"]
    return beyond + float(shares.sqrt().sum()) * math.sqrt(spread / (2 * math.pi))


def _variation(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    return sum(abs(first.get(key, 0.0) - second.get(key, 0.0)) for key in {*first, *second}) / 2


def _block_noise(distances: NDArray[np.float64], share: float) -> float:
    """Return the distance that a share of the blocks is likely to have from the others."""
    if len(distances) < 2:
        return 0.0
    held_out = max(share * len(distances), 1.0)
    return _DEVIATIONS * math.sqrt(float(np.mean(np.square(distances))) / held_out)


def _block_distances(blocks: Sequence[BlockSketch], name: str) -> NDArray[np.float64]:
    """The distance of each block from all blocks together."""
    sketches = (each.numeric[name].quantiles for each in blocks if name in each.numeric)
    quantiles = np.array([each for each in sketches if each])
    if quantiles.size:
        together, (_, count) = np.sort(quantiles, axis=None), quantiles.shape
        below = np.searchsorted(together, quantiles, side="left") / quantiles.size
        until = np.searchsorted(together, quantiles, side="right") / quantiles.size
        # Two step functions differ most where the one of fewer steps has a step: before or at it.
        steps = np.arange(count + 1) / count
        largest: NDArray[np.float64] = np.maximum(steps[1:] - until, below - steps[:-1]).max(axis=1)
        return largest
    categories = [each.categorical[name].counts for each in blocks if name in each.categorical]
    categories = [each for each in categories if any(each.values())]
    names = sorted({key for each in categories for key in each})
    if not names:
        return np.zeros(0)
    counts = np.array([[each.get(key, 0) for key in names] for each in categories])
    shares = counts / counts.sum(axis=1, keepdims=True)
    variation: NDArray[np.float64] = np.abs(shares - shares.mean(axis=0)).sum(axis=1) / 2
    return variation
