"""Effects: isolation plots, importance and interactions, with a null case for each."""

import math

import numpy as np
import pytest

from made_trials import ACTIVATION, DECAY, RATE, WIDTH, made_plan, made_trials
from perennial.studies.analysis.effects import best_of, explain_values, isolate
from perennial.studies.analysis.search import Search

SPACE = {
    RATE: {"log": (1e-4, 1e-1)},
    DECAY: {"log": (1e-6, 1e-1)},
    WIDTH: {"log_integer": (8, 512)},
}
ACTIVATIONS = {ACTIVATION: {"choices": ("relu", "gelu")}}


def searched(value, plan=None, **more):
    plan = plan or made_plan(SPACE)
    return Search.of(plan, made_trials(plan, value, **more))


def clear(effects):
    return [effect.options for effect in effects if effect.is_clear]


def test_the_one_hyperparameter_that_matters_is_found():
    found = explain_values(searched(lambda at: -((at[RATE] - 0.6) ** 2), noise=0.02))
    assert clear(found.main) == [(RATE,)]
    first = found.main[0]
    assert first.low < first.share < first.high
    assert first.share > 0.5
    assert "not distinguishable from noise" in found.text
    assert DECAY in found.text


def test_a_choice_that_matters_is_found():
    plan = made_plan(scientific=ACTIVATIONS)
    found = explain_values(searched(lambda at: at[ACTIVATION] == "gelu", plan, noise=0.3))
    assert clear(found.main) == [(ACTIVATION,)]


def test_noise_has_no_important_hyperparameter():
    searches = (searched(lambda at: 0.0, noise=1.0, seed=seed) for seed in range(40))
    wrong = [clear(found.main) or clear(found.pairs) for found in map(explain_values, searches)]
    assert sum(map(bool, wrong)) <= 7  # of 40, at 5% each for main effects and for pairs


def test_two_hyperparameters_that_interact_are_found():
    found = explain_values(
        searched(lambda at: -((at[RATE] - at[DECAY]) ** 2), noise=0.02, count=64)
    )
    assert clear(found.pairs) == [(RATE, DECAY)]
    assert "interact" in found.text


def test_additive_effects_do_not_interact():
    found = explain_values(searched(lambda at: at[RATE] + at[DECAY], noise=0.1, count=64, seed=1))
    assert set(clear(found.main)) == {(RATE,), (DECAY,)}
    assert clear(found.pairs) == []


def test_a_diverged_trial_does_not_hide_the_effect():
    found = explain_values(searched(lambda at: -1e6 if at[WIDTH] > 0.97 else at[RATE], noise=0.02))
    assert (RATE,) in clear(found.main)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_too_few_trials_report_it(count):
    found = explain_values(searched(lambda at: at[RATE], count=count))
    assert "too few" in found.text
    assert found.main == ()


def test_an_isolation_plot_has_the_best_of_each_value_over_all_others():
    plan = made_plan(scientific=ACTIVATIONS)
    search = searched(lambda at: 0.5 * at[RATE] + 0.2 * (at[ACTIVATION] == "gelu"), plan)
    first = isolate(search, deviation=0.01)[0]
    assert first.option == ACTIVATION, "scientific ones come first"
    relu, gelu = first.points
    assert (relu.value, gelu.value) == ("relu", "gelu")
    assert gelu.best - relu.best == pytest.approx(0.2, abs=0.05)
    assert relu.spread == pytest.approx(0.02)


def test_a_range_is_binned_on_its_own_scale():
    points = isolate(searched(lambda at: at[RATE]))[0].points
    assert [point.value for point in points] == [
        "0.0001 to 0.000562",
        "0.000562 to 0.00316",
        "0.00316 to 0.0178",
        "0.0178 to 0.1",
    ]
    assert [point.trials for point in points] == [8, 8, 8, 8]
    best = [point.best for point in points]
    assert best == sorted(best)


def test_more_trials_alone_do_not_make_a_value_look_better():
    values = np.random.default_rng(0).standard_normal(1000)
    assert best_of(values, 1) == pytest.approx(values.mean())
    assert best_of(values, 1000) == values.max()
    assert best_of(values, 2) == pytest.approx(1 / math.sqrt(math.pi), abs=0.1)
