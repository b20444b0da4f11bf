"""Intervals rest on independent blocks, and fast forms equal the metric recomputed row by row."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import DataSection, SplitSection, TaskColumns
from perennial.engine.evaluation import resampling
from perennial.engine.evaluation.resampling import (
    Blocks,
    blocks_of,
    influences,
    resample,
    standard_error,
)
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.metrics.metric import UndefinedMetricError
from perennial.engine.task import load_task

COLUMNS = TaskColumns(label="label", features={"x": "Float64"})
STATE = {"numeric": {}, "categories": {}, "target_mean": 0.0, "target_scale": 1.0, "rows": 1}


def task_of(kind, classes=2):
    name = "TabularRegression" if kind == "regression" else "TabularClassification"
    task = load_task(f"perennial.tasks.tabular:{name}", {}, COLUMNS)
    names = [] if kind == "regression" else [str(number) for number in range(classes)]
    shares = [1 / classes] * len(names)
    task.load_state({**STATE, "classes": names, "class_shares": shares})
    return task


def scored_of(kind, rows=600, classes=3, seed=0):
    random = np.random.default_rng(seed)
    if kind == "regression":
        labels = random.normal(50, 10, rows)
        predictions = labels + random.normal(size=rows)
    elif kind == "binary":
        labels = random.integers(0, 2, rows).astype(float)
        # Rounded, so that there are ties.
        predictions = np.round(np.clip(0.3 * labels + 0.7 * random.random(rows), 0, 1), 2)
    else:
        labels = random.integers(0, classes, rows).astype(float)
        predictions = random.dirichlet(np.ones(classes), rows)
        predictions[np.arange(rows), labels.astype(int)] += 0.5
        predictions /= predictions.sum(axis=1, keepdims=True)
    frame = pl.DataFrame({"label": labels})
    return Scored(random.random(rows), predictions, labels, np.ones(rows), frame)


def row_by_row(task, metric, scored, blocks, draws):
    values = []
    for counts in draws:
        rows = np.repeat(np.arange(len(scored.labels)), counts[blocks.index].astype(int))
        values.append(task.score(scored.predictions[rows], scored.labels[rows])[metric])
    return np.array(values)


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("binary", "roc_auc"),
        ("binary", "log_loss"),
        ("binary", "f1"),
        ("binary", "expected_calibration_error"),
        ("multiclass", "matthews_corrcoef"),
        ("multiclass", "top_2_accuracy"),
        ("multiclass", "brier"),
        ("multiclass", "roc_auc"),
        ("multiclass", "log_loss"),
        ("regression", "rmse"),
        ("regression", "mae"),
        ("regression", "r2"),
        ("regression", "wape"),
        ("regression", "pinball_90"),
    ],
)
def test_the_fast_form_of_a_metric_equals_the_metric_of_the_drawn_rows(kind, metric, monkeypatch):
    task = task_of(kind, 3 if kind == "multiclass" else 2)
    task.metrics = directions_of(metric)
    scored = scored_of(kind)
    blocks = Blocks(np.arange(600) // 30, 20, "day")
    draws = blocks.draws(25)
    monkeypatch.delattr(resampling, "_row_by_row")  # the slow way must not be needed
    fast = resample(task, metric, scored, blocks, draws)
    np.testing.assert_allclose(fast, row_by_row(task, metric, scored, blocks, draws), rtol=1e-9)


@pytest.mark.parametrize("metric", ["roc_auc", "average_precision"])
def test_a_draw_of_a_single_class_counts_as_another_draw(metric):
    task = task_of("binary")
    task.metrics = {**task.metrics, metric: "maximize"}
    labels = np.repeat([0.0, 1.0, 0.0], 20)
    labels[0] = 1.0
    predictions = np.random.default_rng(0).random(60)
    frame = pl.DataFrame({"label": labels})
    scored = Scored(predictions, predictions, labels, np.ones(60), frame)
    blocks = Blocks(np.arange(60) // 20, 3, "group")
    draws = np.array([[0.0, 0, 3], [1, 1, 1], [0, 3, 0], [2, 1, 0]])
    values = resample(task, metric, scored, blocks, draws)
    one, two = row_by_row(task, metric, scored, blocks, draws[[1, 3]])
    np.testing.assert_allclose(values, [one, one, two, two], rtol=1e-12)
    with pytest.raises(UndefinedMetricError, match="every resampling"):
        resample(task, metric, scored, blocks, draws[[0, 2]])


def test_a_task_with_its_own_meaning_of_a_metric_keeps_it():
    task = task_of("regression")
    original = task.score
    task.score = lambda p, y: {name: 2 * value for name, value in original(p, y).items()}
    scored = scored_of("regression")
    blocks = Blocks(np.arange(600) // 30, 20, "day")
    draws = blocks.draws(500)
    values = resample(task, "rmse", scored, blocks, draws)
    assert len(values) == resampling.SLOW_DRAWS
    np.testing.assert_allclose(values[:9], row_by_row(task, "rmse", scored, blocks, draws[:9]))


def test_the_loss_is_averaged_over_rows_not_over_blocks():
    scored = scored_of("binary", rows=100)
    blocks = Blocks(np.array([0] * 90 + [1] * 10), 2, "day")
    draws = np.array([[2.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    values = resample(task_of("binary"), "loss", scored, blocks, draws)
    losses = scored.losses
    expected = [losses[:90].mean(), losses.mean(), losses[90:].mean()]
    np.testing.assert_allclose(values, expected)


def test_rows_of_one_day_are_one_block_and_the_zone_of_the_column_counts():
    start = datetime(2025, 3, 1, 20)
    times = [start + timedelta(hours=hour) for hour in range(48)]
    data = DataSection(uri="u", label="label", time="time", group="user")
    naive = pl.DataFrame({"time": times, "label": 0, "user": 0})
    zoned = naive.with_columns(pl.col("time").dt.replace_time_zone("UTC"))
    moved = zoned.with_columns(pl.col("time").dt.convert_time_zone("Asia/Tokyo"))
    assert np.bincount(blocks_of(naive, data, SplitSection()).index).tolist() == [4, 24, 20]
    assert np.bincount(blocks_of(zoned, data, SplitSection()).index).tolist() == [4, 24, 20]
    assert np.bincount(blocks_of(moved, data, SplitSection()).index).tolist() == [19, 24, 5]
    assert blocks_of(naive, data, SplitSection()).unit == "day"


def test_a_split_by_group_has_groups_as_blocks_whatever_their_times():
    days = [datetime(2025, 3, day) for day in (1, 2, 3, 1, 2, 3)]
    frame = pl.DataFrame({"time": days, "label": 0, "user": ["a", "a", "a", "b", "b", "b"]})
    data = DataSection(uri="u", label="label", time="time", group="user")
    by_group = blocks_of(frame, data, SplitSection(method="group"))
    assert (by_group.unit, by_group.index.tolist()) == ("group", [0, 0, 0, 1, 1, 1])
    assert blocks_of(frame, data, SplitSection()).unit == "day"


def test_without_a_time_groups_are_blocks_and_without_groups_rows():
    frame = pl.DataFrame({"label": [0] * 5, "user": ["b", "a", "b", None, "a"]})
    grouped = blocks_of(frame, DataSection(uri="u", label="label", group="user"), SplitSection())
    assert grouped.unit == "group"
    assert grouped.count == 3
    assert grouped.index[0] == grouped.index[2] != grouped.index[1] == grouped.index[4]
    assert blocks_of(frame, DataSection(uri="u", label="label"), SplitSection()).count == 5


@pytest.mark.parametrize("columns", [{"time": "time"}, {"group": "user"}], ids=str)
def test_blocks_are_the_same_in_parts(monkeypatch, columns):
    days = [datetime(2025, 1, 1) + timedelta(days=int(d)) for d in np.arange(500) * 7 % 90]
    frame = pl.DataFrame(
        {
            "label": np.zeros(500),
            "time": [None if number % 50 == 3 else day for number, day in enumerate(days)],
            "user": [None if number % 9 == 0 else f"u{number % 31}" for number in range(500)],
        }
    )
    data = DataSection(uri="u", label="label", **columns)
    whole = blocks_of(frame, data, SplitSection())
    monkeypatch.setattr(resampling, "NUMBERS_AT_ONCE", 64)
    parts = blocks_of(frame, data, SplitSection())
    assert (parts.count, parts.unit) == (whole.count, whole.unit) == (len(whole.days), whole.unit)
    np.testing.assert_array_equal(parts.index, whole.index)
    np.testing.assert_array_equal(parts.days, whole.days)
    selected = np.arange(500) % 3 == 0
    kept, index = np.unique(whole.index[selected], return_inverse=True)
    np.testing.assert_array_equal(parts.at(selected).index, index)
    np.testing.assert_array_equal(parts.sizes(selected)[kept], np.bincount(index))


def test_a_long_history_is_cut_into_blocks_of_adjacent_days():
    days = [date(2020, 1, 1) + timedelta(days=day) for day in range(1000)]
    frame = pl.DataFrame({"time": days, "label": 0})
    blocks = blocks_of(frame, DataSection(uri="u", label="label", time="time"), SplitSection())
    assert blocks.count == 334
    assert (np.diff(blocks.index) >= 0).all()


@pytest.mark.parametrize("strange", [None, date(1900, 1, 28), date(2099, 12, 31)])
def test_days_are_not_joined_for_the_sake_of_one_strange_date(strange):
    days = [date(2024, month, day) for month in range(1, 13) for day in range(24, 29)]
    frame = pl.DataFrame({"time": [*days, *filter(None, [strange])]}).with_columns(label=0)
    blocks = blocks_of(frame, DataSection(uri="u", label="label", time="time"), SplitSection())
    assert blocks.count == frame.height


def test_days_far_apart_are_joined_where_there_are_too_many():
    days = [date(1990, 1, 1) + timedelta(days=7 * week) for week in range(1000)]
    frame = pl.DataFrame({"time": days, "label": 0})
    blocks = blocks_of(frame, DataSection(uri="u", label="label", time="time"), SplitSection())
    assert resampling.MAX_BLOCKS * 0.8 < blocks.count <= resampling.MAX_BLOCKS
    assert (np.diff(blocks.index) >= 0).all()


def test_many_rows_are_pooled_evenly():
    frame = pl.DataFrame({"label": np.zeros(10_000)})
    blocks = blocks_of(frame, DataSection(uri="u", label="label"), SplitSection())
    assert blocks.count == resampling.MAX_BLOCKS
    assert set(np.bincount(blocks.index)) == {25}


@pytest.mark.parametrize("pooled", [True, False])
def test_the_standard_error_of_a_mean_is_the_textbook_one(pooled):
    rows = 10_000 if pooled else 200
    random = np.random.default_rng(0)
    losses = random.exponential(size=rows)
    frame = pl.DataFrame({"label": np.zeros(rows)})
    blocks = blocks_of(frame, DataSection(uri="u", label="label"), SplitSection())
    scored = Scored(losses, losses, losses, np.ones(rows), frame)
    values = resample(task_of("regression"), "loss", scored, blocks, blocks.draws(4000))
    textbook = losses.std(ddof=1) / np.sqrt(rows)
    assert standard_error(values, blocks) == pytest.approx(textbook, rel=0.1)


@pytest.mark.parametrize("count", [8, 9, 30])
def test_days_are_drawn_alone_and_in_adjacent_pairs_and_each_equally_often(count):
    counts = Blocks(np.arange(count), count, "day").draws(40_000)
    assert (counts.sum(axis=1) == count).all()
    assert counts.mean(axis=0) == pytest.approx(np.ones(count), abs=0.05)
    assert np.cov(counts[0::2].T)[3, 4] < 0, "every second draw takes days one by one"
    covariance = np.cov(counts[1::2].T)
    assert covariance[3, 4] > 0.2, "today and tomorrow come together"
    assert covariance[2, 5] < 0


def test_few_days_and_other_blocks_are_drawn_one_by_one():
    for blocks in (Blocks(np.arange(7), 7, "day"), Blocks(np.arange(30), 30, "group")):
        assert blocks.run == 1
        assert np.cov(blocks.draws(20_000).T)[3, 4] < 0


@pytest.mark.parametrize("metric", ["roc_auc", "log_loss", "f1", "loss"])
def test_an_influence_is_what_a_block_adds_to_the_metric_of_the_others(metric):
    task, scored = task_of("binary"), scored_of("binary")
    task.metrics = {**task.metrics, **directions_of("f1")}
    blocks = Blocks(np.arange(600) // 60, 10, "day")
    found = influences(task, metric, scored, blocks)
    without = [scored.at(blocks.index != day).metric(task, metric) for day in range(10)]
    expected = 9 * (scored.metric(task, metric) - np.array(without))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


def test_days_that_happen_to_alternate_do_not_narrow_the_interval():
    alternating = np.tile([1.0, -1.0], 15)
    days, groups = (Blocks(np.arange(30), 30, unit) for unit in ("day", "group"))
    errors = [standard_error(each.draws(4000) @ alternating / 30, each) for each in (days, groups)]
    assert errors[0] == pytest.approx(errors[1], rel=0.05)


def test_equal_data_give_equal_draws():
    blocks = Blocks(np.arange(10), 10, "row")
    np.testing.assert_array_equal(blocks.draws(50), blocks.draws(50))
    assert (blocks.draws(50).sum(axis=1) == 10).all()


def test_rows_without_a_time_share_one_block_and_leave_the_days_apart():
    times = [datetime(2024, 1, day) for day in range(1, 31)] + [None, None]
    rows = pl.DataFrame({"y": [0] * 32, "t": pl.Series(times, dtype=pl.Datetime("us"))})
    blocks = blocks_of(rows, DataSection(uri="d", label="y", time="t"), SplitSection())
    assert blocks.count == 31
    assert blocks.index[30] == blocks.index[31]


class Measuring:
    """A language model's metrics, one that is not a function of means, and nothing else of a task."""

    kind = "statistic"
    statistics = ()

    def measure(self, name, predictions, labels):
        return self.score(predictions, labels)[name]

    def score(self, predictions, labels):
        loss, length = labels @ predictions / labels.sum()
        worst = float(predictions[:, 0].max())
        return {"perplexity": np.exp(loss), "bits_per_byte": loss / length, "worst": worst}


