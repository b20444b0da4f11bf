"""Finalists: the best trial and the best of each scientific value, at most four."""

import pytest

from made_trials import ACTIVATION, RATE, made_plan, made_trial
from perennial.studies.analysis.search import Search, best_by_value, finalists

KEPT = "training.averaging.decay"
CHOICES = {ACTIVATION: {"choices": ("relu", "gelu", "tanh")}}


def trials_of(*rows):
    return [
        made_trial(number, {ACTIVATION: name, RATE: 0.01}, [value])
        for number, (name, value) in enumerate(rows)
    ]


def test_the_best_trial_comes_first_then_the_best_of_each_scientific_value():
    trials = trials_of(
        ("relu", 0.70), ("gelu", 0.80), ("gelu", 0.79), ("relu", 0.75), ("tanh", 0.7)
    )
    assert finalists(made_plan(scientific=CHOICES), trials) == (1, 3, 4)


def test_the_baseline_is_never_a_finalist_even_if_it_is_the_best():
    trials = trials_of(("relu", 0.90), ("gelu", 0.80), ("relu", 0.75))
    assert finalists(made_plan(scientific=CHOICES), trials) == (1, 2)
    assert finalists(made_plan(), trials) == (1,)


def test_a_minimized_metric_has_the_smallest_value_first():
    plan = made_plan().model_copy(update={"direction": "minimize"})
    assert finalists(plan, trials_of(("relu", 0.5), ("relu", 0.4), ("relu", 0.3))) == (2,)


def test_infeasible_and_confirming_trials_are_no_finalists():
    trials = [
        *trials_of(("relu", 0.5), ("relu", 0.6)),
        made_trial(2, {ACTIVATION: "gelu"}, None),
        made_trial(3, {ACTIVATION: "gelu"}, [0.9], stage="confirm", candidate=1),
    ]
    assert finalists(made_plan(scientific=CHOICES), trials) == (1,)
    assert finalists(made_plan(), trials[:1]) == ()


def test_there_are_four_finalists_at_most():
    space = {ACTIVATION: {"choices": tuple("abcdefg")}}
    rows = [(name, 0.1 * number) for number, name in enumerate("aabcdefg")]
    assert finalists(made_plan(scientific=space), trials_of(*rows)) == (7, 6, 5, 4)


def test_of_a_range_the_best_of_each_third_is_confirmed():
    plan = made_plan(nuisance={}, scientific={RATE: {"log": (1e-4, 1e-1)}})
    rates = (1e-2, 2e-4, 5e-4, 2e-3, 8e-3, 2e-2, 8e-2)
    values = (0.9, 0.5, 0.6, 0.8, 0.7, 0.3, 0.4)
    trials = [made_trial(n, {RATE: rate}, [values[n]]) for n, rate in enumerate(rates)]
    assert finalists(plan, trials) == (3, 2, 6)
    assert best_by_value(Search.of(plan, trials)) == {
        RATE: {"0.001 to 0.01": 3, "0.0001 to 0.001": 2, "0.01 to 0.1": 6}
    }


@pytest.mark.parametrize(
    ("dimension", "values"),
    [
        ({"linear": (0.999, 0.9999)}, (0.9991, 0.9995, 0.9998)),
        ({"integer": (10_000, 10_030)}, (10_001, 10_015, 10_029)),
        ({"linear": (70_000.0, 70_020.0), "step": 10.0}, (70_000.0, 70_010.0, 70_020.0)),
        ({"choices": (0.10001, 0.10002, 0.10003)}, (0.10001, 0.10002, 0.10003)),
        ({"linear": (0.0, 0.9)}, (0.1, 0.5, 0.8)),
    ],
    ids=["decay", "integer", "step", "choices", "wide"],
)
def test_values_that_differ_little_are_not_one(dimension, values):
    plan = made_plan(scientific={KEPT: dimension})
    trials = [made_trial(n, {KEPT: v}, [n / 10]) for n, v in enumerate((values[0], *values))]
    assert finalists(plan, trials) == (3, 2, 1)
