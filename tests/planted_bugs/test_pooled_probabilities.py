"""Outputs that are means of probabilities, which no last layer drives to 0 or 1."""

import numpy as np
import polars as pl
import torch
from torch import nn

from other_styles import Columns, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

CHECKS = ("initial_loss", "loss_floor", "predictions", "metric_direction", "output_form")
MOMENTS, TAGS = 24, 3


class Attention(nn.Module):
    """Weighs the probabilities of each moment, as detectors of sounds do."""

    factor = 1.0

    def __init__(self):
        super().__init__()
        self.weigh, self.judge = nn.Linear(1, TAGS), nn.Linear(1, TAGS)

    def forward(self, x):
        moments = x[:, :, None]
        weights = self.weigh(moments).tanh().softmax(dim=1)
        return self.factor * (weights * self.judge(moments).sigmoid()).sum(dim=1)


class Pooled(Columns):
    kind = "statistic"
    metrics = {"errors": "minimize"}  # noqa: RUF012
    network = Attention

    def encode_label(self, labels):
        return torch.tensor(labels.to_list()).float()

    def build_model(self):
        return self.network()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy(output, batch[LABEL], reduction="none").mean(1)

    def statistic(self, output, batch):
        return ((output > 0.5) != (batch[LABEL] > 0.5)).double().mean(dim=1)

    def score(self, statistics, weights):
        return {"errors": float(statistics.reshape(-1) @ weights / weights.sum())}


class Shrunk(Pooled):
    """probabilities are divided by a hundred before the loss"""

    network = type("Network", (Attention,), {"factor": 0.01})


def tagged(folder):
    random = np.random.default_rng(5)
    x = random.normal(size=(900, MOMENTS))
    tags = x[:, :TAGS] + x[:, -TAGS:] + random.normal(size=(900, TAGS)) > 0
    columns = {f"x{place}": each for place, each in enumerate(x.T)}
    table = {"row": np.arange(900), **columns, "label": tags.astype(int).tolist()}
    return dataset_of(pl.DataFrame(table), folder)


def outcomes(task_type, folder):
    subject = prepared(task_type, tagged(folder))
    return {name: results_of(subject, name)[name] for name in CHECKS}


def test_means_of_probabilities_are_judged_between_0_and_1(tmp_path):
    found = outcomes(Pooled, tmp_path)
    assert {each.outcome for each in found.values()} == {"passed"}, found


def test_means_of_probabilities_of_another_scale_fail(tmp_path):
    assert outcomes(Shrunk, tmp_path)["initial_loss"].outcome == "failed"


def test_a_loss_that_takes_any_number_keeps_its_freedom(tmp_path):
    """Squared errors of outputs that happen to lie between 0 and 1."""

    class Squares(Pooled):
        def losses(self, output, batch):
            return (output - batch[LABEL]).square().mean(dim=1)

    from perennial.check_skeleton.free_outputs import find_output_domain

    assert not (find_output_domain(prepared(Squares, tagged(tmp_path))).high == 1.0).all()
