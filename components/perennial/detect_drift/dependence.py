"""Dependence: detect changed relations between columns with a classifier.

The relation of two columns can change while each keeps its own distribution. So every column is
replaced by its normal scores within its block, which are alike in all blocks, and a linear
classifier gets the products of each pair. It is trained on the first half of a block's time and
tested on the second, and the reverse, so that only lasting changes count. Reference blocks are
classified in the same way, which gives the ordinary variation (grouped by time, as rows of one
block are correlated).

Shapes: T blocks, n rows of one block, C columns, P pairs of columns.
"""

from collections.abc import Sequence
from itertools import combinations

import numpy as np
import polars as pl
from scipy import linalg, stats

from perennial.contracts.block import Block
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import BlockSketch, value_of
from perennial.data.dataset import block_key
from perennial.detect_drift.block_noise import Floats
from perennial.detect_drift.two_sample import Profile
from perennial.detect_drift.windows import block_positions, scan_blocks

ALL_COLUMNS = "(all columns)"
MAX_COLUMNS = 24
"""276 pairs, for which a thousand rows per block still suffice."""
SAMPLED_ROWS = 1000
MIN_ROWS = 40
"""Minimum rows of a block: with fewer, halves are too small to show dependence."""
NEWEST_BLOCKS = 52
SHRINKAGE = 0.2  # of the pairs' covariance to its diagonal; 276 pairs, a few thousand rows
_HASHES = 1 << 32


def scan_compared(
    snapshot: Snapshot, reference: Sequence[Block], windows: Sequence[Block]
) -> pl.LazyFrame:
    """Return the rows that are read to compare windows with a reference; see `scan_blocks`."""
    return scan_blocks(snapshot, [*reference[-NEWEST_BLOCKS:], *windows])


def dependence_profile(
    rows: pl.LazyFrame, snapshot: Snapshot, blocks: Sequence[BlockSketch], num_reference: int
) -> Profile | None:
    """Measure how well a classifier separates each block from the reference by column pairs.

    Rows are at least those of the blocks, with their files where there is no time column; blocks
    are those of the reference, of which the `NEWEST_BLOCKS` are compared, then the windows, in time
    order.

    Returns:
        Values are twice the area under the curve minus one, shape [T, 1]; blocks with few rows have
        weight 0. None if there are no pairs or too few blocks.
    """
    columns = _paired_columns(snapshot, blocks[0])
    first = max(0, num_reference - NEWEST_BLOCKS)
    scores = _normal_scores(rows, snapshot, blocks[first:], columns) if len(columns) > 1 else []
    kept = [index for index, block in enumerate(scores) if len(block) >= MIN_ROWS]
    reference = [index for index in kept if index < num_reference - first]
    if len(reference) < 3 or len(reference) == len(kept):
        return None
    scored = tell_apart([scores[index] for index in kept], len(reference))
    values, weights = np.zeros((len(blocks), 1)), np.zeros(len(blocks))
    for index, value in zip(kept, scored, strict=True):
        values[first + index] = value
        weights[first + index] = len(scores[index])
    return Profile(ALL_COLUMNS, "dependence", (), values, weights)


def tell_apart(blocks: Sequence[Floats], num_reference: int) -> Floats:
    """Measure how well a linear classifier separates each block from the other reference blocks.

    The normal scores of the rows of each block are in time order, shape [n, C]; the first blocks,
    at least two, are the reference. Returns twice the area under the curve minus one: 0 if they are
    alike, shape [T].
    """
    pairs = np.array(list(combinations(range(blocks[0].shape[1]), 2)))
    products = [block[:, pairs[:, 0]] * block[:, pairs[:, 1]] for block in blocks]
    halves = [(rows[: len(rows) // 2], rows[len(rows) // 2 :]) for rows in products]
    reference = np.concatenate(products[:num_reference])
    covariance = np.cov(reference, rowvar=False).reshape(len(pairs), len(pairs))
    # The small term, because a pair with a constant column has no variance to factorise.
    diagonal = np.diag(np.diag(covariance)) + 1e-6 * np.eye(len(pairs))
    factor = linalg.cho_factor((1 - SHRINKAGE) * covariance + SHRINKAGE * diagonal)
    found = np.zeros(len(blocks))
    for index, own in enumerate(halves):
        others = [halves[other] for other in range(num_reference) if other != index]
        for seen, tried in ((0, 1), (1, 0)):
            usual = np.concatenate([other[seen] for other in others]).mean(axis=0)
            direction = linalg.cho_solve(factor, own[seen].mean(axis=0) - usual)
            fresh = np.concatenate([other[tried] for other in others]) @ direction
            found[index] += _area(own[tried] @ direction, fresh) - 0.5
    return found


def _area(own: Floats, others: Floats) -> float:
    """Return the area under the curve of own rows against others; ties count half."""
    statistic = stats.mannwhitneyu(own, others).statistic
    return float(statistic) / (len(own) * len(others))


def _paired_columns(snapshot: Snapshot, block: BlockSketch) -> dict[str, pl.Expr]:
    """Return expressions of numbers, and of whether a text is its column's most frequent one."""
    found = {}
    for name in snapshot.described_features:
        if name in block.numeric:
            found[name] = pl.col(name).cast(pl.Float64, strict=False)
        elif name in block.categorical and block.categorical[name].counts:
            counts = block.categorical[name].counts
            top = value_of(max(counts, key=lambda category: counts[category]))
            found[name] = (pl.col(name).cast(pl.String) == top).cast(pl.Float64)
    return dict(list(found.items())[:MAX_COLUMNS])


def _normal_scores(
    rows: pl.LazyFrame,
    snapshot: Snapshot,
    blocks: Sequence[BlockSketch],
    columns: dict[str, pl.Expr],
) -> list[Floats]:
    """Return normal scores of a sample of each block's rows in time order, [n, C] each.

    Without a time column the order is that of the files and of their rows.
    """
    positions = block_positions(snapshot, blocks)
    if not snapshot.data.time:
        rows = rows.with_row_index("__row")
    time = pl.col(snapshot.data.time or "__row")
    # The share of rows to keep, as a limit for their hash, which bounds memory.
    limits = {
        position: min(int(_HASHES * SAMPLED_ROWS / max(block.rows, 1)), _HASHES)
        for position, block in enumerate(blocks)
    }
    # By hash, not at random: equal rows give an equal sample.
    key = pl.struct(["__time__", *columns]).hash(seed=0) % _HASHES
    sample = (
        rows.select(
            time.alias("__time__"),
            block_key(snapshot.data)
            .replace_strict(positions, default=None, return_dtype=pl.Int64)
            .alias("__block__"),
            *(value.alias(name) for name, value in columns.items()),
        )
        .filter(pl.col("__block__").is_not_null())
        .filter(key < pl.col("__block__").replace_strict(limits, return_dtype=pl.UInt64))
        .sort("__time__", maintain_order=True)
        .collect()
    )
    parts = sample.partition_by("__block__", as_dict=True)
    empty = sample.clear()
    return [
        _scores_of(parts.get((position,), empty).select(list(columns)))
        for position in range(len(blocks))
    ]


def _scores_of(rows: pl.DataFrame) -> Floats:
    values = rows.fill_nan(None).to_numpy().astype(np.float64)
    scores = np.zeros_like(values)
    for column in range(values.shape[1]):
        known = np.isfinite(values[:, column])
        if not known.any():
            continue
        ranks = stats.rankdata(values[known, column]) / (known.sum() + 1)
        own = stats.norm.ppf(ranks)
        # Ties make the scores of a column smaller; a constant column has none.
        scores[known, column] = own / (own.std() or 1.0)
    return scores
