"""Coverage of the search space: each question has a case that it finds and one that it leaves."""

import pytest

from made_trials import ACTIVATION, DECAY, RATE, made_plan, made_trials
from perennial.studies.analysis.coverage import (
    count_good_points,
    find_boundaries,
    find_infeasible_regions,
)
from perennial.studies.analysis.search import Search

NARROW = {RATE: {"log": (1e-5, 1e-4)}, DECAY: {"log": (1e-6, 1e-1)}}
DROPOUT = "model.options.dropout"
KEPT = "training.averaging.decay"


def searched(plan, value, **more):
    return Search.of(plan, made_trials(plan, value, **more))


def bowl(best):
    """A quadratic whose best learning rate lies at a position; weight decay matters little."""
    return lambda at: -((at[RATE] - best) ** 2) - 0.1 * (at[DECAY] - 0.5) ** 2


def test_a_too_narrow_range_is_found_and_the_next_one_holds_the_optimum():
    search = searched(made_plan(NARROW), bowl(2.0), noise=0.02)  # the optimum is 1e-3
    (found,) = find_boundaries(search)
    assert (found.option, found.side) == (RATE, "high")
    low, high = found.proposed
    assert low < 1e-3 < high
    assert low > 1e-5, "the bad end is left out"
    assert "upper end" in found.text
    assert RATE in found.text


def test_the_lower_end_is_found_as_well():
    (found,) = find_boundaries(searched(made_plan(NARROW), bowl(-1.0), noise=0.02))
    assert found.side == "low"
    assert found.proposed[0] < 1e-6 < found.proposed[1]


@pytest.mark.parametrize("best", [0.2, 0.5, 0.8])
def test_an_optimum_inside_is_left_alone(best):
    assert find_boundaries(searched(made_plan(), bowl(best), noise=0.02, count=64)) == ()


def test_noise_alone_is_left_alone():
    found = [
        find_boundaries(searched(made_plan(), lambda at: 0.0, noise=1.0, seed=seed))
        for seed in range(20)
    ]
    assert sum(map(bool, found)) <= 2


def test_a_cliff_beyond_the_optimum_does_not_extend_the_range():
    def cliff(at):
        return None if at[RATE] > 0.9 else at[RATE]

    assert find_boundaries(searched(made_plan(), cliff)) == ()


def test_a_range_at_the_options_limit_cannot_be_extended():
    plan = made_plan({DROPOUT: {"linear": (0.0, 0.5)}, DECAY: {"log": (1e-6, 1e-1)}})
    search = searched(plan, lambda at: -at[DROPOUT], noise=0.02)
    (found,) = find_boundaries(search, accepts=lambda option, value: 0.0 <= value < 1.0)
    assert found.proposed is None
    assert "cannot be extended: at the option's limit" in found.text


def test_a_range_is_extended_up_to_the_options_limit():
    plan = made_plan({DROPOUT: {"linear": (0.0, 0.6)}, DECAY: {"log": (1e-6, 1e-1)}})
    search = searched(plan, lambda at: at[DROPOUT], noise=0.02)
    (found,) = find_boundaries(search, accepts=lambda option, value: 0.0 <= value < 1.0)
    assert 0.95 < found.proposed[1] < 1.0


def test_a_whole_number_stays_one():
    plan = made_plan({"model.options.layers": {"integer": (1, 4)}, DECAY: {"log": (1e-6, 1e-1)}})
    search = searched(plan, lambda at: at["model.options.layers"], noise=0.02)
    (found,) = find_boundaries(search)
    assert found.proposed == (3.0, 7.0)


def test_a_baseline_outside_of_the_range_that_beats_all_trials_is_found():
    plan = made_plan(NARROW)
    trials = made_trials(plan, bowl(0.5))
    outside = {RATE: 3e-3, DECAY: 1e-3}
    trials[0] = trials[0].model_copy(update={"values": outside, "value": 1.0})
    (found,) = find_boundaries(Search.of(plan, trials))
    assert found.side == "high"
    assert found.proposed[0] < 3e-3 < found.proposed[1]
    assert "the best trial is the baseline, above the range" in found.text


