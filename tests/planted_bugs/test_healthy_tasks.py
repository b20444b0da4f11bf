"""Healthy tasks must pass every skeleton check: a check that cries wolf is soon switched off."""

from typing import ClassVar

import numpy as np
import pytest
from torch import nn

from components.check_skeleton.config import CHECK_NAMES
from components.tasks.tabular import TabularClassification, TabularRegression


class WithBatchNorm(TabularClassification):
    """The reference MLP with batch normalisation after each hidden layer."""

    def build_model(self):
        model = super().build_model()
        layers = []
        for layer in model.hidden:
            layers.append(layer)
            if isinstance(layer, nn.Linear):
                layers.append(nn.BatchNorm1d(layer.out_features))
        model.hidden = nn.Sequential(*layers)
        return model


class CountsAmounts(TabularClassification):
    """Indexes by an integer column while it is fitted."""

    def fit(self, train):
        super().fit(train)
        np.bincount(train.select("amount").collect()["amount"].to_numpy())


class WithBias(TabularRegression):
    """Has a metric that a permutation of the predictions does not change."""

    metrics: ClassVar = {**TabularRegression.metrics, "absolute_bias": "minimize"}

    def score(self, predictions, labels):
        bias = abs(float(predictions.mean() - labels.mean()))
        return super().score(predictions, labels) | {"absolute_bias": bias}


HEALTHY = {
    "binary": (TabularClassification, "binary", {}),
    "multiclass": (TabularClassification, "multiclass", {}),
    "regression": (TabularRegression, "regression", {}),
    "imbalanced": (TabularClassification, "binary", {"positive": 0.04}),
    "tiny": (TabularClassification, "binary", {"options": {"hidden": [8]}}),
    "wide": (TabularClassification, "binary", {"width": 200}),
    "deep": (TabularRegression, "regression", {"options": {"hidden": [128, 128, 128, 128]}}),
    "batch norm": (WithBatchNorm, "binary", {}),
    "dropout": (TabularClassification, "multiclass", {"options": {"dropout": 0.5}}),
    "zero-inflated": (TabularRegression, "zero-inflated", {}),
    "fit that counts integers": (CountsAmounts, "binary", {}),
    "metric blind to pairing": (WithBias, "regression", {}),
    "few rows": (TabularRegression, "regression", {"rows": 1200}),
    **{f"seed {seed}": (TabularClassification, "binary", {"seed": seed}) for seed in (0, 2, 3, 4)},
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_task_passes_every_check(name, examine):
    task_type, kind, shape = HEALTHY[name]
    results = examine(task_type, kind, **shape)
    assert tuple(results) == CHECK_NAMES
    doubted = {r.check: (r.measured, r.hint) for r in results.values() if r.outcome != "passed"}
    assert doubted.keys() == {"augmentation", "example_weights", "future_independence"}, doubted


@pytest.mark.parametrize("kind", ["weak", "noise"])
def test_data_with_little_signal_fails_no_check(kind, examine):
    results = examine(TabularClassification, kind)
    assert [check for check, result in results.items() if result.outcome == "failed"] == []
    if kind == "noise":
        verdict = results["input_independent_baseline"]
        assert verdict.outcome == "warned"
        assert "sample_rows" in verdict.hint
