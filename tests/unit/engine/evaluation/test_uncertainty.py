"""Bounds hold where days resemble the days before, are skewed, or hardly any of them matters."""

import numpy as np
import pytest
from scipy.signal import lfilter
from scipy.stats import norm, t

from perennial.engine.evaluation.resampling import Blocks
from perennial.engine.evaluation.uncertainty import (
    LOWEST_CORRELATION,
    SKEWNESS_WEIGHT,
    Estimate,
    Spread,
)

NEEDED = 12.0  # the gate's default `min_effective_days`


def days_of(random, correlation, count, trials, shape="normal"):
    """Days of an autoregressive process, with mean 0 and variance 1, shape [trials, days]."""
    noise = random.normal(size=(trials, count + 50))
    series = lfilter([np.sqrt(1 - correlation**2)], [1, -correlation], noise)[:, -count:]
    if shape == "storms":  # many days a little better, few days much worse
        return 1.0 + np.log(norm.sf(series))
    if shape == "log-normal":  # the same with a skewness of 6
        return (np.exp(0.5) - np.exp(series)) / 2.16
    return t.ppf(norm.cdf(series), 3) / np.sqrt(3) if shape == "heavy" else series


def estimate(series, unit="day", days=None):
    """The mean of days, as the gate estimates an improvement."""
    count = len(series)
    blocks = Blocks(np.arange(count), count, unit, days)
    error = series.std(ddof=1) / np.sqrt(count)
    return Estimate.of(series.mean(), error, Spread.of(series - series.mean(), blocks))


def share_promoted(series):
    found = [estimate(each) for each in series]
    return np.mean([e.interval(0.95).low > 0 and e.effective >= NEEDED for e in found])


@pytest.mark.parametrize("shape", ["normal", "storms", "heavy", "log-normal"])
@pytest.mark.parametrize("correlation", [0.0, 0.3, 0.6, 0.9])
@pytest.mark.parametrize(
    ("count", "trials"),
    [(4, 300), (27, 1000)]
    + [pytest.param(n, 6000, marks=pytest.mark.full) for n in (4, 8, 9, 12, 18, 27, 40, 60)],
)
def test_equal_challengers_are_promoted_in_one_of_twenty_tests_at_most(
    count, trials, correlation, shape
):
    series = days_of(np.random.default_rng(count), correlation, count, trials, shape)
    chance = 2.5 * np.sqrt(0.05 * 0.95 / trials)
    assert share_promoted(series) <= 0.065 + chance / (2 if trials > 1000 else 1)


def test_a_true_improvement_of_independent_days_is_still_found():
    series = 0.5 + days_of(np.random.default_rng(0), 0.0, 27, 1000)
    plain = np.mean(series.mean(1) / series.std(1, ddof=1) * np.sqrt(27) > 1.77)
    assert plain > share_promoted(series) > plain - 0.08


def test_chance_correlation_widens_the_interval_of_independent_days_no_more_than_it_narrows_it():
    series = days_of(np.random.default_rng(6), 0.0, 27, 1000)
    found = np.array([estimate(each).correlation for each in series])
    assert abs(np.median(found)) < 0.05
    assert found.min() == LOWEST_CORRELATION


def test_correlated_days_are_worth_fewer_independent_ones():
    random = np.random.default_rng(1)
    worth = [
        np.median([estimate(each).effective for each in days_of(random, rho, 60, 100)])
        for rho in (0.0, 0.6, 0.9)
    ]
    assert worth[0] > 45
    assert 7 < worth[1] < 20
    assert worth[2] < 5


def test_days_with_gaps_between_them_are_less_alike():
    series = days_of(np.random.default_rng(2), 0.6, 27, 1)[0]
    apart = np.concatenate([start + np.arange(9) for start in (0, 30, 60)])
    assert estimate(series, days=apart).effective > estimate(series).effective


def test_weekly_blocks_are_adjacent_to_each_other():
    series = days_of(np.random.default_rng(3), 0.8, 40, 1)[0]
    weekly = estimate(series, days=7 * np.arange(40))
    assert weekly.correlation == pytest.approx(estimate(series).correlation)
    assert weekly.correlation > 0.5


def test_groups_and_rows_have_no_yesterday():
    series = np.sort(np.random.default_rng(4).normal(size=30))
    for unit in ("group", "row"):
        found = estimate(series, unit)
        assert found.correlation == 0.0
        assert found.error == pytest.approx(series.std(ddof=1) / np.sqrt(30))


def test_days_that_happen_to_alternate_hardly_narrow_the_interval():
    found, alone = (estimate(np.tile([1.0, -1.0], 15), unit) for unit in ("day", "group"))
    assert found.correlation == LOWEST_CORRELATION
    assert 0.7 * alone.error < found.error < alone.error


@pytest.mark.parametrize("gap", [1, 7])
def test_alternating_days_with_gaps_have_a_finite_error(gap):
    series = np.tile([1.0, -1.0], 8) + np.linspace(0.0, 0.1, 16)
    days = gap * np.arange(16) + (np.arange(16) > 7)  # one gap that is no multiple of the others
    assert 0.0 < estimate(series, days=days).error < np.inf


def test_rare_losses_widen_the_lower_bound_and_rare_gains_the_upper_one():
    series = days_of(np.random.default_rng(5), 0.0, 27, 1, "storms")[0]
    losses, gains = (estimate(each).interval(0.95) for each in (series, -series))
    assert losses.estimate - losses.low > losses.high - losses.estimate
    assert losses.low == pytest.approx(-gains.high)


@pytest.mark.parametrize(("shape", "true"), [("storms", -2.0), ("normal", 0.0)])
def test_few_days_show_the_skewness_of_their_distribution(shape, true):
    series = days_of(np.random.default_rng(7), 0.0, 200, 50, shape)
    shown = [estimate(each).skewness * np.sqrt(200) / SKEWNESS_WEIGHT for each in series]
    noise = np.sqrt(6 / 200)
    assert abs(np.mean(shown) - true) < (2 * noise if true else noise / 2)


def test_a_bound_and_the_probability_of_it_agree():
    for skewness in (-0.6, 0.0, 0.6):
        found = Estimate(0.2, 0.1, 12.0, skewness=skewness)
        upper = found.interval(0.95).high
        assert found.probability_below(upper) == pytest.approx(0.05)


def test_few_blocks_that_matter_are_few_blocks():
    series = np.zeros(60)
    series[[3, 20, 41]] = [1.0, -1.2, 0.9]
    found = estimate(series)
    assert found.effective < NEEDED
    assert found.interval(0.95).low < 0


def test_few_blocks_widen_the_interval():
    two, many = (Estimate.of(0.0, 1.0, Spread(0.0, 1.0, n, n, 0.0)) for n in (2, 300))
    assert two.interval(0.95).low < 3 * many.interval(0.95).low < 0
    assert many.interval(0.95).low == pytest.approx(-1.65, rel=0.01)


def test_equal_days_are_equal():
    found = estimate(np.full(9, 0.25))
    assert (found.correlation, found.effective, found.interval(0.95).low) == (0.0, 9, 0.25)