def test_a_worse_baseline_outside_of_the_range_is_left_alone():
    plan = made_plan(NARROW)
    trials = made_trials(plan, bowl(0.5))
    values = {RATE: 3e-3, DECAY: 0.0}  # zero has no place on a logarithmic scale
    trials[0] = trials[0].model_copy(update={"values": values, "value": -9.0})
    assert find_boundaries(Search.of(plan, trials)) == ()


def test_too_few_trials_show_nothing():
    assert find_boundaries(searched(made_plan(NARROW), bowl(2.0), count=8)) == ()


def test_a_lone_good_trial_is_not_enough():
    search = searched(made_plan(), lambda at: 1.0 if at[RATE] > 0.95 else 0.3 * at[DECAY])
    found = count_good_points(search)
    assert found.near_best < 5
    assert found.more_trials > 0
    assert "more trials" in found.text


def test_many_good_trials_are_enough():
    found = count_good_points(searched(made_plan(), bowl(0.5)))
    assert found.near_best >= 5
    assert found.more_trials == 0


def test_a_study_without_any_trial_is_reported():
    assert "no trial completed" in count_good_points(Search.of(made_plan(), [])).text


def test_an_infeasible_end_of_a_range_is_found():
    search = searched(made_plan(), lambda at: None if at[RATE] > 0.7 else at[DECAY])
    (found,) = find_infeasible_regions(search)
    assert found.option == RATE
    assert found.where.startswith(">=")
    assert found.infeasible_outside == 0
    assert found.infeasible_inside == found.inside
    assert found.proposed[0] == 1e-4
    assert 0.005 < found.proposed[1] < 0.02


@pytest.mark.parametrize("space", [{"log": (1e-6, 1e-1)}, {"log_integer": (1, 64)}])
@pytest.mark.parametrize("own", [0, 1])
def test_a_baseline_of_zero_does_not_hide_the_feasible_end_of_a_logarithmic_range(space, own):
    plan = made_plan({RATE: {"log": (1e-4, 1e-1)}, DECAY: space})
    trials = made_trials(plan, lambda at: None if at[DECAY] > 0.7 else at[RATE])
    values = {**trials[0].values, DECAY: own * trials[0].values[DECAY]}
    trials[0] = trials[0].model_copy(update={"values": values})
    (found,) = find_infeasible_regions(Search.of(plan, trials))
    axis = Search.of(plan, trials).ranges[DECAY]
    assert found.where.startswith(">=")
    assert found.proposed[0] == axis.bounds[0]
    assert 0.5 < axis.position(found.proposed[1]) < 0.75


@pytest.mark.parametrize("ends", [(0.999, 0.9999), (0.0, 0.9)])
def test_a_narrow_range_far_from_zero_is_cut_and_extended_like_any_other(ends):
    plan = made_plan({KEPT: {"linear": ends}, RATE: {"log": (1e-4, 1e-1)}})
    (found,) = find_infeasible_regions(
        searched(plan, lambda at: None if at[KEPT] > 0.6 else at[RATE])
    )
    axis = Search.of(plan, []).ranges[KEPT]
    assert 0.6 < axis.position(float(found.where.removeprefix(">= "))) < 0.7
    assert axis.position(found.proposed[0]) == 0.0
    assert 0.5 < axis.position(found.proposed[1]) <= 0.6
    search = searched(plan, lambda at: at[KEPT], noise=0.02)
    (boundary,) = find_boundaries(search, accepts=lambda option, value: value < 1.0)
    assert boundary.at_edge == boundary.best > 1
    assert ends[1] < boundary.proposed[1] < 1.0
    assert f"to {boundary.proposed[1]:.10g} next" in boundary.text


def test_an_infeasible_choice_is_found():
    plan = made_plan(scientific={ACTIVATION: {"choices": ("relu", "exp")}})
    search = searched(plan, lambda at: None if at[ACTIVATION] == "exp" else at[RATE])
    (found,) = find_infeasible_regions(search)
    assert (found.option, found.where) == (ACTIVATION, "= exp")


def test_scattered_infeasible_trials_follow_no_rule():
    plan = made_plan()
    trials = made_trials(plan, lambda at: at[RATE])
    for number in (3, 11, 19):
        trials[number] = trials[number].model_copy(update={"state": "infeasible", "value": None})
    assert find_infeasible_regions(Search.of(plan, trials)) == ()


def test_feasible_trials_have_no_infeasible_region():
    assert find_infeasible_regions(searched(made_plan(), bowl(0.5))) == ()
