"""Of too many rows to sort, metrics of an order are computed from counts, nearly as exactly."""

import numpy as np
import pytest

from perennial.contracts.data import TaskColumns
from perennial.engine.evaluation.resampling import Blocks, influences, resample
from perennial.engine.evaluation.scoring import ScoredBatch
from perennial.engine.metrics import metric as of_metrics
from perennial.engine.metrics.catalogue import find_metric
from perennial.engine.metrics.metric import UndefinedMetricError
from perennial.engine.task import load_task

ROWS = 60_000


def scores(kind, share=0.2, rows=ROWS, seed=0):
    """Predictions and labels; `share` is that of the second class."""
    random = np.random.default_rng(seed)
    labels = (random.random(rows) < share).astype(float)
    signal = random.normal(size=rows) + 1.2 * labels
    if kind == "spread":
        return 1 / (1 + np.exp(-signal)), labels
    if kind == "tied":
        return np.round(1 / (1 + np.exp(-signal)), 2), labels
    if kind == "equal":
        return np.full(rows, 0.3), labels
    if kind == "narrow":
        return 0.5 + 1e-9 * signal, labels
    classes = random.integers(0, 4, rows)
    logits = random.normal(size=(rows, 4)) + 2 * np.eye(4)[classes]
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True), classes.astype(float)


@pytest.fixture
def binned(monkeypatch):
    """Measures a metric exactly, and in bins."""

    def measure(name, predictions, labels):
        exact = find_metric(name).measure(predictions, labels)
        with monkeypatch.context() as patched:
            patched.setattr(of_metrics, "EXACT_ROWS", 0)
            return exact, find_metric(name).measure(predictions, labels)

    return measure


@pytest.mark.parametrize("share", [0.001, 0.2, 0.99])
@pytest.mark.parametrize("kind", ["spread", "tied", "equal", "narrow", "classes"])
@pytest.mark.parametrize(("name", "tolerance"), [("roc_auc", 1e-5), ("average_precision", 2e-3)])
def test_rankings_are_nearly_exact(binned, name, tolerance, kind, share):
    exact, found = binned(name, *scores(kind, share))
    assert found == pytest.approx(exact, abs=tolerance)


def test_other_orders_are_nearly_exact(binned):
    predictions, labels = scores("spread")
    exact, found = binned("calibration_error_equal_mass", predictions, labels)
    assert found == pytest.approx(exact, rel=0.02)
    numbers = np.random.default_rng(1).normal(size=ROWS)
    exact, found = binned("median_absolute_error", numbers, np.zeros(ROWS))
    assert found == pytest.approx(exact, rel=2e-3)
    for mean in (0.3, 3.0):
        numbers = np.random.default_rng(1).poisson(mean, size=ROWS).astype(float)
        exact, found = binned("median_absolute_error", numbers, np.zeros(ROWS))
        assert found == exact == float(np.median(numbers)), "whole numbers stay whole"


def test_rows_of_one_class_define_no_area_in_bins_either(monkeypatch):
    monkeypatch.setattr(of_metrics, "EXACT_ROWS", 0)
    with pytest.raises(UndefinedMetricError, match="rows of two classes"):
        find_metric("roc_auc").measure(np.linspace(0, 1, 50), np.ones(50))


@pytest.mark.parametrize("kind", ["spread", "tied", "classes"])
def test_the_bootstrap_of_binned_areas_is_that_of_exact_ones(monkeypatch, kind):
    predictions, labels = scores(kind, rows=4000)
    columns = TaskColumns(label="label", features={"x": "Float64"})
    task = load_task("perennial.tasks.tabular:TabularClassification", {}, columns)
    names = [str(int(each)) for each in np.unique(labels)]
    task.load_state(
        {"numeric": {}, "categories": {}, "classes": names, "class_shares": [1.0] * len(names),
         "target_mean": 0.0, "target_scale": 1.0, "rows": 1}
    )  # fmt: skip
    ones = np.ones(len(labels))
    scored = ScoredBatch(ones, predictions, labels, ones)
    blocks = Blocks(np.arange(len(labels)) // 200, 20, "day")
    draws = blocks.draws(60)
    exact = resample(task, "roc_auc", scored, blocks, draws)
    pulls = influences(task, "roc_auc", scored, blocks)
    monkeypatch.setattr(of_metrics, "EXACT_ROWS", 0)
    found = resample(task, "roc_auc", scored, blocks, draws)
    assert np.abs(found - exact).max() < 0.02 * exact.std()
    np.testing.assert_allclose(
        influences(task, "roc_auc", scored, blocks), pulls, atol=0.05 * pulls.std()
    )


def test_counts_of_bins_need_no_memory_that_grows_with_the_rows():
    """What remains of a row is a count, of which a block has as many as there are bins."""
    predictions, labels = scores("spread")
    sums, _ = find_metric("roc_auc").binned(predictions, labels)
    found = sums(predictions, labels, (np.arange(ROWS) % 3, 3))
    assert found.shape[0] == 3
    assert found.shape[1] <= 4098
    assert found.sum() == ROWS
