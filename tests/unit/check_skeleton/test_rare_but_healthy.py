"""Data, losses and augmentations that are rare but right: the check that looks there passes."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from perennial.check_skeleton.checks.loss.losses import _judge_initial_loss
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.registry import Judge
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from perennial.tasks.tabular import TabularClassification, TabularRegression
from skeleton_tables import pinned, prepared, table


class CountsClasses(TabularClassification):
    """All that fit learns is a number that is the same for every large part of the rows."""

    def fit(self, train):
        super().fit(train)
        self.classes = train.select(pl.col("label").n_unique()).collect().item()

    def state(self):
        return {"classes": self.classes}


class RefusesRows(TabularRegression):
    """fit takes values of a known range only."""

    def fit(self, train):
        if train.select(pl.col("x0").max()).collect().item() > 6:
            raise ValueError("x0 is out of range")
        super().fit(train)


class DrawsForSome(TabularClassification):
    """Positive numbers are dropped at random: how much is drawn depends on the rows."""

    def augment(self, batch, generator):
        numbers = batch["numbers"].clone()
        is_positive = numbers > 0
        kept = torch.rand(int(is_positive.sum()), generator=generator) < 0.7
        numbers[is_positive] *= kept.float()
        return {**batch, "numbers": numbers}


class MixesClasses(TabularClassification):
    """Labels of 0 and 1 are mixed in the proportion of the rows."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL].float()} if LABEL in batch else batch

    def augment(self, batch, generator):
        order = torch.randperm(len(batch[LABEL]), generator=generator)
        share = torch.rand(len(order), generator=generator)
        numbers = share[:, None] * batch["numbers"]
        numbers += (1 - share[:, None]) * batch["numbers"][order]
        label = share * batch[LABEL] + (1 - share) * batch[LABEL][order]
        return {**batch, "numbers": numbers, LABEL: label}


class NoNumbers(TabularClassification):
    """All columns are categories; the tensor of the numbers is empty."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "numbers": batch["numbers"][:, :0]}


class PoissonCounts(TabularRegression):
    """A loss without its constant, which goes below zero where counts are large."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL].clamp_min(0)} if LABEL in batch else batch

    def build_model(self):
        model = super().build_model()
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        with torch.no_grad():
            last.bias.fill_(np.log(self.fitted.target_mean))
            last.weight.mul_(0.01)
        return model

    def losses(self, output, batch):
        return nn.functional.poisson_nll_loss(output.squeeze(-1), batch[LABEL], reduction="none")

    def predict(self, output):
        return output.squeeze(-1).exp()

    def expected_initial_loss(self):
        mean = self.fitted.target_mean
        return mean - mean * np.log(mean)


def outcome_of(task_type, dataset, name):
    (result,) = run_checks(prepared(task_type, dataset), [name])
    return result.outcome, result.measured


@pytest.mark.parametrize(
    ("task_type", "kind", "check", "outcome"),
    [
        (CountsClasses, "multiclass", "statistics_scope", "passed"),
        (RefusesRows, "regression", "statistics_scope", "passed"),
        (DrawsForSome, "binary", "augmentation_keeps_labels", "passed"),
        (MixesClasses, "binary", "augmentation_keeps_labels", "passed"),
        (NoNumbers, "binary", "input_scale", "passed"),
        (PoissonCounts, "regression", "initial_loss", "passed"),
        (PoissonCounts, "regression", "initial_bias", "skipped"),
        (PoissonCounts, "regression", "loss_floor", "passed"),
    ],
)
def test_rare_but_correct_tasks_are_not_blocked(task_type, kind, check, outcome, datasets):
    found, measured = outcome_of(task_type, datasets(kind), check)
    assert found == outcome, measured


class DoublesTheTheory(TabularRegression):
    """Whatever the sample, the loss of a constant is not twice the labels' variance."""

    def expected_initial_loss(self):
        return 2.0 * super().expected_initial_loss()


@pytest.mark.parametrize(
    ("task_type", "outcome"), [(TabularRegression, "passed"), (DoublesTheTheory, "failed")]
)
def test_a_sample_without_the_few_largest_labels_is_judged_by_its_own(task_type, outcome, tmp_path):
    is_large = pl.col("row").is_in([0, 2, 7])
    frame = table("regression").with_columns(
        label=pl.when(is_large).then(5000.0).otherwise(pl.col("label"))
    )
    subject = prepared(task_type, Dataset(pinned(frame, tmp_path)))
    assert subject.label_spread < 0.5
    (result,) = run_checks(subject, ["initial_loss"])
    assert result.outcome == outcome, result.measured
    (unaware,) = run_checks(replace(subject, label_spread=1.0), ["initial_loss"])
    assert unaware.outcome == "failed"


class StartsAnywhere(TabularRegression):
    """The initial output of every row is one drawn number."""

    spread, least = 1.0, 0.0

    def build_model(self):
        model = super().build_model()
        last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
        with torch.no_grad():
            last.bias.fill_(self.least + self.spread * float(torch.randn(())))
        return model

    def expected_initial_loss(self):
        return None


class StartsFarAway(StartsAnywhere):
    """So does this, and it is never near zero."""

    least = 9.0


def test_a_start_that_few_draws_make_wild_is_healthy(datasets):
    """A layer that is drawn over values that rise and fall together starts so."""

    def judge(task_type, seed):
        subject = prepared(task_type, datasets("regression"), training=TrainingSection(seed=seed))
        return subject, _judge_initial_loss(Judge("initial_loss"), subject).outcome

    wild = next(seed for seed in range(50) if judge(StartsAnywhere, seed)[1] == "failed")
    for task_type, outcome in ((StartsAnywhere, "passed"), (StartsFarAway, "failed")):
        (result,) = run_checks(judge(task_type, wild)[0], ["initial_loss"])
        assert result.outcome == outcome, result.measured
