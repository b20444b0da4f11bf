"""Known metrics: what a name means, and that several valid meanings are distinguished from wrong ones."""

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from perennial.check_skeleton.checks.loss.metric_values import (
    find_meanings,
    measure_classes,
    measure_numbers,
)
from perennial.tasks.tabular import TabularClassification, TabularRegression

LABELS = np.array([0, 0, 0, 1, 1, 0], dtype=np.float64)
CHANCES = np.array([0.1, 0.4, 0.7, 0.6, 0.9, 0.2])
PAIRS = np.stack([1 - CHANCES, CHANCES], axis=1)


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ("accuracy", 5 / 6),
        ("roc_auc of class 1", 7 / 8),
        ("precision of class 1", 2 / 3),
        ("recall of class 1", 1.0),
        ("f1 of class 1", 0.8),
        ("macro f1", (0.8 + 6 / 7) / 2),
        ("brier of class 1", np.mean((CHANCES - LABELS) ** 2)),
        ("brier", 2 * np.mean((CHANCES - LABELS) ** 2)),
        ("log_loss", -np.mean(np.log(np.where(LABELS == 1, CHANCES, 1 - CHANCES)))),
    ],
)
def test_quantities_of_classes_are_those_of_their_definitions(quantity, value):
    assert measure_classes(PAIRS, LABELS)[quantity] == pytest.approx(value)


@pytest.mark.parametrize("classes", [3, 7])
def test_area_of_pairs_of_classes_is_that_of_scikit_learn(classes):
    generator = np.random.default_rng(classes)
    labels = np.arange(200) % classes
    # Of one digit, so that there are ties.
    chances = generator.random((200, classes)).round(1) + 0.1
    chances /= chances.sum(axis=1, keepdims=True)
    expected = roc_auc_score(labels, chances, multi_class="ovo")
    found = measure_classes(chances, labels.astype(np.float64))["one-vs-one roc_auc"]
    assert found == pytest.approx(expected)


def test_quantities_of_numbers_are_those_of_their_definitions():
    found = measure_numbers(np.array([1.0, 2.0, 5.0]), np.array([1.0, 3.0, 3.0]))
    assert found["mse"] == pytest.approx(5 / 3)
    assert found["rmse"] == pytest.approx((5 / 3) ** 0.5)
    assert found["mae"] == pytest.approx(1.0)
    assert found["r2"] == pytest.approx(1 - 5 / (8 / 3))


@pytest.mark.parametrize(
    ("name", "meaning"),
    [
        ("AUC", "macro roc_auc"),
        ("auroc", "roc_auc of class 1"),
        ("f1_macro", "macro f1"),
        ("weighted-f1", "weighted f1"),
        ("mrr", "mean reciprocal rank"),
        ("recall_at_5", "recall at 5"),
        ("recall@10", "recall at 10 of texts"),
        ("top_5_accuracy", "accuracy in the first 5"),
        ("ppl", "perplexity"),
        ("churn_cost", "churn_cost"),
    ],
)
def test_usual_spellings_of_a_metric_are_understood(name, meaning):
    assert meaning in find_meanings(name)


def scoring(base, **measures):
    """The task with metrics of these names."""

    def score(self, predictions, labels):
        return {name: measure(predictions, labels) for name, measure in measures.items()}

    metrics = dict.fromkeys(measures, "maximize")
    return type("Scoring", (base,), {"metrics": metrics, "score": score, "__module__": __name__})


def f1(predictions, labels, *, code: int) -> float:
    answers = predictions >= 0.5
    right = np.sum((answers == code) & (labels == code))
    return float(2 * right / (np.sum(answers == code) + np.sum(labels == code)))


HONEST = {
    "f1 of class 1": {"f1": lambda p, y: f1(p, y, code=1)},
    "f1 of both classes": {"f1": lambda p, y: (f1(p, y, code=0) + f1(p, y, code=1)) / 2},
    "brier": {"brier_score": lambda p, y: float(np.mean((p - y) ** 2))},
    "float32 accuracy": {"acc": lambda p, y: float(np.float32(np.mean((p >= 0.5) == y)))},
}


@pytest.mark.parametrize("name", HONEST)
def test_every_valid_meaning_of_a_name_passes(name, examine):
    task_type = scoring(TabularClassification, **HONEST[name])
    results = examine(task_type, "binary", only="metric_values")
    assert results["metric_values"].outcome == "passed"


def test_metric_of_an_unknown_name_is_not_compared(examine):
    task_type = scoring(TabularRegression, churn_cost=lambda p, y: float(np.abs(p - y).sum()))
    result = examine(task_type, "regression", only="metric_values")
    assert result["metric_values"].outcome == "skipped"
    assert "churn_cost" in result["metric_values"].hint


def test_failing_metric_is_named_with_both_numbers(examine):
    task_type = scoring(TabularRegression, mae=lambda p, y: float(np.mean((p - y) ** 2)))
    result = examine(task_type, "regression", only="metric_values")
    assert result["metric_values"].outcome == "failed"
    assert "(mae)" in result["metric_values"].measured
    assert "computes mse" in result["metric_values"].hint
