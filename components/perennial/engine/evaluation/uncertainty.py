"""Uncertainty: standard error of an estimate from correlated, skewed days.

The bootstrap over single blocks gives a standard error that holds for independent blocks. What it
cannot see shows in the influence of each block on the statistic (the jackknife): a bad day that
lasts, one storm that decides a month, rows that matter in a few blocks only. The rule was chosen by
measurement (benchmarks/results/gate_characteristics.md).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from perennial.contracts.gate import Interval
from perennial.engine.evaluation.resampling import Blocks

# Above this a mean of days has no error that they could tell.
HIGHEST_CORRELATION = 0.97
# In standard errors of a correlation, and days: beyond, looking costs independent days power.
CLEAR, LONGEST_LAG = 2.0, 3
# A sample shows less skewness than its population: of 9 to 27 days about three quarters.
SHOWN_SKEWNESS = 1.25
_SMALLEST = 1e-300  # a variance; below, no block differs from another
_SMALLEST_SPARE = 0.1  # blocks; the variance of days that are nearly one is nearly unknown


@dataclass(frozen=True)
class Spread:
    """Correlation and skewness of the influences of B blocks on a statistic.

    Attributes:
        correlation: Of one day's influence with the next one's, in [0, 0.97].
        inflation: Of the standard error, for days that are not independent.
        effective: Independent blocks that would tell as much.
        skewness: Of the influences.
    """

    correlation: float
    inflation: float
    effective: float
    skewness: float

    @classmethod
    def of(cls, influences: NDArray[np.float64], blocks: Blocks) -> "Spread":
        """Measure it.

        Days that are further apart correlate by the power of adjacent ones' correlation. The
        variance that n such days show is too small as well.

        Args:
            influences: Of each block, shape [B].
            blocks: Say which blocks are adjacent days.
        """
        count = blocks.count
        away = influences - influences.mean()
        squares = float(away @ away)
        if count < 2 or squares < _SMALLEST:
            return cls(0.0, 1.0, float(count), 0.0)
        correlation, mean_variance = 0.0, 1.0
        if blocks.unit == "day":
            apart = np.abs(blocks.time[:, None] - blocks.time)
            correlation = min(max(_correlation(away, apart), 0.0), HIGHEST_CORRELATION)
            mean_variance = float((correlation**apart).sum()) / count
        spare = max(count - mean_variance, _SMALLEST_SPARE)
        third = float((away**3).mean()) / (squares / count) ** 1.5
        # Blocks that hardly move the statistic tell little of its error. Normal ones count fully.
        telling = min(count, math.pi / 2.0 * float(np.abs(away).sum()) ** 2 / squares)
        return cls(
            correlation,
            math.sqrt(mean_variance * (count - 1) / spare),
            max(telling / mean_variance, 1.0),
            SHOWN_SKEWNESS * third / math.sqrt(count / mean_variance),
        )


def _correlation(away: NDArray[np.float64], apart: NDArray[np.float64]) -> float:
    """Estimate the correlation of adjacent days, as of an autoregressive process; may be negative.

    With Kendall's correction (1954): a sample of n shows (1 + 3 r) / n too little. Where it is
    clear, days further apart are asked too: noise of single days hides how long bad ones last.

    Args:
        away: Influences less their mean, shape [B].
        apart: Days between each two blocks, shape [B, B].
    """
    count = len(away)

    def at(lag: int) -> float:
        pairs = np.abs(apart - lag) < 0.5
        number = int(pairs.sum()) // 2
        shown = float(away @ pairs @ away) / 2.0 / float(away @ away)
        shown *= count / (number + lag)  # as many pairs as days without gaps have
        return (count * shown + 1.0) / max(count - 3, 1)

    adjacent = at(1)
    if adjacent * math.sqrt(count) < CLEAR:
        return adjacent
    lags = range(2, LONGEST_LAG + 1)
    return max(adjacent, *(math.pow(max(at(lag), 0.0), 1.0 / lag) for lag in lags))


@dataclass(frozen=True)
class Estimate:
    """An estimate and how uncertain it is.

    Attributes:
        value: The estimate.
        error: Its standard error.
        degrees: Degrees of freedom of the error.
        luck: What was taken out of the value.
        skewness: Of the estimate, which is that of its blocks by the root of their number.
        correlation: Of one day with the next.
        effective: Independent blocks that would tell as much.
    """

    value: float
    error: float
    degrees: float
    luck: float = 0.0
    skewness: float = 0.0
    correlation: float = 0.0
    effective: float = math.inf

    @classmethod
    def of(
        cls, value: float, error: float, spread: Spread, *, fitted: int = 0, luck: float = 0.0
    ) -> "Estimate":
        """Build an interval from a standard error that holds for independent blocks.

        Args:
            value: The estimate.
            error: By single blocks.
            spread: Of the blocks.
            fitted: Coefficients that were fitted to them.
            luck: What was taken out of the value.
        """
        return cls(
            value,
            error * spread.inflation,
            max(spread.effective - 1.0 - fitted, 1.0),
            luck,
            spread.skewness,
            spread.correlation,
            spread.effective,
        )

    def interval(self, confidence: float) -> Interval:
        """Bounds that each hold with the given confidence.

        A Student interval; percentiles are too narrow for few blocks (Hesterberg, What Teachers
        Should Know About the Bootstrap, 2015). Skewness widens the bound beyond which the rare
        blocks lie, and narrows none.
        """
        quantile = float(stdtrit(self.degrees, confidence))
        below = _untransformed(quantile, min(self.skewness, 0.0))
        above = _untransformed(quantile, min(-self.skewness, 0.0))
        return Interval(
            estimate=self.value,
            low=self.value - below * self.error,
            high=self.value + above * self.error,
        )

    def probability_below(self, limit: float) -> float:
        """Return the probability of so low an improvement if the true one is the limit."""
        if self.error > 0:
            away = (self.value - limit) / self.error
            return float(stdtr(self.degrees, _transformed(away, max(self.skewness, 0.0))))
        return 1.0 if self.value >= limit else 0.0


def _transformed(away: float, skewness: float) -> float:
    """Transform a studentized mean of skewed values to a symmetric one (Hall, 1992, monotone)."""
    return (
        away + skewness / 3.0 * away**2 + skewness**2 / 27.0 * away**3 + skewness / 6.0
        if math.isfinite(away)
        else away
    )


def _untransformed(quantile: float, skewness: float) -> float:
    """Invert `_transformed`."""
    if abs(skewness) < 1e-9:
        return quantile
    inner = 1.0 + skewness * (quantile - skewness / 6.0)
    return 3.0 / skewness * (math.cbrt(inner) - 1.0)
