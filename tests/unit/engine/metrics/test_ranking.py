"""Our own metrics equal scikit-learn's."""

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from perennial.engine.metrics.probabilities import log_losses
from perennial.engine.metrics.ranking import roc_auc


@pytest.mark.parametrize("levels", [2, 10, 10_000])
@pytest.mark.parametrize("share", [0.01, 0.5, 0.9])
def test_area_equals_scikit_learns_with_and_without_ties(levels, share):
    generator = np.random.default_rng(levels)
    positive = generator.uniform(size=3000) < share
    scores = generator.integers(0, levels, 3000) / levels + 0.1 * positive
    assert roc_auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores), abs=1e-12)


@pytest.mark.parametrize(
    ("scores", "area"), [([0.1, 0.9], 1.0), ([0.9, 0.1], 0.0), ([0.5, 0.5], 0.5)]
)
def test_area_of_two_rows(scores, area):
    assert roc_auc(np.array(scores), np.array([False, True])) == area


@pytest.mark.parametrize("classes", [2, 5])
def test_log_loss_equals_scikit_learns(classes):
    generator = np.random.default_rng(classes)
    labels = generator.integers(0, classes, 500)
    predictions = generator.dirichlet(np.ones(classes), 500).clip(1e-6, 1)
    predictions /= predictions.sum(axis=1, keepdims=True)
    expected = log_loss(labels, predictions, labels=np.arange(classes))
    given = predictions[:, 1] if classes == 2 else predictions
    assert log_losses(given, labels.astype(float)).mean() == pytest.approx(expected, abs=1e-9)


def test_a_certain_mistake_costs_much_but_not_infinitely_much():
    assert log_losses(np.array([0.0]), np.array([1.0]))[0] == pytest.approx(-np.log(1e-7))
