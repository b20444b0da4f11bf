"""Among checkpoints within the tolerance of the best, the curve decides."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import CheckpointRecord
from perennial.engine.evaluation.resampling import Blocks, direction_of
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.metrics.metric import UndefinedMetricError
from perennial.engine.task import load_task
from perennial.select_checkpoint.selection import (
    Candidate,
    select,
)
from perennial.tasks.tabular import TabularRegression

ROWS = 1000
BLOCKS = Blocks(np.arange(ROWS) // 25, 40, "day")
LABELS = np.linspace(-2.0, 2.0, ROWS)
SHARED = np.random.default_rng(0).normal(size=ROWS)


@pytest.fixture(scope="module")
def task():
    columns = TaskColumns(label="label", features={"x": "Float64"})
    made = load_task("perennial.tasks.tabular:TabularRegression", {}, columns)
    state = {"numeric": {}, "categories": {}, "classes": [], "class_shares": []}
    made.load_state({**state, "target_mean": 0.0, "target_scale": 1.0, "rows": 1})
    return made


def checkpoint(step, error, *, own_noise=0.05, kept_as=("best",)):
    """A checkpoint whose predictions are off by `error`, mostly on the same rows as the others."""
    random = np.random.default_rng(step)
    errors = error * SHARED + own_noise * random.normal(size=ROWS)
    frame = pl.DataFrame({"label": LABELS})
    scored = Scored(errors**2, LABELS + errors, LABELS, np.ones(ROWS), frame)
    return CheckpointRecord(step=step, uri=f"/{step}", metrics={}, kept_as=kept_as), scored


def chosen(task, checkpoints, metric="rmse", *, tolerance=1.0, limits=None, improving=False):
    candidates = [Candidate(*each) for each in checkpoints]
    return select(
        task, candidates, BLOCKS, metric=metric, tolerance=tolerance,
        limits=limits or {}, improving=improving,
    )  # fmt: skip


def test_a_clearly_better_checkpoint_wins_wherever_it_lies(task):
    for step in (1, 2, 3):
        errors = {1: 1.2, 2: 1.2, 3: 1.2, step: 1.0}
        selection = chosen(task, [checkpoint(s, e) for s, e in errors.items()])
        assert selection.chosen.step == step
        assert ": best rmse (" in selection.reason
        assert ("no earlier checkpoint" in selection.reason) == (step != 1)


def test_within_noise_the_earliest_is_chosen(task):
    errors = {30: 0.99, 10: 1.0, 20: 1.0}
    near = [checkpoint(step, error, own_noise=0.3) for step, error in errors.items()]
    selection = chosen(task, near)
    assert selection.best.step != 10
    assert selection.chosen.step == 10
    assert "within the tolerance of the best" in selection.reason
    assert [candidate.step for candidate in selection.candidates] == [10, 20, 30]


def test_the_difference_is_paired_instead_of_comparing_intervals(task):
    """Both share the noise of the rows, so a difference below each one's own error is clear."""
    selection = chosen(
        task, [checkpoint(1, 1.02, own_noise=0.01), checkpoint(2, 1.0, own_noise=0.01)]
    )
    early, late = selection.candidates
    assert early.metrics["rmse"] - late.metrics["rmse"] < late.standard_error
    assert selection.chosen == late


def test_without_tolerance_the_best_figure_wins(task):
    candidates = [checkpoint(step, 1.0, own_noise=0.3) for step in (10, 20, 30)]
    selection = chosen(task, candidates, tolerance=0.0)
    assert selection.chosen == selection.best


def test_equal_checkpoints_give_the_earliest(task):
    first = checkpoint(1, 1.0)
    twin = (first[0].model_copy(update={"step": 2, "uri": "/2"}), first[1])
    assert chosen(task, [twin, first], tolerance=0.0).chosen.step == 1


