"""Finalists: the best trial and the best of each scientific value, at most four."""

from made_trials import ACTIVATION, RATE, made_plan, made_trial
from perennial.studies.finalists import finalists

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


def test_a_range_has_no_values_to_confirm_one_by_one():
    space = {RATE: {"log": (1e-4, 1e-1)}}
    trials = [made_trial(number, {RATE: 10.0**-number}, [0.1 * number]) for number in range(1, 4)]
    assert finalists(made_plan(nuisance={}, scientific=space), trials) == (3,)
