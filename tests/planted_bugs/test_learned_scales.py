"""Losses whose scale is an output of its own: evidence of a regression, uncertainties of two parts."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from mixed_numbers import Numbers, subject_of
from other_styles import Module, numbers_table, table_of
from perennial.check_skeleton.checks.loss.metric_values import check_metric_values
from perennial.check_skeleton.checks.loss.training_losses import check_training_losses
from perennial.check_skeleton.checks.training.learning import check_overfit_one_batch
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL

X, SCORE = numbers_table()


class Evidence(nn.Module):
    """Mean, and the three positive numbers of a normal inverse gamma distribution."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        mean, *others = self.network(x).unbind(dim=1)
        nu, alpha, beta = (functional.softplus(each) + 1e-3 for each in others)
        return torch.stack([mean, nu, alpha + 1, beta], dim=1)


class Evidential(Numbers):
    """Deep evidential regression (Amini et al. 2020): wrong evidence costs in training."""

    metrics = directions_of("mae", "rmse")

    def build_model(self):
        return Evidence(self.network(4))

    def losses(self, output, batch):
        mean, nu, alpha, beta = output.unbind(dim=1)
        omega = 2 * beta * (1 + nu)
        spread = torch.log(nu * (batch[LABEL] - mean) ** 2 + omega)
        likelihood = 0.5 * torch.log(math.pi / nu) - alpha * torch.log(omega)
        gammas = torch.lgamma(alpha) - torch.lgamma(alpha + 0.5)
        return likelihood + (alpha + 0.5) * spread + gammas

    def predict(self, output):
        return output[:, 0]

    def expected_initial_loss(self):
        return None

    def training_losses(self, output, batch):
        error = (batch[LABEL] - output[:, 0]).abs()
        return self.losses(output, batch) + 0.05 * error * (2 * output[:, 1] + output[:, 2])


class OtherLabels(Evidential):
    """Trained on labels of the other sign."""

    def training_losses(self, output, batch):
        return super().training_losses(output, {**batch, LABEL: -batch[LABEL]})


class Weighed(nn.Module):
    """A number, a logit, and the logarithms of two uncertainties, which are parameters."""

    def __init__(self, network):
        super().__init__()
        self.network = network
        self.scales = nn.Parameter(torch.zeros(2))

    def forward(self, x):
        return torch.cat([self.network(x), self.scales.expand(len(x), 2)], dim=1)


class TwoParts(Numbers):
    """Uncertainties weigh the losses of a number and of a rare event (Kendall et al. 2018)."""

    kind = "statistic"
    metrics = directions_of("mean_loss")

    def build_model(self):
        return Weighed(self.network(2))

    def losses(self, output, batch):
        number, event = batch[LABEL].unbind(dim=1)
        squared = (output[:, 0] - number) ** 2
        crossed = functional.binary_cross_entropy_with_logits(output[:, 1], event, reduction="none")
        first, second = output[:, 2], output[:, 3]
        weighed = 0.5 * torch.exp(-first) * squared + torch.exp(-second) * crossed
        return weighed + 0.5 * (first + second)

    def expected_initial_loss(self):
        return None


class Detached(TwoParts):
    """Only the uncertainties are trained."""

    def build_model(self):
        network = super().build_model().network
        return Weighed(Module(network, lambda output: output.detach()))


def subject(task_type, folder):
    return subject_of(task_type, table_of(X, SCORE), folder)


def subject_of_parts(task_type, folder):
    event = (np.quantile(SCORE, 0.9) < SCORE).astype(float)
    labels = pl.Series("label", np.stack([SCORE, event], axis=1).tolist())
    return subject_of(task_type, table_of(X, SCORE).with_columns(labels), folder)


@pytest.mark.parametrize("check", [check_training_losses, check_metric_values])
def test_evidence_that_training_holds_down_passes(check, tmp_path):
    found = check(subject(Evidential, tmp_path))
    assert found.outcome == "passed", found.measured


def test_evidence_for_other_labels_fails(tmp_path):
    found = check_training_losses(subject(OtherLabels, tmp_path))
    assert found.outcome == "failed", found.measured
    assert "disagree on the labels" in found.hint


class LearnsItsInput(Numbers):
    """Trained on the sum of what it reads, and measured by labels."""

    def training_losses(self, output, batch):
        return (output - batch["x"].sum(dim=1)) ** 2


def test_training_that_reads_no_label_fails(tmp_path):
    found = check_training_losses(subject(LearnsItsInput, tmp_path))
    assert (found.outcome, "the labels of other examples" in found.measured) == ("failed", True)


def test_parts_that_learned_uncertainties_weigh_are_memorised(tmp_path):
    found = check_overfit_one_batch(subject_of_parts(TwoParts, tmp_path))
    assert found.outcome == "passed", found.measured


def test_parts_of_detached_heads_are_not(tmp_path):
    found = check_overfit_one_batch(subject_of_parts(Detached, tmp_path))
    assert found.outcome in ("warned", "failed"), found.measured