def test_of_equal_weights_and_their_average_the_plain_ones_win(task):
    plain, better = checkpoint(1, 1.0), checkpoint(2, 0.5)
    tied = [(*plain, True), plain]
    assert chosen(task, tied, tolerance=0.0).chosen.title == "step 1"
    averaged = chosen(task, [*tied, (*better, True), checkpoint(2, 1.0)])
    assert averaged.chosen.title == "step 2, averaged"
    assert averaged.last.title == "step 2"
    assert "step 2, averaged: best rmse" in averaged.reason
    assert [each.title for each in averaged.candidates] == [
        "step 1", "step 1, averaged", "step 2", "step 2, averaged",
    ]  # fmt: skip


def test_a_maximized_metric_is_maximized(task):
    selection = chosen(task, [checkpoint(1, 0.5), checkpoint(2, 0.1)], metric="r2")
    assert selection.chosen.metrics["r2"] == max(c.metrics["r2"] for c in selection.candidates)
    assert selection.chosen.step == 2


def test_what_the_last_and_the_best_would_have_shipped_is_reported(task):
    selection = chosen(task, [checkpoint(1, 1.0), checkpoint(2, 1.5, kept_as=("last",))])
    figures = selection.figures("rmse")
    assert figures["validation/last_rmse"] > 1.3 > figures["validation/best_rmse"]
    assert figures["validation/chosen_step"] == 1.0


def test_a_checkpoint_with_broken_numbers_is_no_candidate(task):
    broken = checkpoint(2, 1.0)
    broken[1].losses[3] = np.nan
    assert [c.step for c in chosen(task, [checkpoint(1, 1.0), broken]).candidates] == [1]
    with pytest.raises(PerennialError, match="not finite"):
        chosen(task, [broken])


class WithoutFigure(TabularRegression):
    """Has no error to speak of on a model that is never wrong."""

    def score(self, predictions, labels):
        figures = super().score(predictions, labels)
        return figures if (predictions != labels).any() else dict.fromkeys(figures, np.nan)


def test_a_metric_without_a_value_is_no_best_figure(task):
    strange = WithoutFigure(task.options, task.columns)
    strange.load_state(task.state())
    silent = checkpoint(1, 0.0, own_noise=0.0)
    assert [c.step for c in chosen(strange, [silent, checkpoint(2, 1.0)]).candidates] == [2]
    with pytest.raises(PerennialError, match="not finite"):
        chosen(strange, [silent])


def test_one_checkpoint_is_chosen_and_called_the_only_one(task):
    assert chosen(task, [checkpoint(7, 1.0)]).reason == "step 7: the only checkpoint kept"


def test_a_metric_must_exist(task):
    assert direction_of(task, "r2", "selection.metric") == "maximize"
    assert direction_of(task, "loss", "selection.metric") == "minimize"
    with pytest.raises(PerennialError, match="rmse, mae, r2 and loss"):
        direction_of(task, "auc", "selection.metric")
    with pytest.raises(PerennialError, match=r"selection\.limits = 'auc' is not a metric"):
        chosen(task, [checkpoint(7, 1.0)], limits={"auc": 0.5})


def test_the_best_that_breaks_a_limit_is_not_chosen_and_the_reason_reports_it(task):
    """An outlier costs the mean absolute error little and the squared one much."""
    outlier = checkpoint(1, 0.3)
    outlier[1].predictions[:4] = 30.0
    plain = checkpoint(2, 0.9)
    free = chosen(task, [outlier, plain], metric="mae", tolerance=0.0)
    assert free.chosen.step == 1
    guarded = chosen(task, [outlier, plain], metric="mae", limits={"rmse": 1.0}, tolerance=0.0)
    assert (guarded.chosen.step, guarded.best.step) == (2, 2)
    assert guarded.breaches[1] == ()
    assert "above the limit (1)" in guarded.breaches[0][0]
    assert "step 1 has a better mae, but its rmse (" in guarded.reason
    assert guarded.shortfalls[0][0] < 0