class Ranking(Measuring):
    """Statistics hold a score and a class each, and a class is not the mean of classes."""

    def score(self, predictions, labels):
        scores, classes = predictions.T
        if not set(classes) <= {0.0, 1.0}:
            raise ValueError("continuous format is not supported")
        return {"precision": float(classes[scores > 0.5].mean())}


def test_statistics_whose_mean_is_no_row_are_measured_row_by_row():
    random, rows = np.random.default_rng(2), 400
    statistics = np.stack([random.random(rows), (random.random(rows) < 0.5) * 1.0], axis=1)
    ones, frame = np.ones(rows), pl.DataFrame({"label": np.zeros(rows)})
    scored = Scored(statistics[:, 0], statistics, ones, ones, frame)
    blocks = Blocks(np.arange(rows) // 10, rows // 10, "group")
    draws, task = blocks.draws(20), Ranking()
    expected = row_by_row(task, "precision", scored, blocks, draws)
    assert resample(task, "precision", scored, blocks, draws) == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["perplexity", "bits_per_byte", "worst", "loss"])
def test_statistics_are_resampled_by_weight_as_if_row_by_row(metric):
    random, rows = np.random.default_rng(2), 400
    statistics = np.stack([random.exponential(size=rows), 1 + random.random(rows)], axis=1)
    weights = random.integers(1, 50, rows).astype(float)
    frame = pl.DataFrame({"label": np.zeros(rows)})
    scored = Scored(statistics[:, 0], statistics, weights, weights, frame)
    blocks = Blocks(np.arange(rows) // 10, rows // 10, "group")
    draws, task = blocks.draws(50), Measuring()
    found = resample(task, metric, scored, blocks, draws)
    if metric == "loss":
        drawn = [np.repeat(np.arange(rows), c[blocks.index].astype(int)) for c in draws]
        expected = [weights[at] @ statistics[at, 0] / weights[at].sum() for at in drawn]
    else:
        expected = row_by_row(task, metric, scored, blocks, draws)
    assert found == pytest.approx(np.array(expected), rel=1e-9)
