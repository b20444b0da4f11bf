"""Length of the trainings: what the curves of the best trials ask for."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

from made_trials import RATE, curve, made_plan, made_trial
from perennial.studies import report
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


def with_metric(points, name, values):
    return tuple(
        point.model_copy(update={"metrics": point.metrics | {name: value}})
        for point, value in zip(points, values, strict=True)
    )


def test_the_length_is_advised_by_what_trials_are_compared_by():
    """The weights are best early; their moving average, which decides, rises to the end."""
    noise = 0.002 * np.random.default_rng(0).standard_normal(len(STEPS))
    plain, rising = (0.52 - 0.1 * STEPS).tolist(), (0.5 + 0.4 * STEPS + noise).tolist()
    plan, charts = made_plan(), []
    alone = with_metric(curve(rising), "auc", plain)
    for points in (with_metric(alone, "averaged_auc", rising), alone):
        trial = made_trial(0, {RATE: 0.01}, [0.9])
        training = trial.trainings[0].model_copy(update={"evaluations": points})
        search = Search.of(plan, [trial.model_copy(update={"trainings": (training,)})])
        charts.append((advise_length(search), charted(search)))
    (with_average, drawn), (without, plainly_drawn) = charts
    assert with_average.advice == "longer"
    assert with_average.curves[0].best_step == 400
    assert drawn == [max(pair) for pair in zip(plain, rising, strict=True)]
    assert without.curves[0].best_step == 10
    assert plainly_drawn == plain


def charted(search):
    """The first curve that the study's page draws."""
    drawn = []

    def keep(series, **labels):
        drawn.extend(value for _, value in next(iter(series.values())))
        return ""

    findings = SimpleNamespace(length=SimpleNamespace(text="", curves=()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "line_chart", keep)
        report._add_curves(MagicMock(), search, findings)
    return drawn


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
