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

# Above 0.97 a mean of days has no error that they could tell. Chance makes independent days
# alternate as often as it makes them alike, so cutting at 0 would widen their intervals on average;
# days that truly alternate by more than 0.3 are rare.
HIGHEST_CORRELATION, LOWEST_CORRELATION = 0.97, -0.3
# In standard errors of a correlation, and days: beyond, looking costs independent days power.
CLEAR, LONGEST_LAG = 1.75, 5
# Skewness of a gamma distribution by its L-skewness, close to linear (Hosking, 1990).
GAMMA_SKEWNESS = 2.0 * math.sqrt(3.0 * math.pi)
# Weight of the skewness beyond the standard error that symmetric days show. At 1.2 beyond half of
# it, log-normal storms are promoted in 7.4% of tests; at 2, power falls by four points.
SKEWNESS_WEIGHT = 1.6
_SMALLEST = 1e-300  # a variance; below, no block differs from another
_SMALLEST_SPARE = 0.1  # blocks; the variance of days that are nearly one is nearly unknown


@dataclass(frozen=True)
class Spread:
    """Correlation and skewness of the influences of B blocks on a statistic.

    Attributes:
        correlation: Of one day's influence with the next one's, in [-0.3, 0.97].
        inflation: Of the standard error, for days that are not independent.
        telling: Blocks that move the statistic, at most B.
        effective: Independent blocks that would tell as much.
        skewness: Of the mean of the influences.
    """

    correlation: float
    inflation: float
    telling: float
    effective: float
    skewness: float

    @classmethod
    def of(cls, influences: NDArray[np.float64], blocks: Blocks) -> "Spread":
        """Measure it.

        Days that are further apart correlate by the power of adjacent ones' correlation. The
        variance that n such days show is too small as well.
        """
        count = blocks.count
        away = influences - influences.mean()
        squares = float(away @ away)
        if count < 2 or squares < _SMALLEST:
            return cls(0.0, 1.0, float(count), float(count), 0.0)
        correlation, mean_variance = 0.0, 1.0
        if blocks.unit == "day":
            apart = np.abs(blocks.time[:, None] - blocks.time)
            found = _correlation(away, apart)
            correlation = min(max(found, LOWEST_CORRELATION), HIGHEST_CORRELATION)
            signs = np.cos(np.pi * apart) if correlation < 0 else 1.0
            mean_variance = float((signs * abs(correlation) ** apart).sum()) / count
        spare = max(count - mean_variance, _SMALLEST_SPARE)
        # Blocks that hardly move the statistic tell little of its error. Days with tails as heavy
        # as those of Student's distribution with 3 degrees of freedom count fully.
        telling = math.pi**2 / 4.0 * float(np.abs(away).sum()) ** 2 / squares
        telling = min(telling, float(count))
        return cls(
            correlation,
            math.sqrt(mean_variance * (count - 1) / spare),
            telling,
            telling / mean_variance,
            _skewness(away) / math.sqrt(count / mean_variance),
        )


def _skewness(away: NDArray[np.float64]) -> float:
    """Estimate the skewness of a distribution; 0 within the noise of symmetric blocks.

    A sample's own skewness cannot exceed the root of its size, and one block decides it. L-moments
    are linear in the sorted values, so few blocks show them nearly unbiased (Hosking, 1990), unless
    most blocks do not move the statistic. The larger of the two counts.
    """
    count = len(away)
    if count <= 2:
        return 0.0
    own = float((away**3).mean() / (away**2).mean() ** 1.5)
    place, ordered = np.arange(count), np.sort(away)
    third = float((place * (place - 1)) @ ordered) / (count - 2)
    linear = GAMMA_SKEWNESS * 3.0 * (third / float(place @ ordered) - 1.0)
    found = max(own, linear, key=abs)
    beyond = max(abs(found) - math.sqrt(6.0 / count), 0.0)
    return math.copysign(SKEWNESS_WEIGHT * beyond, found)


def _correlation(away: NDArray[np.float64], apart: NDArray[np.float64]) -> float:
    """Estimate the correlation of adjacent days, as of an autoregressive process; may be negative.

    With Kendall's correction (1954): a sample of n shows (1 + 3 r) / n too little. Where it is
    clear, days further apart are used too: noise of single days hides how long bad ones last.

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
        """Build an interval from a standard error that holds for independent blocks."""
        return cls(
            value,
            error * spread.inflation,
            max(spread.telling - 1.0 - fitted, 1.0),
            luck,
            spread.skewness,
            spread.correlation,
            spread.effective,
        )

    def interval(self, confidence: float) -> Interval:
        """Return bounds that each hold with the given confidence.

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
