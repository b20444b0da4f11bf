"""What blocks owe to their neighbours, against simulated autoregressions and closed forms."""

import numpy as np
import pytest

from perennial.detect_drift.block_noise import (
    compare_means,
    estimate_correlations,
    find_common_variance,
)


def autoregression(random, length, correlation):
    values = [random.normal()]
    for _ in range(length - 1):
        values.append(correlation * values[-1] + np.sqrt(1 - correlation**2) * random.normal())
    return np.array(values)


def test_independent_blocks_give_the_textbook_error():
    assert compare_means(0.0, 0.0, 12, (0,)) == pytest.approx((1 + 1 / 12, 11))
    assert compare_means(0.0, 0.0, 12, (2, 3))[0] == pytest.approx(1 / 2 + 1 / 12)


@pytest.mark.parametrize("noise", [0.0, 0.5])
@pytest.mark.parametrize("correlation", [0.3, 0.6, 0.9])
def test_correlated_blocks_give_the_error_that_simulation_finds(correlation, noise):
    """Also with the noise of few rows: its share of what the reference shows is known."""
    random = np.random.default_rng(0)
    streams = np.array([autoregression(random, 16, correlation) for _ in range(20_000)])
    streams = streams + noise * random.normal(size=streams.shape)
    reference, window = streams[:, :13], streams[:, 15]
    shown = reference.var(axis=1, ddof=1).mean()
    variance = (window - reference.mean(axis=1)).var() / shown
    factor, degrees = compare_means(correlation, noise**2 / shown, 13, (2,))
    assert factor == pytest.approx(variance, rel=0.05)
    assert degrees < 12


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_many_columns_tell_their_common_correlation(correlation):
    random = np.random.default_rng(1)
    found = [
        estimate_correlations(
            np.array([autoregression(random, 20, correlation) for _ in range(12)]).T, np.zeros(12)
        ).mean()
        for _ in range(50)
    ]
    assert correlation - 0.05 <= np.mean(found) <= correlation + 0.2


def test_columns_that_vary_alike_lend_each_other_certainty():
    random = np.random.default_rng(2)
    alike = random.chisquare(11, size=20) / 11
    common = find_common_variance(alike, 11)
    assert common.variance == pytest.approx(1, rel=0.2)
    assert common.degrees > 20
    assert np.ptp(common.moderate(alike, 11)) < np.ptp(alike) / 2
    unlike = alike * 10.0 ** np.arange(-10, 10)
    own = find_common_variance(unlike, 11)
    assert own.degrees < 2
    assert own.moderate(unlike, 11)[-1] == pytest.approx(unlike[-1], rel=0.2)


def test_one_column_keeps_its_variance():
    assert find_common_variance(np.array([3.0]), 11).moderate(np.array([3.0]), 11) == 3.0
