"""Sampling: a pure function of plan and earlier trials, for each sampler and stage."""

import math
import subprocess
import sys

import pytest

from made_up_studies import MOMENTUM, NAME, RATE, WIDTH, made_up_plan, made_up_search, made_up_trial
from perennial.studies.sampling import propose, scientific_strata, shrink, space_of

CONDITIONAL = {
    "scientific": {NAME: {"choices": ["adamw", "sgd"]}},
    "nuisance": {
        RATE: {"log": [1e-4, 1.0]},
        MOMENTUM: {"linear": [0.0, 0.99], "when": {NAME: ["sgd"]}},
    },
}


def bowl(values):
    """The best learning rate is 0.01, for SGD 0.1."""
    best = -1.0 if values.get(NAME) == "sgd" else -2.0
    return (math.log10(values[RATE]) - best) ** 2


@pytest.mark.parametrize("sampler", ["quasi_random", "random", "grid", "tpe", "gp"])
def test_the_same_plan_and_trials_give_the_same_values(sampler):
    grid = {"nuisance": {RATE: {"log": [1e-4, 1.0], "grid_points": 16}}}
    plan = made_up_plan(sampler=sampler, seed=3, **(grid if sampler == "grid" else CONDITIONAL))
    trials = made_up_search(plan, bowl)
    again = [propose(plan, 13, trials[: plan.needed(13).stop]) for _ in range(2)]
    assert again == [trials[13].values] * 2
    assert len({str(trial.values) for trial in trials[1:]}) == 16
    other = made_up_plan(sampler=sampler, seed=4, **(grid if sampler == "grid" else CONDITIONAL))
    assert (propose(other, 13, trials[: plan.needed(13).stop]) == again[0]) == (sampler == "grid")


def test_quasi_random_trials_cover_each_part_of_the_space_evenly():
    plan = made_up_plan(nuisance={RATE: {"log": [1e-4, 1.0]}, "a.b": {"linear": [0.0, 1.0]}})
    points = [propose(plan, number, []) for number in range(1, 17)]
    cells = {(int(math.log10(p[RATE]) + 4), int(p["a.b"] * 3.999)) for p in points}
    assert len(cells) == 16


