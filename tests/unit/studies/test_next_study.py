"""The next study is one that can be run, whatever the search found."""

import json
import tomllib

import numpy as np
import pytest

from made_up_studies import MOMENTUM, NAME, RATE, STEPS, WIDTH, made_up_plan, made_up_search
from perennial.contracts.study import StudyJudgement
from perennial.studies.analysis.coverage import find_boundaries
from perennial.studies.analysis.search import Search
from perennial.studies.conclusion import analyze_search
from perennial.studies.config import StudySection
from perennial.studies.design import find_flaws
from perennial.studies.next_study import propose_next, write_study

SPACE = {
    RATE: {"log": (1e-4, 1.0)},
    NAME: {"choices": ("adamw", "sgd", "lion")},
    MOMENTUM: {"choices": (0.8, 0.9, 0.99), "when": {NAME: ("sgd", "lion")}},
    WIDTH: {"integer": (4, 64), "step": 4.0},
}


def judged(**changes):
    fields = {
        "study": "s", "model": "made-up", "snapshot": "s", "metric": "log_loss",
        "decision": "inconclusive", "winner": None, "confidence": 0.95, "summary": "open",
    }  # fmt: skip
    return StudyJudgement(**fields | changes)


def infeasible(trial):
    return trial.model_copy(update={"state": "infeasible", "value": None, "trainings": ()})


def next_of(plan, trials, **findings):
    """Return the next study as its file is loaded again, held against the design's rules."""
    found = analyze_search(plan, trials).model_copy(update=findings)
    section, reasons = propose_next(plan, trials, found, judged())
    loaded = tomllib.loads(write_study(section, reasons))["study"]
    read = StudySection.model_validate_json(json.dumps(loaded))
    assert read == section
    training = {**plan.contract["training"], **({"steps": read.steps} if read.steps else {})}
    draft = plan.model_copy(update={"study": read, "contract": {"training": training}})
    assert find_flaws(read, lambda: draft, lambda values: "") == []
    return read, reasons


def surface(values):
    """AdamW is best, near a rate of 0.01; the width matters little."""
    distance = abs(np.log10(values[RATE]) + 2)
    return 1 + distance + (values[NAME] != "adamw") + values.get(WIDTH, 4) / 1000


def test_a_choice_that_all_good_trials_share_is_fixed():
    plan = made_up_plan(nuisance=SPACE, trials=32)
    section, reasons = next_of(plan, made_up_search(plan, surface))
    assert section.fixed[NAME] == "adamw"
    assert NAME not in section.nuisance
    assert MOMENTUM not in section.nuisance, "it has no meaning with AdamW"
    assert any("adamw" in reason for reason in reasons)


def test_steps_that_are_searched_are_not_set_as_well():
    space = {RATE: SPACE[RATE], STEPS: {"integer": (40, 90)}}
    plan = made_up_plan(nuisance=space, trials=16)
    trials = made_up_search(plan, lambda values: abs(np.log10(values[RATE]) + 2))
    length = analyze_search(plan, trials).length
    longer = length.model_copy(update={"advice": "longer", "next_steps": 900})
    section, _ = next_of(plan, trials, length=longer)
    assert section.steps is None


@pytest.mark.parametrize(("best", "trials"), [(9, 20), (2, 16)], ids=["extended", "inside"])
def test_the_next_grid_has_a_trial_for_each_point(best, trials):
    space = {WIDTH: {"integer": (1, 4)}, RATE: {"log": (1e-4, 1e-2), "grid_points": 4}}
    plan = made_up_plan(nuisance=space, trials=16, sampler="grid")

    def value(values):
        outside = 9 * (values[WIDTH] > 4)  # the baseline
        return outside + abs(values[WIDTH] - best) + 0.01 * abs(np.log10(values[RATE]) + 3)

    searched = made_up_search(plan, value)
    boundaries = find_boundaries(Search.of(plan, searched))
    section, _ = next_of(plan, searched, boundaries=boundaries)
    assert section.trials >= trials
    assert bool(boundaries) == (best > 4)


@pytest.mark.parametrize(("steps", "pruning"), [(20, "off"), (60, "asha")])
def test_trials_too_short_for_a_rung_are_not_pruned(steps, pruning):
    plan = made_up_plan(nuisance={RATE: SPACE[RATE]}, trials=16, pruning="asha", reduction=4)
    trials = made_up_search(plan, lambda values: abs(np.log10(values[RATE]) + 2))
    length = analyze_search(plan, trials).length
    shorter = length.model_copy(update={"advice": "shorter", "next_steps": steps})
    section, _ = next_of(plan, trials, length=shorter)
    assert (section.steps, section.pruning) == (steps, pruning)


def test_an_infeasible_choice_is_left_out():
    plan = made_up_plan(nuisance=SPACE, trials=48)
    found = made_up_search(plan, lambda values: abs(np.log10(values[RATE]) + 2))
    trials = [infeasible(each) if each.values[NAME] == "lion" else each for each in found]
    section, reasons = next_of(plan, trials)
    assert section.nuisance[NAME].choices == ("adamw", "sgd")
    assert section.nuisance[MOMENTUM].when == {NAME: ("sgd",)}
    assert any("lion" in reason for reason in reasons)


@pytest.mark.parametrize("seed", range(25))
def test_whatever_was_found_the_next_study_can_be_run(seed):
    """Random spaces, surfaces, infeasible regions and ties."""
    generator = np.random.default_rng(seed)
    names = [name for name in SPACE if name in {RATE, NAME} or generator.random() < 0.7]
    chosen = {name: SPACE[name] for name in names}
    roles = ({NAME: chosen.pop(NAME)}, chosen) if generator.random() < 0.5 else ({}, chosen)
    plan = made_up_plan(scientific=roles[0], nuisance=roles[1], trials=24, seed=int(seed))
    weights = generator.normal(0, 1, 4)
    worst = generator.choice(["adamw", "sgd", "lion", "none"])
    limit = 10 ** generator.uniform(-3, 0)

    def value(values):
        place = np.log10(values[RATE]) + 2
        return 5 + weights[0] * place + weights[1] * place**2 + weights[2] * len(values[NAME])

    trials = []
    for each in made_up_search(plan, value):
        is_bad = each.values[NAME] == worst or each.values[RATE] > limit
        trials.append(infeasible(each) if is_bad and each.number else each)
    if sum(each.value is not None for each in trials) > 4:
        next_of(plan, trials)


@pytest.mark.parametrize(("low", "proposed"), [(2, 1), (1, None)])
def test_a_range_on_a_logarithmic_scale_is_not_extended_to_zero(low, proposed):
    widths = {RATE: {"log": (1e-4, 1.0)}, WIDTH: {"log_integer": (low, 64)}}
    plan = made_up_plan(nuisance=widths, trials=32)
    trials = made_up_search(plan, lambda values: 1 + values[WIDTH] / 10)
    search = Search.of(plan, trials)
    (found,) = find_boundaries(search, lambda option, value: True)
    assert found.option == WIDTH
    assert (found.proposed and found.proposed[0]) == proposed
    section, _ = next_of(plan, trials, boundaries=(found,))
    assert section.nuisance[WIDTH].log_integer[0] == 1


def test_trials_of_one_value_are_analysed_like_others():
    plan = made_up_plan(trials=32)
    trials = made_up_search(plan, lambda values: 1.0)
    assert "all trials have the same value" in analyze_search(plan, trials).effects.text
    assert next_of(plan, trials)[0].nuisance == plan.study.nuisance
