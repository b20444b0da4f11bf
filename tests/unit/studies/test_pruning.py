"""Pruning by successive halving: rungs, and who goes on."""

import pytest

from made_up_studies import RATE, made_up_plan, made_up_trial
from perennial.contracts.training import EvaluationPoint
from perennial.studies.pruning import best_until, prune, rungs

PLACES = [10, 30]


def curve(*values):
    return {
        10 * i: EvaluationPoint(step=10 * i, train_loss=None, metrics={"log_loss": value})
        for i, value in enumerate(values, start=1)
    }


def earlier(plan, *values):
    return [made_up_trial(plan, i, {RATE: 0.1}, value) for i, value in enumerate(values)]


def test_rungs_are_evaluations_a_factor_apart():
    assert rungs(90, 10, 3) == [10, 30]
    assert rungs(150, 15, 3) == [15, 45]
    assert rungs(1000, 100, 2) == [100, 200, 500]
    assert rungs(100, 50, 3) == []


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@pytest.mark.parametrize(("value", "is_pruned"), [(0.35, True), (0.25, False), (0.15, False)])
def test_a_trial_goes_on_among_the_best_third(direction, value, is_pruned):
    plan = made_up_plan(direction, pruning="asha")
    sign = 1 if direction == "minimize" else -1
    others = earlier(plan, *(sign * v - 0.1 * 1 for v in (0.2, 0.3, 0.4, 0.5, 0.6)))
    found = prune(plan, [10], 9, curve(sign * value), others)
    assert (found is not None) == is_pruned
    if found is not None:
        assert found.step == 10
        assert "0.3" in found.reason or "0.2" in found.reason


def test_the_first_trials_and_the_baseline_are_never_pruned():
    plan = made_up_plan(pruning="asha")
    assert prune(plan, PLACES, 2, curve(9.0), earlier(plan, 0.1)) is None
    assert prune(plan, PLACES, 0, curve(9.0), earlier(plan, 0.1, 0.1, 0.1)) is None
    assert prune(made_up_plan(), PLACES, 9, curve(9.0), earlier(plan, 0.1, 0.1, 0.1)) is None


def test_a_trial_is_compared_at_each_rung_by_its_best_until_there():
    plan = made_up_plan(pruning="asha")
    others = earlier(plan, 0.5, 0.6, 0.7)  # 0.6, 0.7, 0.8 at step 10; 0.53, 0.63, 0.73 at 30
    assert prune(plan, PLACES, 9, curve(0.55), others) is None
    assert prune(plan, PLACES, 9, curve(0.55, 0.9, 0.9), others).step == 30
    assert prune(plan, PLACES, 9, curve(0.9), others).step == 10


def test_a_curve_with_a_gap_is_judged_later():
    plan = made_up_plan(pruning="asha")
    points = curve(9.0, 9.0, 9.0)
    del points[20]
    assert prune(plan, [30], 9, points, earlier(plan, 0.1, 0.1, 0.1)) is None


def test_the_best_until_a_step():
    points = list(curve(0.5, 0.3, 0.4).values())
    assert best_until(points, 20, "log_loss", "minimize") == 0.3
    assert best_until(points, 30, "log_loss", "maximize") == 0.5
    assert best_until(points, 5, "log_loss", "minimize") is None


def test_the_moving_average_of_the_weights_counts_where_it_is_better():
    points = [
        EvaluationPoint(step=10, train_loss=None, metrics={"auc": 0.6, "averaged_auc": 0.7}),
        EvaluationPoint(step=20, train_loss=None, metrics={"auc": 0.8, "averaged_auc": 0.75}),
    ]
    assert best_until(points, 10, "auc", "maximize") == 0.7
    assert best_until(points, 20, "auc", "maximize") == 0.8
