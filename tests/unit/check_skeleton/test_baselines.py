"""Baselines on the test split, in the task's own metrics."""

from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
import torch

from perennial.check_skeleton.baselines import (
    compute_control_losses,
    fit_linear_model,
    measure_baselines,
)
from perennial.check_skeleton.subject import sample_rows
from perennial.contracts.data import Split
from perennial.contracts.errors import BadTaskError
from perennial.engine.task import LABEL
from perennial.tasks.tabular import TabularClassification, TabularRegression
from skeleton_tables import SETTINGS, prepared


class RuleOfThumb(TabularClassification):
    def baseline(self, rows):
        return 1 / (1 + np.exp(-rows["x0"].to_numpy()))


class WrongShape(TabularClassification):
    def baseline(self, rows):
        return np.zeros((rows.height, 2))


class Margins(TabularClassification):
    """A margin, whose sigmoid ranks and is no probability."""

    def losses(self, output, batch):
        return (1 - (2 * batch[LABEL] - 1) * output.squeeze(-1)).clamp_min(0).square()


class Sequence(TabularClassification):
    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "categories": torch.zeros(rows.height, 128, dtype=torch.long)}

    def build_model(self):
        model = super().build_model()
        forward = model.forward
        model.forward = lambda numbers, categories: forward(numbers, categories[:, :1])
        return model


class Deviance(TabularRegression):
    """With a metric that is undefined below the mean, as a deviance is below zero."""

    def score(self, predictions, labels):
        with np.errstate(invalid="ignore"):
            own = float(np.log(predictions - labels.mean()).mean())
        return {**super().score(predictions, labels), "deviance": own}


def baselines_of(task_type, dataset):
    subject = prepared(task_type, dataset)
    return measure_baselines(subject, sample_rows(dataset, Split.TEST, 2000, seed=1))


def test_constant_scores_as_the_prior_and_linear_beats_it(datasets):
    found = baselines_of(TabularClassification, datasets("binary"))
    assert found.scores["constant"]["roc_auc"] == 0.5
    assert found.scores["constant"]["loss"] == pytest.approx(np.log(2), rel=0.01)
    assert found.scores["linear"]["roc_auc"] > 0.65
    assert found.notes == ()


@pytest.mark.parametrize(
    ("task_type", "kind", "metric", "better"),
    [
        (TabularClassification, "multiclass", "log_loss", -0.1),
        (TabularRegression, "regression", "rmse", -1.0),
    ],
)
def test_linear_baseline_handles_every_kind(task_type, kind, metric, better, datasets):
    scores = baselines_of(task_type, datasets(kind)).scores
    assert scores["linear"][metric] < scores["constant"][metric] + better


def test_metric_that_is_not_finite_is_left_out_and_named(datasets):
    found = baselines_of(Deviance, datasets("regression"))
    assert "deviance" not in found.scores["linear"]
    assert "rmse" in found.scores["linear"]
    assert "linear has no finite deviance" in found.notes


def test_own_baseline_of_the_task_is_scored(datasets):
    assert baselines_of(RuleOfThumb, datasets("binary")).scores["task"]["roc_auc"] > 0.6


def test_own_baseline_of_another_shape_is_rejected(datasets):
    with pytest.raises(BadTaskError, match="another shape"):
        baselines_of(WrongShape, datasets("binary"))


def test_sequences_have_no_linear_baseline_and_the_page_explains_why(datasets):
    subject = prepared(Sequence, datasets("binary"))
    assert "128 codes" in fit_linear_model(subject)
    assert compute_control_losses(subject) is None
    found = baselines_of(Sequence, datasets("binary"))
    assert "linear" not in found.scores
    assert "128 codes" in found.notes[0]


def test_control_compares_a_linear_model_with_the_constant(datasets):
    subject = prepared(TabularClassification, datasets("binary"))
    linear, constant = compute_control_losses(subject)
    assert linear.shape == constant.shape == subject.validation[LABEL].shape
    assert linear.mean() < constant.mean()


def test_the_constant_of_a_ranking_is_as_sure_as_its_labels_are_common(datasets):
    subject = prepared(Margins, datasets("binary", positive=0.03))
    _, constant = compute_control_losses(subject)
    share = float(subject.train[LABEL].double().mean())
    labels = subject.validation[LABEL].numpy()
    entropy = -np.where(labels == 1, np.log(share), np.log(1 - share)).mean()
    assert constant.mean() <= entropy + 1e-6


