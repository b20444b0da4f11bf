"""Losses that fall without end, and losses below zero that do not."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from other_styles import Columns, Module, dataset_of, numbers_table, table_of
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

MEMBERS = 8


class Ensemble(Columns):
    """Members of an ensemble, scored by their energy: error less half of the members' distances."""

    kind = "statistic"
    metrics: ClassVar = {"energy": "minimize"}
    weight_of_pairs = 0.5
    level = 0.0

    def encode_label(self, labels):
        return labels.to_torch().float()

    def build_model(self):
        return Module(self.network(MEMBERS))

    def losses(self, output, batch):
        error = (output - batch[LABEL][:, None]).abs().mean(dim=1)
        pairs = (output[:, :, None] - output[:, None]).abs().mean(dim=(1, 2))
        return error - self.weight_of_pairs * pairs - self.level

    def statistic(self, output, batch):
        return self.losses(output, batch)[:, None]

    def score(self, predictions, labels):
        return {"energy": float(predictions.mean())}


class HalfForgotten(Ensemble):
    """Pairs count whole."""

    weight_of_pairs = 1.0


class Turned(Ensemble):
    """The error is rewarded, as its sign is wrong."""

    def losses(self, output, batch):
        return -(output - batch[LABEL][:, None]).abs().mean(dim=1)


class FromBelow(Ensemble):
    """The same score, less a constant."""

    level = 3.0


class Density(Ensemble):
    """The logarithm of a normal density, less a constant; half of the outputs are deviations."""

    def losses(self, output, batch):
        mean, deviation = output[:, 0], nn.functional.softplus(output[:, 1]) + 1e-3
        normal = torch.distributions.Normal(mean, deviation, validate_args=False)
        return -normal.log_prob(batch[LABEL]) - 5.0


class Critic(Ensemble):
    """Scores of a critic: a direction is rewarded, and not the size."""

    def losses(self, output, batch):
        return -output.mean(dim=1) * torch.sign(batch[LABEL])


def examined(task_type, tmp_path):
    x, score = numbers_table(600)
    dataset = dataset_of(table_of(x, np.round(score, 3)), tmp_path)
    subject = prepared(task_type, dataset, training=TrainingSection(seed=1))
    return results_of(subject, "loss_floor")["loss_floor"]


@pytest.mark.parametrize("task_type", [HalfForgotten, Turned])
def test_losses_that_fall_without_end_fail(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome == "failed", found.measured
    assert "ever larger" in found.hint


@pytest.mark.parametrize("task_type", [Ensemble, FromBelow, Density, Critic])
def test_losses_below_zero_do_not(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome in ("passed", "warned", "skipped"), (found.measured, found.hint)