@pytest.mark.parametrize(("sampler", "trials"), [("tpe", 40), ("gp", 20)])
def test_a_sampler_that_follows_results_finds_the_best_values(sampler, trials):
    plan = made_up_plan(sampler=sampler, trials=trials, nuisance={RATE: {"log": [1e-4, 1.0]}})
    late = made_up_search(plan, bowl)[trials // 2 + 4 :]
    share = sum(trial.value < 0.25 for trial in late) / len(late)
    assert share >= 0.5  # by chance, a quarter


@pytest.mark.parametrize("sampler", ["quasi_random", "random"])
def test_scientific_values_are_compared_at_the_same_nuisance_values(sampler):
    """A question without an answer finds the same best trial for each value, but for its own."""
    plan = made_up_plan(sampler=sampler, trials=24, **CONDITIONAL)
    trials = [propose(plan, number, []) for number in range(1, 25)]
    pairs = list(zip(trials[::2], trials[1::2], strict=True))
    assert all((first[NAME], second[NAME]) == ("adamw", "sgd") for first, second in pairs)
    assert all(first[RATE] == second[RATE] for first, second in pairs)
    assert len({first[RATE] for first, _ in pairs}) == 12
    assert all(MOMENTUM in second and MOMENTUM not in first for first, second in pairs)


def test_many_scientific_values_are_searched_together():
    many = {"scientific": {WIDTH: {"choices": [8, 16, 32, 64, 128]}}}
    plan = made_up_plan(trials=16, nuisance={RATE: {"log": [1e-4, 1.0]}}, **many)
    trials = [propose(plan, number, []) for number in range(1, 17)]
    assert len({trial[RATE] for trial in trials}) == 16


def test_each_scientific_value_is_searched_by_as_many_trials():
    plan = made_up_plan(sampler="tpe", trials=24, **CONDITIONAL)
    assert scientific_strata(plan, space_of(plan)) == [{NAME: "adamw"}, {NAME: "sgd"}]
    trials = made_up_search(plan, bowl)
    names = [trial.values[NAME] for trial in trials[1:]]
    assert (names.count("adamw"), names.count("sgd")) == (12, 12)
    assert all((MOMENTUM in t.values) == (t.values[NAME] == "sgd") for t in trials[1:])


def test_an_infeasible_region_is_avoided_and_a_failed_trial_ignored():
    plan = made_up_plan(sampler="tpe", trials=60, nuisance={RATE: {"log": [1e-4, 1.0]}})
    trials = [made_up_trial(plan, 0, {RATE: 1e-3}, 0.3)]
    for number in range(1, 61):
        values = propose(plan, number, trials[: plan.needed(number).stop])
        state = "failed" if number % 7 == 0 else "infeasible" if values[RATE] > 0.1 else "complete"
        value = bowl(values) if state == "complete" else None
        trials.append(made_up_trial(plan, number, values, 0.0, state=state).model_copy(
            update={"value": value}))  # fmt: skip
    assert sum(trial.values[RATE] > 0.1 for trial in trials[30:]) <= 3  # by chance, 8


def test_the_second_stage_lies_around_the_best_trials_of_the_first():
    plan = made_up_plan(trials=32, exploit={"trials": 8}, **CONDITIONAL)
    explored = made_up_search(plan, bowl, range(33))
    shrunk = shrink(plan, explored)
    low, high = shrunk[RATE].log
    assert 1e-4 < low < 1e-2  # the optimum of one scientific value
    assert 1e-1 < high < 1.0  # and of the other
    assert shrunk[NAME] == plan.study.scientific[NAME]
    trials = made_up_search(plan, bowl)
    assert trials[:33] == explored
    assert all(
        trial.stage == "exploit" and low <= trial.values[RATE] <= high for trial in trials[33:]
    )


def test_a_choice_that_no_good_trial_has_is_dropped_but_not_a_scientific_one():
    choice = {"choices": ["good", "bad"]}
    plan = made_up_plan(
        scientific={"a.s": choice}, nuisance={"a.n": choice}, trials=16, exploit={"trials": 4}
    )
    trials = made_up_search(plan, lambda values: float(values["a.n"] == "bad"), range(17))
    shrunk = shrink(plan, trials)
    assert (shrunk["a.n"].choices, shrunk["a.s"].choices) == (("good",), ("good", "bad"))


@pytest.mark.parametrize("pruning", ["off", "asha"])
@pytest.mark.parametrize("sampler", ["quasi_random", "tpe"])
def test_a_trial_needs_those_that_came_so_many_before_it(sampler, pruning):
    plan = made_up_plan(sampler=sampler, pruning=pruning, parallel=4, exploit={"trials": 4})
    lagging = sampler == "tpe" or pruning == "asha"
    assert plan.needed(0) == range(0)
    assert plan.needed(3) == range(1)
    assert plan.needed(9) == (range(6) if lagging else range(1))
    assert plan.needed(18) == range(17)
    assert plan.needed(20) == range(17)


def test_the_baseline_has_the_values_of_the_contract():
    plan = made_up_plan(**CONDITIONAL)
    assert propose(plan, 0, []) == {NAME: "adamw", RATE: 1e-3}


def test_the_baseline_has_no_value_of_a_section_that_the_contract_lacks():
    """Whether averaging helps is asked of a contract without averaging."""
    averaging = {"training.averaging.decay": {"choices": [0.9, 0.99]}}
    plan = made_up_plan(scientific=averaging, nuisance={RATE: {"log": [1e-4, 1.0]}})
    assert propose(plan, 0, []) == {RATE: 1e-3}
    assert set(propose(plan, 1, [])) == {RATE, "training.averaging.decay"}


def test_seeds_are_shared_by_trials_and_fresh_for_confirmations():
    plan = made_up_plan(seed=7)
    seeds = [plan.search_seed(i) for i in range(3)] + [plan.confirm_seed(i) for i in range(3)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 6
    assert made_up_plan(seed=7, goal="in other words").study_digest == plan.study_digest
    assert made_up_plan(seed=8).study_digest != plan.study_digest


def test_reading_a_study_imports_neither_optuna_nor_scipy():
    program = (
        "import sys, perennial.cli, perennial.studies.space, perennial.studies.records\n"
        "import perennial.studies.store, perennial.engine.job\n"
        "sys.exit(str({'optuna', 'scipy', 'torch'} & set(sys.modules)).replace('set()', '') or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_width_is_searched_as_a_whole_number():
    plan = made_up_plan()
    widths = [propose(plan, number, [])[WIDTH] for number in range(1, 17)]
    assert all(isinstance(width, int) and 4 <= width <= 64 for width in widths)
    assert len(set(widths)) >= 10
