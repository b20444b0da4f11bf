"""Plots of the gate's page: ROC curve, confusion matrix and residuals, however many the rows."""

import re

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from perennial.engine.evaluation.scoring import ScoredBatch
from perennial.gate.plots import add_plots, confusion_counts, roc_points
from perennial.reports.page import Page

ROWS = 200_000
RANDOM = np.random.default_rng(3)


def scored(predictions, labels):
    ones = np.ones(len(labels))
    return ScoredBatch(ones, predictions, labels, ones)


def binary():
    labels = (RANDOM.random(ROWS) < 0.2).astype(float)
    return scored(np.clip(0.3 * labels + 0.7 * RANDOM.random(ROWS), 0, 1), labels)


def multiclass(classes):
    labels = RANDOM.integers(0, classes, ROWS).astype(float)
    scores = RANDOM.random((ROWS, classes)) + np.eye(classes)[labels.astype(int)]
    return scored(scores / scores.sum(axis=1, keepdims=True), labels)


def regression():
    predictions = RANDOM.normal(size=ROWS)
    return scored(predictions, predictions - 0.5 + RANDOM.normal(size=ROWS))


def html(kind, **models):
    page = Page("Evaluate model", outcome="neutral", summary="s")
    add_plots(page, models, kind)
    return page.html()


def test_roc_curve_has_the_area_of_all_rows_at_a_hundred_points():
    each = binary()
    x, y, _ = np.array(roc_points(each)).T
    assert len(x) <= 102
    assert np.trapezoid(y, x) == pytest.approx(
        roc_auc_score(each.labels, each.predictions), abs=2e-3
    )


def test_confusion_matrix_counts_rows_by_true_and_predicted_class():
    predictions = np.array([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    classes, counts = confusion_counts(predictions, np.array([0.0, 1.0, 1.0]))
    assert classes.tolist() == [0, 1]
    assert counts.tolist() == [[1, 0], [1, 1]]


@pytest.mark.parametrize("codes", [(0, 1, 2), (3, 17, 29)])
def test_the_axes_of_a_confusion_matrix_have_the_numbers_of_its_classes(codes):
    labels = np.repeat(np.array(codes, dtype=np.float64), 4)
    predictions = np.full((len(labels), 30), 0.01)
    predictions[np.arange(len(labels)), labels.astype(int)] = 0.7
    drawn = html("multiclass", challenger=scored(predictions, labels)).partition(
        "Confusion matrix of"
    )[0]
    ticks = re.findall(r'class="[em] q"[^>]*>(\d+)</text>', drawn)
    assert ticks == [str(code) for code in (*codes, *codes)]


def test_of_many_classes_the_most_frequent_are_drawn_and_the_rest_is_counted():
    _, counts = confusion_counts((each := multiclass(100)).predictions, each.labels)
    assert counts.shape == (24, 24)
    assert "rows of rarer classes are left out" in html("multiclass", challenger=each)


@pytest.mark.parametrize(
    ("kind", "made", "words", "figures"),
    [
        ("binary", binary, "ROC curve: each point", 3),
        ("multiclass", lambda: multiclass(5), "Confusion matrix of the champion", 2),
        ("regression", regression, " too high", 2),
        ("statistic", regression, "", 0),
    ],
)
def test_each_kind_of_task_has_its_plots_in_bounded_size(kind, made, words, figures):
    page = html(kind, challenger=made(), champion=made())
    assert words in page
    assert page.count("<svg") == figures
    assert len(page) < 90_000


def test_one_class_has_no_roc_curve_with_a_reason():
    each = scored(np.array([0.2, 0.7]), np.ones(2))
    assert "the test rows have one class" in html("binary", challenger=each)
