"""Likelihoods, which need not reach zero, and losses that look like them and are none."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import distributions as laws
from torch import nn

from other_styles import Columns, Module, dataset_of, numbers_table, table_of
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS = 600
X, SCORE = numbers_table(ROWS)
AMOUNTS = np.exp(1 + 0.4 * SCORE).round(4)
COUNTS = np.random.default_rng(4).poisson(np.exp(1.2 + 0.2 * SCORE)).astype(float)
SHOTS = np.random.default_rng(5).integers(5, 30, ROWS)
HITS = np.random.default_rng(6).binomial(SHOTS, 1 / (1 + np.exp(-SCORE / 2)))
ENDED = np.random.default_rng(7).random(ROWS) < 0.6


class Likelihood(Columns):
    """Two outputs: a centre, and a spread by softplus."""

    kind = "statistic"
    metrics: ClassVar = {"nll": "minimize"}
    labels: ClassVar = SCORE.tolist()

    def encode_label(self, labels):
        return torch.tensor(labels.to_list()).float()

    def build_model(self):
        return Module(self.network(2))

    def law(self, output):
        return laws.Normal(output[:, 0], self.spread(output), validate_args=False)

    def spread(self, output):
        return nn.functional.softplus(output[:, 1]) + 1e-2

    def losses(self, output, batch):
        return -self.law(output).log_prob(batch[LABEL])

    def statistic(self, output, batch):
        return self.losses(output, batch)[:, None]

    def score(self, predictions, labels):
        return {"nll": float(predictions.mean())}


class HeavyTails(Likelihood):
    def law(self, output):
        return laws.StudentT(4.0, output[:, 0], self.spread(output), validate_args=False)


class OfSmallNumbers(Likelihood):
    """Deviations far below 1, whose density is far above it."""

    labels: ClassVar = (SCORE / 500).tolist()

    def law(self, output):
        return laws.Normal(output[:, 0] / 500, self.spread(output) / 500, validate_args=False)


class OfAmounts(Likelihood):
    labels: ClassVar = AMOUNTS.tolist()

    def law(self, output):
        return laws.LogNormal(output[:, 0] + 1, self.spread(output), validate_args=False)


class OfAmountsThatRejectsOthers(OfAmounts):
    def law(self, output):
        return laws.Gamma(2 * self.spread(output), nn.functional.softplus(output[:, 0]))


class OfAmountsOrNone(OfAmounts):
    """A probability that there is none, and a density of what there is."""

    labels: ClassVar = np.where(ENDED, AMOUNTS, 0.0).tolist()

    def losses(self, output, batch):
        label, some = batch[LABEL], output[:, 1] / 2
        density = self.law(output).log_prob(label.clamp(min=1e-6))
        density = density + nn.functional.logsigmoid(some)
        return -torch.where(label > 0, density, nn.functional.logsigmoid(-some))


class OfCounts(Likelihood):
    labels: ClassVar = COUNTS.tolist()

    def law(self, output):
        return laws.Poisson(nn.functional.softplus(output[:, 0] + 3), validate_args=False)


class OfHits(Likelihood):
    labels: ClassVar = np.stack([HITS, SHOTS], axis=1).tolist()

    def losses(self, output, batch):
        hits, shots = batch[LABEL].T
        hit = nn.functional.logsigmoid(output[:, 0])
        missed = nn.functional.logsigmoid(-output[:, 0])
        ways = torch.lgamma(shots + 1) - torch.lgamma(hits + 1) - torch.lgamma(shots - hits + 1)
        return -(ways + hits * hit + (shots - hits) * missed)


class OfLives(OfAmounts):
    """Those that have not ended count with the chance to last longer."""

    labels: ClassVar = np.stack([AMOUNTS, ENDED], axis=1).tolist()

    def losses(self, output, batch):
        months, ended = batch[LABEL].T
        scale, shape = torch.exp(output[:, 0] + 1), 0.5 + self.spread(output)
        lasted = (months / scale) ** shape
        rate = (shape / scale).log() + (shape - 1) * (months / scale).log()
        return lasted - ended * rate


class OfTheMedian(OfSmallNumbers):
    """An absolute error over the spread, and the spread's logarithm, without a constant."""

    def losses(self, output, batch):
        law = self.law(output)
        error = (batch[LABEL] - law.mean).abs() / law.stddev
        return 2**0.5 * error + law.stddev.log()


