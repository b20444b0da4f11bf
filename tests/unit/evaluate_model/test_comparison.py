"""A challenger that is no better is rarely promoted, even where rows depend on each other."""

from dataclasses import replace
from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from components.contracts.data import DataSection, TaskColumns
from components.contracts.errors import PerennialError
from components.engine.evaluation.resampling import blocks_of
from components.engine.evaluation.scoring import Scored
from components.engine.task import load_task
from components.evaluate_model.comparison import (
    Contender,
    Match,
    compare,
    compare_slices,
    direction_of,
)

BY_DAY = DataSection(uri="u", label="label", time="day")
BY_ROW = DataSection(uri="u", label="label")
DAYS, ROWS_PER_DAY = 20, 20


@pytest.fixture(scope="module")
def task():
    columns = TaskColumns(label="label", features={"x": "Float64"})
    made = load_task("components.tasks.tabular:TabularClassification", {}, columns)
    state = {"numeric": {}, "categories": {}, "classes": ["0", "1"], "class_shares": [0.5, 0.5]}
    made.load_state({**state, "target_mean": 0.0, "target_scale": 1.0, "rows": 1})
    return made


def contenders(task, random, errors=(1.0, 1.0), days=DAYS, day_noise=0.8):
    """Two models with independent errors, part of which all rows of a day have in common."""
    rows = days * ROWS_PER_DAY
    signal = random.normal(size=rows)
    labels = (random.random(rows) < 1 / (1 + np.exp(-2 * signal))).astype(float)
    day = np.repeat(np.arange(days), ROWS_PER_DAY)
    frame = pl.DataFrame(
        {
            "label": labels,
            "day": [date(2025, 1, 1) + timedelta(days=int(number)) for number in day],
            "group": np.where(random.random(rows) < 0.5, "a", "b"),
        }
    )
    for error in errors:
        noise = 0.5 * random.normal(size=rows) + day_noise * random.normal(size=days)[day]
        predictions = 1 / (1 + np.exp(-2 * (signal + error * noise)))
        losses = -np.log(np.where(labels == 1, predictions, 1 - predictions))
        yield Contender(task, Scored(losses, predictions, labels, np.ones(rows), frame))


def match_of(challenger, champion, data=BY_DAY, resamples=300):
    blocks = blocks_of(challenger.scored.rows, data)
    return Match(challenger, champion, blocks, blocks.draws(resamples), 0.95)


def promotion_rate(task, metric, errors, data=BY_DAY, *, trials):
    random = np.random.default_rng(5)
    won = 0
    for _ in range(trials):
        match = match_of(*contenders(task, random, errors), data)
        won += compare(match, (metric,))[0].improvement.low > 0
    return won / trials


# Of 100 trials with probability 0.05 at most 9 succeed for 97 of 100 seeds; of 2,000, at most 119.
@pytest.mark.parametrize(
    ("trials", "most"), [(100, 0.09), pytest.param(2000, 0.06, marks=pytest.mark.full)]
)
@pytest.mark.parametrize("metric", ["roc_auc", "log_loss"])
def test_without_a_true_difference_promotion_is_rare(task, metric, trials, most):
    assert promotion_rate(task, metric, (1.0, 1.0), trials=trials) <= most


def test_taking_rows_for_independent_would_promote_too_often(task):
    assert promotion_rate(task, "log_loss", (1.0, 1.0), BY_ROW, trials=60) > 0.12


def test_a_true_difference_is_found(task):
    assert promotion_rate(task, "roc_auc", (0.2, 1.0), trials=20) > 0.9


def test_the_improvement_has_the_metrics_direction(task):
    good, bad = contenders(task, np.random.default_rng(0), (0.1, 2.0))
    for better, worse, sign in ((good, bad, 1), (bad, good, -1)):
        for comparison in compare(match_of(better, worse), ("roc_auc", "log_loss")):
            assert np.sign(comparison.improvement.estimate) == sign
            assert comparison.improvement.low < comparison.improvement.estimate


def test_equal_models_differ_by_exactly_nothing(task):
    model, _ = contenders(task, np.random.default_rng(0))
    improvement = compare(match_of(model, model), ("roc_auc",))[0].improvement
    assert (improvement.low, improvement.estimate, improvement.high) == (0.0, 0.0, 0.0)


def test_without_a_champion_only_the_challenger_is_measured(task):
    model, _ = contenders(task, np.random.default_rng(0))
    match = replace(match_of(model, model), champion=None)
    comparison = compare(match, ("roc_auc",))[0]
    assert comparison.champion is None
    assert comparison.improvement is None
    assert compare_slices(match, "roc_auc", ("group",), min_rows=20, limit=0.0) == ()


def spoilt(contender, selected):
    predictions = np.where(selected, 1 - contender.scored.predictions, contender.scored.predictions)
    return Contender(contender.task, replace(contender.scored, predictions=predictions))


def test_a_slice_that_regresses_is_found_and_the_others_are_not_blamed(task):
    champion, _ = contenders(task, np.random.default_rng(0), days=60)
    in_b = (champion.scored.rows["group"] == "b").to_numpy()
    slices = compare_slices(
        match_of(spoilt(champion, in_b), champion), "roc_auc", ("group",), min_rows=20, limit=0.0
    )
    assert [(entry.value, entry.regressed) for entry in slices] == [("a", False), ("b", True)]
    assert slices[1].improvement.estimate < -0.2
    assert slices[1].rows == in_b.sum()


def test_a_regression_within_the_limit_is_allowed(task):
    champion, _ = contenders(task, np.random.default_rng(0), days=60)
    everywhere = np.ones(len(champion.scored.labels), dtype=bool)
    match = match_of(spoilt(champion, everywhere), champion)
    slices = compare_slices(match, "roc_auc", ("group",), min_rows=20, limit=0.99)
    assert not any(entry.regressed for entry in slices)


def test_small_slices_are_left_out(task):
    champion, other = contenders(task, np.random.default_rng(0))
    match = match_of(other, champion)
    assert compare_slices(match, "roc_auc", ("group",), min_rows=10_000, limit=0.0) == ()


def test_many_slices_raise_no_more_false_alarms_than_one(task):
    random, alarms, trials = np.random.default_rng(1), 0, 20
    for _ in range(trials):
        challenger, champion = contenders(task, random, days=15)
        number = random.integers(0, 5, len(champion.scored.labels)).astype(str)
        rows = champion.scored.rows.with_columns(slice=pl.Series(number))
        pair = [
            replace(each, scored=replace(each.scored, rows=rows)) for each in (challenger, champion)
        ]
        match = match_of(*pair, resamples=200)
        slices = compare_slices(match, "log_loss", ("slice",), min_rows=20, limit=0.0)
        assert len(slices) == 5
        alarms += any(entry.regressed for entry in slices)
    assert alarms / trials <= 0.1


def test_missing_values_are_a_slice(task):
    champion, other = contenders(task, np.random.default_rng(0))
    rows = champion.scored.rows.with_columns(
        slice=pl.when(pl.col("group") == "a").then(None).otherwise(pl.lit(1))
    )
    pair = [replace(each, scored=replace(each.scored, rows=rows)) for each in (champion, other)]
    slices = compare_slices(match_of(*pair), "roc_auc", ("slice",), min_rows=20, limit=0.0)
    assert [entry.value for entry in slices] == ["(missing)", "1"]


def test_a_metric_that_the_task_lacks_is_named(task):
    assert direction_of(task, "loss") == "minimize"
    with pytest.raises(PerennialError, match="roc_auc, log_loss and loss"):
        direction_of(task, "f1")
