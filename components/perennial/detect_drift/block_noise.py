"""Block noise: variation between blocks, and its correlation from block to block.

A window is compared with the mean of B reference blocks. If neighbouring blocks are correlated, the
reference underestimates the stream's variation, and its mean is less certain. Both are corrected by
a first-order autoregression whose correlation is estimated from the reference.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]
MOST_CORRELATED = 0.97
"""Above it a stream is a random walk, for which no reference shows the ordinary variation."""
MOST_BORROWED = 60.0
"""Maximum degrees of freedom taken from other columns. More do not change relevant quantiles."""


@lru_cache(maxsize=4096)  # scores are alike; with hundreds of blocks each takes milliseconds
def compare_means(
    correlation: float, row_share: float, num_reference: int, windows: tuple[int, ...]
) -> tuple[float, float]:
    """Compare a mean over windows with the reference's, without drift.

    The correlation from block to block is without the noise of rows; `row_share` is the share of
    the reference's sample variance that is noise of rows, independent between blocks. Windows are
    given by their positions after the reference, from 0 on.

    Returns:
        Variance of the difference of means, over the expected sample variance of the reference,
        and that variance's degrees of freedom, by Satterthwaite's approximation.
    """
    size = num_reference + max(windows) + 1
    distance = np.abs(np.arange(size)[:, None] - np.arange(size))
    lasting = correlation**distance
    # Blocks that resemble their neighbours vary less in a short reference than in the long run.
    known = lasting[:num_reference, :num_reference]
    shown = (np.trace(known) - known.mean(axis=0).sum()) / (num_reference - 1)
    covariance = (1 - row_share) * lasting / shown + row_share * np.eye(size)
    contrast = np.zeros(size)
    contrast[:num_reference] = -1 / num_reference
    contrast[[num_reference + window for window in windows]] = 1 / len(windows)
    # The sample variance is a quadratic form: its mean is the trace of the centred covariance, its
    # variance twice the trace of that squared.
    centred = covariance[:num_reference, :num_reference]
    centred = centred - centred.mean(axis=0)
    trace = float(np.trace(centred))
    return (
        float(contrast @ covariance @ contrast) / (trace / (num_reference - 1)),
        trace**2 / float(np.trace(centred @ centred)),
    )


def estimate_correlations(values: Floats, row_shares: Floats) -> Floats:
    """Estimate each score's correlation from block to block, shrunk to that of all together.

    A dozen blocks give the correlation of one score to +-0.3 only. So each is shrunk to the common
    one as far as they agree (empirical Bayes), and the remaining standard error is added. The
    estimate's bias, -(1 + 4r)/B (Kendall 1954), is corrected.

    From the scores of the reference blocks in time order, shape [B, K], and the share of each
    score's variance that is the noise of rows, shape [K]; returns shape [K].
    """
    num_blocks, num_scores = values.shape
    if not num_scores:
        return np.zeros(0)
    residuals = values - values.mean(axis=0)
    variances = np.maximum((residuals**2).mean(axis=0), 1e-300)
    raw = (residuals[1:] * residuals[:-1]).sum(axis=0) / num_blocks / variances
    lasting = 1 - row_shares
    own = (raw + (1 + 4 * np.clip(raw, 0, 1)) / num_blocks) / lasting
    # Scores that are mostly noise of rows have little information on correlation, nor need it.
    errors = 1 / (num_blocks * lasting**2)
    weights = lasting**2 / (lasting**2).sum()
    common = float((weights * own).sum())
    scatter = float((weights * (own - common) ** 2).sum())
    between = max(scatter - float((weights * errors).sum()), 0.0)
    trust = between / (between + errors)
    drawn = common + trust * (own - common)
    left = np.sqrt(trust * errors + (1 - trust) ** 2 * float((weights**2 * errors).sum()))
    return np.asarray(np.clip(drawn + left, 0.0, MOST_CORRELATED), dtype=np.float64)


@dataclass(frozen=True)
class CommonVariance:
    """The common variance of scores of one kind, and its degrees of freedom."""

    variance: float
    degrees: float

    def moderate(self, variances: Floats, degrees: float) -> Floats:
        """Shrink variances of `degrees` degrees of freedom to the common one."""
        total = self.degrees * self.variance + degrees * variances
        return total / (self.degrees + degrees)


def find_common_variance(variances: Floats, degrees: float) -> CommonVariance:
    """Estimate the common variance by empirical Bayes (Smyth 2004, "moderated t").

    The more alike the variances of scores of one kind, shape [K] and each with `degrees` degrees of
    freedom, the more each is shrunk to the common one.
    """
    known = variances[variances > 0]
    if len(known) < 2:
        return CommonVariance(0.0, 0.0)
    logs = np.log(known)
    centred = logs - special.digamma(degrees / 2) + math.log(degrees / 2)
    excess = float(centred.var(ddof=1) - special.polygamma(1, degrees / 2))
    borrowed = 2 * _inverse_trigamma(excess) if excess > 0 else math.inf
    # The limit of the formula below, for scores that are practically alike.
    if borrowed > 1e4:
        return CommonVariance(math.exp(centred.mean()), MOST_BORROWED)
    level = float(np.exp(centred.mean() + special.digamma(borrowed / 2)) / (borrowed / 2))
    return CommonVariance(level, min(borrowed, MOST_BORROWED))


def _inverse_trigamma(value: float) -> float:
    """Newton's method on the reciprocal, which is nearly linear."""
    found = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(special.polygamma(1, found))
        step = trigamma * (1 - trigamma / value) / float(special.polygamma(2, found))
        found += step
        if abs(step) < 1e-9 * found:
            break
    return found