class OfLogarithms(Likelihood):
    """A normal distribution of the amounts' logarithms, without what makes it one of amounts."""

    labels: ClassVar = (AMOUNTS**0.05).round(6).tolist()

    def law(self, output):
        return laws.Normal(output[:, 0] / 20, self.spread(output) / 20, validate_args=False)

    def losses(self, output, batch):
        return -self.law(output).log_prob(batch[LABEL].log())


class OfOneMore(OfLogarithms):
    def losses(self, output, batch):
        return -self.law(output).log_prob(batch[LABEL].log1p() - 0.7)


class OfManyCounts(OfCounts):
    labels: ClassVar = (COUNTS * 150).tolist()

    def law(self, output):
        spread = 10 + 5 * self.spread(output)
        mean = nn.functional.softplus(output[:, 0] + 3) * 150
        return laws.NegativeBinomial(spread, logits=(mean / spread).log(), validate_args=False)


class OfAngles(Likelihood):
    """Degrees of a compass around a direction, by how far two unit vectors point apart."""

    labels: ClassVar = (np.degrees(SCORE + 0.3) % 360).round(1).tolist()

    def law(self, output):
        return laws.VonMises(output[:, 0], 5 * self.spread(output), validate_args=False)

    def losses(self, output, batch):
        return -self.law(output).log_prob(torch.deg2rad(batch[LABEL]))


class OfFiveDays(OfAmounts):
    """The mean of the days' likelihoods, each with a mean of its own and a shared spread."""

    labels: ClassVar = (AMOUNTS[:, None] * np.linspace(1, 2, 5)).tolist()

    def build_model(self):
        return Module(self.network(6))

    def losses(self, output, batch):
        spread = nn.functional.softplus(output[:, 5:]) + 1e-2
        law = laws.LogNormal(output[:, :5] + 1, spread, validate_args=False)
        return -law.log_prob(batch[LABEL]).mean(dim=1)


class ByTheSquaredSpread(OfSmallNumbers):
    """A squared error over the variance, with the variance's logarithm in full."""

    def losses(self, output, batch):
        law = self.law(output)
        return ((batch[LABEL] - law.mean) / law.stddev) ** 2 / 2 + 2 * law.stddev.log()


class WithoutItsConstant(OfCounts):
    def losses(self, output, batch):
        rate = self.law(output).rate
        return rate - batch[LABEL] * rate.log()


class OfFiveDaysByTheVariance(OfFiveDays):
    """The logarithm of the variance where that of the deviation belongs."""

    def losses(self, output, batch):
        spread = (nn.functional.softplus(output[:, 5:]) + 1e-2) / 100
        error = (batch[LABEL].log() - output[:, :5]) / spread
        return (error.square() / 2 + 2 * spread.log()).mean(dim=1)


class NeverBelow(Likelihood):
    """An error that is not improved below a half."""

    def losses(self, output, batch):
        return ((output[:, 0] - batch[LABEL]) ** 2).clamp(min=0.5)


def examined(task_type, folder):
    dataset = dataset_of(table_of(X, task_type.labels), folder)
    subject = prepared(task_type, dataset, training=TrainingSection(seed=1))
    return results_of(subject, "loss_floor")["loss_floor"]


@pytest.mark.parametrize("task_type", [
    Likelihood, HeavyTails, OfSmallNumbers, OfAmounts, OfAmountsThatRejectsOthers, OfAmountsOrNone,
    OfCounts, OfHits, OfLives, OfTheMedian, OfLogarithms, OfOneMore,
    OfManyCounts, OfFiveDays, OfAngles,
])  # fmt: skip
def test_probabilities_that_add_up_to_the_same_need_no_zero(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


@pytest.mark.parametrize("task_type", [
    ByTheSquaredSpread, WithoutItsConstant, NeverBelow, OfFiveDaysByTheVariance,
])  # fmt: skip
def test_others_are_doubted(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome in ("warned", "failed"), found.measured
