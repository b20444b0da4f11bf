"""Distance between two sets of blocks, column by column, as effect sizes in [0, 1].

Every statistic compares *profiles*: a column's cumulative distribution, its category shares, its
null share. A profile of several blocks together is the weighted mean of theirs, so distances to any
mixture of blocks follow from one matrix, without touching a row again.

Shapes: B blocks, G points of a profile.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats

from perennial.contracts.validation import BlockSketch
from perennial.detect_drift.block_noise import Floats

Statistic = Literal[
    "kolmogorov_smirnov", "total_variation", "null_share", "new_values", "dependence", "label_mean"
]
LABEL_MEAN = "label"
MAX_GRID_POINTS = 2048  # changes a distance by less than 1/2048 of the pooled rows


@dataclass(frozen=True)
class Profile:
    """One statistic of one column over blocks.

    Attributes:
        statistic: Meaning of `values`, and how they are compared.
        points: Points of the profile: values, categories or nothing.
        values: Shape [B, G]; a cumulative distribution before its jumps, then after them.
        weights: Number of values of each block's profile, shape [B]; 0 if the block has none.
    """

    column: str
    statistic: Statistic
    points: tuple[float, ...] | tuple[str, ...]
    values: Floats
    weights: Floats

    def pooled(self, chosen: slice) -> Floats:
        """Return the profile of some blocks together, shape [G]."""
        return _mixture(self.weights[chosen] @ self.values[chosen], self.weights[chosen].sum())

    def effects_against_rest(self, chosen: slice) -> Floats:
        """Return each chosen block's distance to the others together; NaN if one is empty."""
        values, weights = self.values[chosen], self.weights[chosen]
        left_out = weights[:, None] * values
        rest = _mixture(left_out.sum(axis=0) - left_out, (weights.sum() - weights)[:, None])
        return self._effects(values, rest, weights, weights.sum() - weights)

    def effects_against(self, chosen: slice, reference: slice) -> Floats:
        """Return each chosen block's distance to the whole reference; NaN if one is empty."""
        total = np.full(len(self.weights[chosen]), self.weights[reference].sum())
        pooled = self.pooled(reference)
        return self._effects(self.values[chosen], pooled, self.weights[chosen], total)

    def iid_p_value(self, block: int, reference: slice) -> float:
        """Return the textbook p-value for independent rows: for the report, not for triggers."""
        rows, reference_rows = self.weights[block], self.weights[reference].sum()
        if rows == 0 or reference_rows == 0:
            return 1.0
        pooled = self.pooled(reference)
        if self.statistic == "kolmogorov_smirnov":
            distance = np.abs(self.values[block] - pooled).max()
            scale = math.sqrt(rows * reference_rows / (rows + reference_rows))
            return float(stats.kstwobign.sf(distance * scale))
        shares = np.stack([self.values[block], pooled])
        if self.statistic in ("null_share", "new_values"):
            shares = np.hstack([shares, 1 - shares])
        counts = shares * np.array([[rows], [reference_rows]])
        counts = counts[:, counts.sum(axis=0) > 0]
        if counts.shape[1] < 2:
            return 1.0
        return float(stats.chi2_contingency(counts, correction=False).pvalue)

    def _effects(
        self, values: Floats, others: Floats, weights: Floats, other_weights: Floats
    ) -> Floats:
        difference = np.abs(values - others)
        if self.statistic == "total_variation":
            effects = difference.sum(axis=1) / 2
        else:
            effects = difference.max(axis=1)
        # Rounding may give values slightly outside [0, 1].
        return np.where((weights > 0) & (other_weights > 0), np.clip(effects, 0.0, 1.0), np.nan)


def profiles_of(blocks: Sequence[BlockSketch]) -> list[Profile]:
    """Return every statistic of every column of the first block; the label's mean comes last."""
    profiles = []
    for column in blocks[0].numeric:
        profiles += [_cumulative_profile(blocks, column), _null_profile(blocks, column)]
    for column in blocks[0].categorical:
        profiles += [_share_profile(blocks, column), _null_profile(blocks, column)]
    if any(block.label_mean is not None for block in blocks):
        profiles.append(_label_profile(blocks))
    return profiles


