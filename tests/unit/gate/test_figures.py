"""What a model measures by itself: with an interval, and with how true its probabilities are."""

import json

import numpy as np
import polars as pl
import pytest
from kfp import dsl

from perennial.engine.evaluation.resampling import Blocks
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.task import load_task
from perennial.gate.comparison import Contender, Match
from perennial.gate.figures import calibration_of, classification_of, figures_of
from small_models import OPTIONS, TASK, stream, write_snapshot

ROWS, DAYS = 1000, 20


@pytest.fixture
def task(tmp_path):
    return load_task(TASK, OPTIONS, write_snapshot(tmp_path / "data", stream(days=40)).task_columns)


def contender(task, predictions, labels):
    labels = labels.astype(float)
    return Contender(
        task, Scored(labels, predictions, labels, np.ones(len(labels)), pl.DataFrame())
    )


def match(challenger, blocks):
    return Match(challenger, None, blocks, blocks.draws(500), confidence=0.95)


@pytest.fixture
def guesses():
    random = np.random.default_rng(0)
    predictions = random.random(ROWS)
    return predictions, random.random(ROWS) < predictions


def test_every_metric_has_an_interval_around_it(task, guesses):
    blocks = Blocks(np.arange(ROWS) % DAYS, DAYS, "day")
    found = figures_of(match(contender(task, *guesses), blocks), ["roc_auc", "log_loss"])
    assert [figure.metric for figure in found] == ["roc_auc", "log_loss"]
    for figure in found:
        assert figure.interval.low < figure.value < figure.interval.high
        assert figure.interval.high - figure.interval.low < 0.1
    assert abs(found[0].value - 5 / 6) < 0.03, "the area for labels drawn by uniform probabilities"


def test_a_single_block_gives_no_uncertainty(task, guesses):
    blocks = Blocks(np.zeros(ROWS, dtype=np.int64), 1, "day")
    (figure,) = figures_of(match(contender(task, *guesses), blocks), ["log_loss"])
    assert figure.interval is None


def test_calibration_bins_hold_equally_many_rows(task, guesses):
    bins = calibration_of(contender(task, *guesses))
    assert [each.rows for each in bins] == [ROWS // 10] * 10
    assert max(abs(each.predicted - each.observed) for each in bins) < 0.15


def test_overconfidence_shows(task, guesses):
    predictions, labels = guesses
    sure = calibration_of(contender(task, np.round(predictions), labels))
    assert (sure[0].predicted, sure[-1].predicted) == (0.0, 1.0)
    assert 0.1 < sure[0].observed < 0.4


def test_calibration_of_many_classes_uses_the_answer(task):
    task.kind = "multiclass"
    predictions = np.array([[0.8, 0.1, 0.1], [0.2, 0.2, 0.6]])
    bins = calibration_of(contender(task, predictions, np.array([0, 1])))
    assert [(each.predicted, each.observed) for each in bins] == [(0.6, 0.0), (0.8, 1.0)]


def test_tasks_without_probabilities_have_no_calibration(task, guesses):
    task.kind = "regression"
    assert calibration_of(contender(task, *guesses)) == ()


def test_the_confusion_matrix_and_the_roc_curve_are_ones_that_kubeflow_takes(task, guesses):
    predictions, labels = guesses
    found = classification_of(contender(task, predictions, labels))
    assert found.classes == (0, 1)
    assert np.sum(found.counts) == ROWS
    assert found.counts[1][1] == (labels & (predictions > 0.5)).sum()
    false, true, thresholds = zip(*found.roc, strict=True)
    assert (false[0], true[0], false[-1], true[-1]) == (0.0, 0.0, 1.0, 1.0)
    assert np.isfinite(thresholds).all()
    assert 10 < len(found.roc) <= 101
    shown = dsl.ClassificationMetrics()
    shown.log_confusion_matrix([str(name) for name in found.classes], list(map(list, found.counts)))
    shown.log_roc_curve(list(false), list(true), list(thresholds))
    json.dumps(shown.metadata, allow_nan=False)


def test_rows_of_one_class_have_no_curve_and_a_regression_has_neither(task, guesses):
    predictions, labels = guesses
    assert classification_of(contender(task, predictions, np.zeros(ROWS))).roc == ()
    task.kind = "regression"
    assert classification_of(contender(task, predictions, labels)) is None
