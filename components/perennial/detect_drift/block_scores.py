"""Signed scores of blocks: location, spread and missing values of each column.

Distances lose the direction of a change, and with it most of the power if blocks vary anyway. A
score keeps the direction, so windows that move the same way add up.

Shapes: T blocks (the reference's, then the windows'), K scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from perennial.detect_drift.two_sample import Profile

EXTREME_RANK = 0.005
"""Normal scores are clipped at this rank and its mirror (2.6 standard deviations), so that single
rows in heavy tails cannot decide."""
LEAST_SPREAD = 1e-6  # of normal scores; zero for a column that is constant in a block


@dataclass(frozen=True)
class Scores:
    """Scores of blocks.

    Attributes:
        values: Shape [T, K].
        kinds: Kind of each score; scores of one kind have one scale. Length K.
        profiles: Position of the profile behind each score, shape [K].
        row_variances: Variance that independent rows give to a score of one block, times the
            block's rows; shape [K].
    """

    values: NDArray[np.float64]
    kinds: tuple[str, ...]
    profiles: NDArray[np.int64]
    row_variances: NDArray[np.float64]


def score_blocks(profiles: Sequence[Profile], old: slice) -> Scores:
    """Return all scores of all blocks, without constant ones.

    Args:
        profiles: Profiles of the reference blocks, then of the windows.
        old: Slice of the reference blocks.
    """
    columns: list[tuple[NDArray[np.float64], str, int, float]] = []
    for index, profile in enumerate(profiles):
        if profile.statistic == "kolmogorov_smirnov" and len(profile.points) > 1:
            location, spread = _location_and_spread(profile, old)
            # Of n normal values, the mean has variance 1/n and the log of the spread 1/2n.
            columns += [(location, "location", index, 1.0), (spread, "spread", index, 0.5)]
        elif profile.statistic in ("null_share", "label_mean"):
            # The arcsine makes the variance of a share, 1/4n, independent of the share.
            angle = np.arcsin(np.sqrt(np.clip(profile.values[:, 0], 0.0, 1.0)))
            columns.append((angle, profile.statistic, index, 0.25))
        elif profile.statistic == "dependence":
            columns.append((profile.values[:, 0], "dependence", index, 0.0))
    moving = [
        (np.where(profiles[index].weights > 0, values, np.nan), kind, index, variance)
        for values, kind, index, variance in columns
        if len(np.unique(values[profiles[index].weights > 0])) > 1
    ]
    num_blocks = len(profiles[0].weights)
    return Scores(
        np.array([values for values, _, _, _ in moving]).reshape(-1, num_blocks).T,
        tuple(kind for _, kind, _, _ in moving),
        np.array([index for _, _, index, _ in moving], dtype=np.int64),
        np.array([variance for _, _, _, variance in moving]),
    )


def _location_and_spread(
    profile: Profile, old: slice
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and log standard deviation of each block's normal scores, shapes [T].

    A value's normal score is the normal quantile of its rank in the reference.
    """
    points = len(profile.points)
    before, after = profile.values[:, :points], profile.values[:, points:]
    pooled = profile.pooled(old)
    ranks = (pooled[:points] + pooled[points:]) / 2
    scores = stats.norm.ppf(np.clip(ranks, EXTREME_RANK, 1 - EXTREME_RANK))
    atoms, between = after - before, before[:, 1:] - after[:, :-1]
    means, squares = (
        atoms @ values + between @ ((values[1:] + values[:-1]) / 2)
        for values in (scores, scores**2)
    )
    return means, np.log(np.maximum(squares - means**2, LEAST_SPREAD)) / 2