def with_time(dataset, *, repeating: bool) -> pl.DataFrame:
    """Test rows one minute apart; repeating ones are ordered by their label."""
    rows = sample_rows(dataset, Split.TEST, 2000, seed=1)
    rows = rows.sort("label") if repeating else rows
    start = datetime(2025, 1, 1)
    return rows.with_columns(at=pl.Series([start + timedelta(minutes=m) for m in range(len(rows))]))


@pytest.mark.parametrize(
    ("task_type", "kind", "metric"),
    [
        (TabularRegression, "regression", "rmse"),
        (TabularClassification, "binary", "log_loss"),
        (TabularClassification, "multiclass", "log_loss"),
    ],
)
def test_last_value_is_good_where_labels_persist_and_no_better_than_the_mean_elsewhere(
    task_type, kind, metric, datasets
):
    subject = prepared(task_type, datasets(kind))
    times = pl.int_range(subject.num_rows(), eager=True).alias("at")
    subject = replace(subject, train_rows=subject.train_rows.sort("label").with_columns(times))
    rows = with_time(datasets(kind), repeating=True).sample(fraction=1.0, shuffle=True, seed=3)
    scores = measure_baselines(subject, rows, "at").scores
    assert scores["last_value"][metric] < 0.2 * scores["constant"][metric]
    rows = with_time(datasets(kind), repeating=False)
    scores = measure_baselines(prepared(task_type, datasets(kind)), rows).scores
    assert "last_value" not in scores


@pytest.mark.parametrize(
    ("task_type", "kind", "metric"),
    [
        (TabularRegression, "regression", "rmse"),
        (TabularClassification, "binary", "log_loss"),
        (TabularClassification, "multiclass", "log_loss"),
    ],
)
def test_last_value_does_not_read_labels_of_the_same_time(task_type, kind, metric, datasets):
    """Days of many rows, whose files are in the order of the label."""

    def by_day(rows):
        days = pl.Series("at", np.arange(rows.height) % 40)
        return rows.with_columns(days).sort("at", "label")

    subject = prepared(task_type, datasets(kind))
    subject = replace(subject, train_rows=by_day(subject.train_rows))
    rows = by_day(sample_rows(datasets(kind), Split.TEST, 2000, seed=1))
    scores = measure_baselines(subject, rows, "at").scores
    assert scores["last_value"][metric] > 0.95 * scores["constant"][metric]


def test_last_value_is_the_constant_where_no_time_is_known(datasets):
    rows = with_time(datasets("binary"), repeating=True)
    subject = prepared(TabularClassification, datasets("binary"))
    subject = replace(subject, train_rows=subject.train_rows.with_columns(at=rows["at"][0]))
    rows = rows.with_columns(at=pl.lit(None, pl.Datetime))
    scores = measure_baselines(subject, rows, "at").scores
    assert scores["last_value"]["log_loss"] == scores["constant"]["log_loss"]


def test_last_value_of_unordered_labels_is_no_better_than_the_prior(datasets):
    subject = prepared(TabularClassification, datasets("binary"))
    times = pl.int_range(subject.num_rows(), eager=True).alias("at")
    subject = replace(subject, train_rows=subject.train_rows.with_columns(times))
    scores = measure_baselines(subject, with_time(datasets("binary"), repeating=False), "at").scores
    assert scores["last_value"]["log_loss"] == pytest.approx(np.log(2), rel=0.02)


def test_human_figure_is_shown_beside_the_measured_ones(datasets):
    settings = SETTINGS.model_copy(update={"human": {"roc_auc": 0.9}})
    subject = prepared(TabularClassification, datasets("binary"), settings=settings)
    rows = sample_rows(datasets("binary"), Split.TEST, 2000, seed=1)
    assert measure_baselines(subject, rows).scores["human"] == {"roc_auc": 0.9}


def test_human_figure_of_an_unknown_metric_is_rejected(datasets):
    settings = SETTINGS.model_copy(update={"human": {"accuracy": 0.9}})
    subject = prepared(TabularClassification, datasets("binary"), settings=settings)
    rows = sample_rows(datasets("binary"), Split.TEST, 2000, seed=1)
    with pytest.raises(BadTaskError, match=r"skeleton\.human\.accuracy"):
        measure_baselines(subject, rows)
