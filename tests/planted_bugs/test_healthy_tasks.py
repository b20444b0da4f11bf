"""Healthy tasks must pass every skeleton check: a check that cries wolf is soon switched off."""

import warnings
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
from torch import nn

from perennial.data.dataset import Dataset
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Healthy, require_healthy
from rank_bound_tasks import WithBatchNorm
from skeleton_tables import pinned, prepared, table
from workshop import results_of


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


class WithWeightNorm(TabularClassification):
    """Its first weight is computed from two parameters, by the older of PyTorch's two ways."""

    def build_model(self):
        model = super().build_model()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            nn.utils.weight_norm(model.hidden[0])
        return model


HEALTHY = [
    Healthy("binary", TabularClassification, "binary"),
    Healthy("multiclass", TabularClassification, "multiclass"),
    Healthy("regression with offset", TabularRegression, "regression"),
    Healthy("imbalanced", TabularClassification, "binary", {"positive": 0.04}),
    Healthy("batch norm", WithBatchNorm, "binary"),
    Healthy("dropout", TabularClassification, "multiclass", {"options": {"dropout": 0.5}}),
    Healthy("zero-inflated", TabularRegression, "zero-inflated"),
    Healthy(
        "quantile loss",
        TabularRegression,
        "regression",
        {"options": {"loss": "quantile", "quantile": 0.9}},
    ),
    Healthy(
        "relative forecast", TabularRegression, "series", {"options": {"relative_to": "history"}}
    ),
]
MORE = [
    Healthy("windows", TabularRegression, "series"),
    Healthy(
        "smoothing", TabularClassification, "multiclass", {"options": {"label_smoothing": 0.1}}
    ),
    Healthy("few rows", TabularRegression, "regression", {"rows": 1200}),
    Healthy("metric blind to pairing", WithBias, "regression"),
    Healthy("fit that counts integers", CountsAmounts, "binary"),
    Healthy("weight norm", WithWeightNorm, "binary"),
    Healthy("tiny network", TabularClassification, "binary", {"options": {"hidden": [8]}}),
    Healthy("wide table", TabularClassification, "binary", {"width": 200}),
    Healthy("deep", TabularRegression, "regression", {"options": {"hidden": [128, 128, 128, 128]}}),
    Healthy("huber loss", TabularRegression, "regression", {"options": {"loss": "huber"}}),
    Healthy("absolute loss", TabularRegression, "regression", {"options": {"loss": "absolute"}}),
    *(
        Healthy(f"seed {seed}", TabularClassification, "binary", {"training": {"seed": seed}})
        for seed in (0, 2, 3, 4)
    ),
]


@pytest.mark.parametrize("task", HEALTHY, ids=lambda task: task.name)
def test_healthy_task_passes_every_check(task, workshop):
    require_healthy(task, workshop)


@pytest.mark.full
@pytest.mark.parametrize("task", MORE, ids=lambda task: task.name)
def test_more_healthy_tasks_pass_every_check(task, workshop):
    require_healthy(task, workshop)


def test_a_few_different_inputs_may_have_as_few_predictions(tmp_path):
    frame = table("binary").select("row", flag=pl.col("x0") > 0, label="label")
    subject = prepared(TabularClassification, Dataset(pinned(frame, tmp_path)))
    result = results_of(subject, "prediction_detail")["prediction_detail"]
    assert (result.outcome, result.measured) == ("passed", result.measured)


@pytest.mark.parametrize("kind", ["binary", "noise"])
def test_one_column_need_not_distinguish_all_examples(kind, tmp_path):
    frame = table(kind).select("row", "x0", "label")
    subject = prepared(TabularClassification, Dataset(pinned(frame, tmp_path)))
    result = results_of(subject, "overfit_one_batch")["overfit_one_batch"]
    assert (result.outcome, result.measured) == ("passed", result.measured)


def test_units_that_die_at_the_highest_rate_do_not_condemn_inputs_without_a_signal(tmp_path):
    frame = table("noise").select("row", "group", "label")
    subject = prepared(TabularClassification, Dataset(pinned(frame, tmp_path)), seed=2)
    result = results_of(subject, "input_independent_baseline")["input_independent_baseline"]
    assert (result.outcome, result.measured) == ("warned", result.measured)


@pytest.mark.parametrize("material", [pytest.param("weak", marks=pytest.mark.full), "noise"])
def test_data_with_little_signal_fails_no_check(material, workshop):
    results = results_of(workshop.subject(TabularClassification, material))
    assert [check for check, result in results.items() if result.outcome == "failed"] == []
    if material == "noise":
        verdict = results["input_independent_baseline"]
        assert verdict.outcome == "warned"
        assert "sample_rows" in verdict.hint
