"""Noise between seeds: which ranking it explains, and how lucky the best of many trials was."""

import numpy as np
import pytest

from made_trials import RATE, made_plan, made_trial, made_trials
from perennial.studies.analysis.noise import measure_noise, winners_curse
from perennial.studies.analysis.search import Search

SEEDED = made_plan(seeds_per_trial=3)


def measured(value, noise, **more):
    trials = made_trials(SEEDED, value, noise=noise, **more)
    return measure_noise(Search.of(SEEDED, trials), trials)


def test_the_deviation_between_seeds_is_measured():
    found = measured(lambda at: at[RATE], noise=0.1, count=64)
    assert found.deviation == pytest.approx(0.1, rel=0.2)
    assert found.degrees == 64


def test_a_ranking_of_equals_is_noise():
    found = measured(lambda at: 0.5, noise=0.1)
    assert len(found.tied) > 10
    assert "ranking" in found.text
    assert "noise" in found.text
    assert found.seeds_needed > 3


def test_a_clear_winner_has_no_rivals():
    found = measured(lambda at: 1.0 if 0.4 < at[RATE] < 0.43 else 0.2 * at[RATE], noise=0.01)
    assert len(found.tied) == 1
    assert "better than all others" in found.text
    assert found.optimism < 0.01


def test_without_repeated_trainings_nothing_is_claimed():
    plan = made_plan()
    trials = made_trials(plan, lambda at: at[RATE])
    found = measure_noise(Search.of(plan, trials), trials)
    assert found.deviation is None
    assert found.optimism is None
    assert "not known" in found.text


def test_confirmations_measure_it_too():
    plan = made_plan()
    trials = made_trials(plan, lambda at: at[RATE])
    confirmed = [
        made_trial(number, trials[5].values, [value], stage="confirm", candidate=5)
        for number, value in ((32, 0.4), (33, 0.5), (34, 0.6))
    ]
    found = measure_noise(Search.of(plan, trials), [*trials, *confirmed])
    assert found.deviation == pytest.approx(0.1)


@pytest.mark.parametrize("count", [8, 32, 128])
@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_the_best_of_noisy_trials_is_too_good_by_what_is_estimated(count, spread):
    generator = np.random.default_rng(count)
    found, true = [], []
    for repetition in range(1000):
        real = spread * generator.standard_normal(count)
        shown = real + generator.standard_normal(count)
        if repetition < 40:
            found.append(winners_curse(shown, 1.0))
        true.append(shown.max() - real[shown.argmax()])
    assert np.mean(found) == pytest.approx(np.mean(true), abs=0.15)