def cumulative_shares(
    quantiles: Sequence[float], grid: Floats, side: Literal["left", "right"]
) -> Floats:
    """Return the distribution function of evenly spaced quantiles, shape [G].

    A value that fills several quantiles is an atom: the function jumps there, and `side` selects
    its value before or after the jump. Between atoms it is linear.
    """
    values = np.asarray(quantiles, dtype=np.float64)
    if len(values) == 1:
        values = np.repeat(values, 2)
    levels = np.linspace(0.0, 1.0, len(values))
    atoms, first = np.unique(values, return_index=True)
    before, after = levels[first], levels[np.append(first[1:], len(values)) - 1]
    below = np.searchsorted(atoms, grid, side=side) - 1
    inside = np.clip(below, 0, max(len(atoms) - 2, 0))
    above = np.minimum(inside + 1, len(atoms) - 1)
    width = np.where(above > inside, atoms[above] - atoms[inside], 1.0)
    way = np.clip(grid, atoms[inside], atoms[above]) - atoms[inside]  # width may be subnormal
    shares = after[inside] + way / width * (before[above] - after[inside])
    return np.where(below < 0, 0.0, np.where(below >= len(atoms) - 1, 1.0, shares))


def _mixture(weighted: Floats, weight: Floats) -> Floats:
    return weighted / np.where(weight > 0, weight, 1.0)


def _cumulative_profile(blocks: Sequence[BlockSketch], column: str) -> Profile:
    sketches = [block.numeric.get(column) for block in blocks]
    known = [sketch.quantiles if sketch else () for sketch in sketches]
    pool = np.sort(np.concatenate([np.asarray(quantiles, dtype=np.float64) for quantiles in known]))
    ranks = np.linspace(0, len(pool) - 1, min(len(pool), MAX_GRID_POINTS)).round().astype(np.int64)
    grid = np.unique(pool[ranks])
    values = np.zeros((len(blocks), 2 * max(len(grid), 1)))
    weights = np.zeros(len(blocks))
    for index, (block, sketch) in enumerate(zip(blocks, sketches, strict=True)):
        if sketch and sketch.quantiles:
            weights[index] = block.rows - sketch.nulls
            sides = [cumulative_shares(sketch.quantiles, grid, side) for side in ("left", "right")]
            values[index] = np.concatenate(sides)
    return Profile(column, "kolmogorov_smirnov", tuple(grid.tolist()), values, weights)


def _share_profile(blocks: Sequence[BlockSketch], column: str) -> Profile:
    sketches = [block.categorical.get(column) for block in blocks]
    categories = sorted({name for sketch in sketches if sketch for name in sketch.counts})
    position = {name: index for index, name in enumerate(categories)}
    counts = np.zeros((len(blocks), max(len(categories), 1)))
    for row, sketch in enumerate(sketches):
        for name, count in (sketch.counts if sketch else {}).items():
            counts[row, position[name]] = count
    weights = counts.sum(axis=1)
    shares = _mixture(counts, weights[:, None])
    return Profile(column, "total_variation", tuple(categories), shares, weights)


def _null_profile(blocks: Sequence[BlockSketch], column: str) -> Profile:
    sketches = [block.numeric.get(column) or block.categorical.get(column) for block in blocks]
    nulls = np.array([sketch.nulls if sketch else 0 for sketch in sketches], dtype=np.float64)
    weights = np.array(
        [block.rows if sketch else 0 for block, sketch in zip(blocks, sketches, strict=True)],
        dtype=np.float64,
    )
    return Profile(column, "null_share", (), _mixture(nulls, weights)[:, None], weights)


def _label_profile(blocks: Sequence[BlockSketch]) -> Profile:
    known = [block.label_mean for block in blocks if block.label_mean is not None]
    low, high = min(known), max(known)
    # The mean of a binary label is a share; any other is scaled to the range of all blocks.
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    means = np.array([low if block.label_mean is None else block.label_mean for block in blocks])
    weights = np.array([0 if block.label_mean is None else block.rows for block in blocks])
    values = (means - low) / ((high - low) or 1.0)
    return Profile(LABEL_MEAN, "label_mean", (), values[:, None], weights.astype(np.float64))