def test_a_checkpoint_that_breaks_a_limit_is_not_taken_for_being_earlier(task):
    near = [checkpoint(step, error, own_noise=0.3) for step, error in ((10, 1.0), (20, 0.99))]
    early, late = chosen(task, near, tolerance=3.0).candidates
    assert chosen(task, near, tolerance=3.0).chosen == early
    between = (early.metrics["mae"] + late.metrics["mae"]) / 2
    assert chosen(task, near, tolerance=3.0, limits={"mae": between}).chosen == late


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({"r2": -10.0}, True),
        ({"r2": 0.5}, False),
        ({"rmse": 5.0, "loss": 5.0}, True),
        ({"rmse": 5.0, "loss": 0.1}, False),
    ],
)
def test_limits_hold_in_the_direction_of_their_metric(task, limits, kept):
    only = checkpoint(1, 1.0)
    only[1].labels[:] = np.random.default_rng(5).normal(size=ROWS)
    if kept:
        assert chosen(task, [only], metric="mae", limits=limits).chosen.step == 1
    else:
        with pytest.raises(PerennialError, match="no checkpoint is within the limits"):
            chosen(task, [only], metric="mae", limits=limits)


def test_a_figure_at_its_limit_keeps_it(task):
    only = checkpoint(1, 1.0)
    at = chosen(task, [only]).candidates[0].metrics["mae"]
    assert chosen(task, [only], limits={"mae": at}).chosen.step == 1


def test_the_order_of_candidates_does_not_matter(task):
    some = [checkpoint(step, 1.0, own_noise=0.3) for step in (10, 20, 30)]
    assert chosen(task, some) == chosen(task, some[::-1])


def test_a_mean_of_checkpoints_comes_after_their_own_weights(task):
    plain = checkpoint(3, 1.0)
    mean = (*plain, False, (1, 3))
    selection = chosen(task, [mean, plain], tolerance=0.0)
    assert [each.title for each in selection.candidates] == ["step 3", "mean of steps 1, 3"]
    assert selection.chosen.title == selection.last.title == "step 3"


def test_within_noise_the_latest_is_chosen_while_the_curve_still_improves(task):
    errors = {10: 1.0, 20: 0.99, 30: 1.0, 40: 1.4}
    near = [checkpoint(step, error, own_noise=0.3) for step, error in errors.items()]
    selection = chosen(task, near, improving=True)
    assert selection.best.step != 30
    assert selection.chosen.step == 30
    assert "latest checkpoint, as the curve still improves, within" in selection.reason
    assert chosen(task, near, tolerance=0.0, improving=True).chosen == selection.best


def test_while_the_curve_improves_the_plain_weights_of_the_latest_step_win_a_tie(task):
    first, last = checkpoint(1, 1.0), checkpoint(3, 1.0)
    tied = [first, last, (*last, True), (*last, False, (1, 3))]
    assert chosen(task, tied, improving=True).chosen.title == "step 3"
    better = (last[0], checkpoint(9, 0.5)[1], False, (1, 3))
    assert chosen(task, [first, last, better], improving=True).chosen.members == (1, 3)


def test_the_reason_says_whether_any_other_lies_on_the_preferred_side(task):
    best_first = [checkpoint(1, 1.0), checkpoint(2, 1.3)]
    assert "earlier" not in chosen(task, best_first).reason
    assert (
        "no later checkpoint is within the tolerance"
        in chosen(task, best_first, improving=True).reason
    )
    best_last = [checkpoint(1, 1.0), checkpoint(2, 0.5)]
    assert "later" not in chosen(task, best_last, improving=True).reason


def test_a_metric_that_the_rows_do_not_define_chooses_nothing(task):
    record, scored = checkpoint(1, 1.0)
    same = replace(scored, labels=np.ones(ROWS))
    with pytest.raises(UndefinedMetricError, match="r2 is undefined on these 1,000 rows"):
        chosen(task, [(record, same)], metric="r2")
    with pytest.raises(PerennialError, match="its r2 has a limit but is undefined"):
        chosen(task, [(record, same)], limits={"r2": 0.5})
