"""Levels of the next days: changes that are added up, with an activation behind the last layer."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Columns, dataset_of
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

DAYS, ROWS = 4, 2000


def table(folder, *, falls=True):
    random = np.random.default_rng(5)
    x = random.normal(size=(ROWS, 4))
    changes = x + random.normal(0, 0.3, size=x.shape)
    if not falls:
        changes = np.maximum(changes, 0)
    levels = np.cumsum(changes, axis=1)
    columns = {f"x{place}": values for place, values in enumerate(x.T)}
    return dataset_of(
        pl.DataFrame({"row": np.arange(ROWS), **columns, "label": levels.tolist()}), folder
    )


class Changes(nn.Module):
    """Adds up what each day changes."""

    def __init__(self, activation):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, DAYS))
        self.activation = activation

    def forward(self, x):
        return self.activation(self.layers(x)).cumsum(dim=1)


class Levels(Columns):
    """Changes may have either sign."""

    kind = "statistic"
    metrics = directions_of("mae")
    activation = nn.Identity

    def build_model(self):
        return Changes(self.activation())

    def encode_label(self, labels):
        return torch.tensor(labels.to_list())

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(dim=1)

    def statistic(self, output, batch):
        return (output - batch[LABEL]).abs().mean(dim=1)

    def score(self, statistics, weights):
        return {"mae": float(np.average(statistics, weights=weights))}


class NeverFalling(Levels):
    """a ReLU behind the last layer: levels never fall"""

    activation = nn.ReLU


class Steps(nn.Module):
    """Steps of 0 to 1, by a function."""

    def forward(self, x):
        return torch.sigmoid(x)


class SmallSteps(Levels):
    """a sigmoid behind the last layer: levels rise by 1 at most"""

    activation = Steps


class HardlyBent(Levels):
    """An activation that lets changes of both signs through."""

    activation = nn.ELU


@pytest.mark.parametrize("task_type", [NeverFalling, SmallSteps])
def test_an_activation_that_rules_labels_out_fails(task_type, tmp_path):
    result = results_of(prepared(task_type, table(tmp_path)), "ablation")["ablation"]
    assert result.outcome == "failed", result
    assert "with the activation behind the last layer" in result.measured
    assert "return the last layer's output as it is" in result.hint


@pytest.mark.parametrize(
    ("task_type", "falls"), [(Levels, True), (HardlyBent, True), (NeverFalling, False)]
)
def test_outputs_that_suit_the_labels_pass(task_type, falls, tmp_path):
    result = results_of(prepared(task_type, table(tmp_path, falls=falls)), "ablation")["ablation"]
    assert result.outcome == "skipped", result
