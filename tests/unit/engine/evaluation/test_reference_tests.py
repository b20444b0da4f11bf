"""The textbook tests give the textbook's figures, and stay silent where they do not fit."""

import numpy as np
import pytest
from scipy.stats import norm

from perennial.contracts.data import TaskColumns
from perennial.engine.evaluation.reference_tests import delong, mcnemar, reference_test
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.task import load_task


def by_pairs(ours, theirs, positive):
    """DeLong's test written out over all pairs of a positive and a negative."""
    parts = []
    for scores in (ours, theirs):
        gaps = scores[positive][:, None] - scores[~positive][None, :]
        parts.append((gaps > 0) + 0.5 * (gaps == 0))
    difference = parts[0] - parts[1]
    rows, columns = difference.mean(axis=1), difference.mean(axis=0)
    variance = rows.var(ddof=1) / len(rows) + columns.var(ddof=1) / len(columns)
    return norm.sf(difference.mean() / np.sqrt(variance))


@pytest.mark.parametrize("digits", [1, 8])
def test_delong_equals_the_sum_over_all_pairs_also_with_ties(digits):
    random = np.random.default_rng(0)
    positive = random.random(120) < 0.3
    scores = [np.round(positive + random.normal(size=120), digits) for _ in range(2)]
    assert delong(*scores, positive) == pytest.approx(by_pairs(*scores, positive), rel=1e-9)


def test_mcnemar_is_the_sign_test_of_the_rows_that_differ():
    ours = np.array([True] * 9 + [False] * 1 + [True] * 50 + [False] * 40)
    theirs = np.array([False] * 9 + [True] * 1 + [True] * 50 + [False] * 40)
    assert mcnemar(ours, theirs) == pytest.approx(11 / 1024)  # 9 or 10 heads of 10
    assert mcnemar(ours, ours) == 1.0


@pytest.mark.parametrize("test", ["DeLong", "McNemar"])
def test_without_a_difference_and_with_independent_rows_they_err_as_often_as_they_say(test):
    random, wrong, trials = np.random.default_rng(1), 0, 400
    for _ in range(trials):
        positive = random.random(300) < 0.4
        ours, theirs = positive + random.normal(size=(2, 300))
        if test == "DeLong":
            probability = delong(ours, theirs, positive)
        else:
            probability = mcnemar((ours > 0.5) == positive, (theirs > 0.5) == positive)
        wrong += probability < 0.05
    assert 0.02 <= wrong / trials <= 0.08


def test_equal_scores_and_single_classes_prove_nothing():
    scores = np.linspace(0, 1, 10)
    assert delong(scores, scores, scores > 0.5) == 1.0
    assert delong(scores, -scores, scores > 2) == 1.0
    assert delong(scores, -scores, scores > 0.5) == 0.0


def task_of(classes):
    columns = TaskColumns(label="label", features={"x": "Float64"})
    task = load_task("perennial.tasks.tabular:TabularClassification", {}, columns)
    names = [str(number) for number in range(classes)]
    state = {"numeric": {}, "categories": {}, "classes": names, "target_mean": 0.0, "rows": 1}
    task.load_state({**state, "class_shares": [1 / classes] * classes, "target_scale": 1.0})
    return task


@pytest.mark.parametrize(
    ("metric", "classes", "test"),
    [
        ("roc_auc", 2, "DeLong"),
        ("accuracy", 2, "McNemar"),
        ("accuracy", 3, "McNemar"),
        ("roc_auc", 3, None),
        ("log_loss", 2, None),
    ],
)
def test_each_metric_has_its_test_or_none(metric, classes, test):
    random = np.random.default_rng(2)
    labels = random.integers(0, classes, 400).astype(float)
    good = np.eye(classes)[labels.astype(int)] * 2 + random.random((400, classes))
    bad = random.random((400, classes))
    scored = [
        Scored(labels, each[:, 1] / 3 if classes == 2 else each, labels, np.ones(400), None)
        for each in (good, bad)
    ]
    opinion = reference_test(task_of(classes), metric, *scored, 0.95)
    assert (opinion and opinion.test) == test
    if opinion:
        assert opinion.is_better
        assert not reference_test(task_of(classes), metric, *scored[::-1], 0.95).is_better
