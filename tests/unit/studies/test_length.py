"""Length of the trainings: what the curves of the best trials ask for."""

import numpy as np

from made_trials import RATE, curve, made_plan, made_trial
from perennial.studies.analysis.length import advise_length
from perennial.studies.analysis.search import Search

STEPS = np.arange(1, 41) / 40


def advised(shape, noise=0.0):
    generator = np.random.default_rng(0)
    trials = []
    for number in range(3):
        values = shape(STEPS) + noise * generator.standard_normal(len(STEPS))
        trial = made_trial(number, {RATE: 0.01}, [float(values.max())])
        training = trial.trainings[0].model_copy(update={"evaluations": curve(values.tolist())})
        trials.append(trial.model_copy(update={"trainings": (training,)}))
    return advise_length(Search.of(made_plan(), trials))


def test_curves_that_still_rise_ask_for_longer_trainings():
    found = advised(lambda step: 0.5 + 0.4 * step, noise=0.002)
    assert found.advice == "longer"
    assert found.is_compute_bound
    assert 400 < found.next_steps <= 800
    assert "compute-bound" in found.text


def test_curves_that_are_flat_early_ask_for_shorter_ones():
    found = advised(lambda step: 0.9 - 0.4 * np.exp(-step * 30), noise=0.002)
    assert found.advice == "shorter"
    assert found.is_compute_bound is False
    assert found.next_steps < 400


def test_curves_that_end_in_time_are_left_alone():
    found = advised(lambda step: 0.9 - 0.4 * np.exp(-step * 6) - 0.01 * np.maximum(step - 0.7, 0))
    assert found.advice == "enough"
    assert found.next_steps == 400


def test_overfitting_is_diagnosed_for_the_training_that_shows_it():
    found = advised(lambda step: 0.5 + step * (0.5 - step), noise=0.002)
    assert any("overfitting" in text for each in found.curves for text in each.findings)


def test_few_evaluations_advise_nothing():
    trial = made_trial(0, {RATE: 0.01}, [0.5])
    training = trial.trainings[0].model_copy(update={"evaluations": curve([0.1, 0.3, 0.5])})
    trials = [trial.model_copy(update={"trainings": (training,)})]
    found = advise_length(Search.of(made_plan(), trials))
    assert found.advice == "unknown"
    assert "3 evaluations are too few" in found.text


def test_without_curves_nothing_is_advised():
    trials = [made_trial(0, {RATE: 0.01}, [0.5])]
    found = advise_length(Search.of(made_plan(), trials))
    assert found.advice == "unknown"
    assert "no learning curve" in found.text
