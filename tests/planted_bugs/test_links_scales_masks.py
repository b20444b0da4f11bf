"""Links other than the logit, a row's own scale beside the output, and classes that a row lacks."""

from functools import partial
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Columns, dataset_of, table_of
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT
from skeleton_tables import SETTINGS

ROWS = 1500
GENERATOR = np.random.default_rng(5)
X = GENERATOR.normal(size=(ROWS, 5))
HAZARD = np.exp(-2 + X[:, 0])
SCALE = np.exp(GENERATOR.uniform(0, 5, ROWS))
AMOUNT = SCALE * np.exp(0.3 * X[:, 0] + 0.1 * GENERATOR.normal(size=ROWS))
IS_THERE = np.arange(5) < GENERATOR.integers(2, 6, ROWS)[:, None]
CHOSEN = np.where(IS_THERE, 1.5 * X + GENERATOR.gumbel(size=X.shape), -np.inf).argmax(axis=1)
DEATHS = table_of(X, (GENERATOR.random(ROWS) < 1 - np.exp(-HAZARD)).astype(int))
AMOUNTS = table_of(X, AMOUNT, scale=SCALE)
CHOICES = table_of(X, CHOSEN, there=IS_THERE.astype(float).tolist())


class LogLog(Columns):
    """The complementary log-log link: at an output of zero, 63 % are positive."""

    kind = "binary"

    def encode_label(self, labels):
        return labels.to_torch()

    def build_model(self):
        model = self.network(1)
        nn.init.constant_(model[-1].bias, -1.8)
        return Wrapped(model)

    def losses(self, output, batch):
        hazard = output.squeeze(1).clamp(-12, 4).exp()
        return torch.where(batch[LABEL] == 1, -(-(-hazard).expm1()).log(), hazard)

    def predict(self, output):
        return -(-output.squeeze(1).clamp(-12, 4).exp()).expm1()


class RareWeighLess(LogLog):
    """The weights of the classes are their shares."""

    def training_losses(self, output, batch):
        return self.losses(output, batch) * torch.where(batch[LABEL] == 1, 0.2, 0.8)


class RareRowsWeighLess(LogLog):
    """The weights of the rows are their classes' shares."""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            batch[WEIGHT] = torch.where(batch[LABEL] == 1, 0.2, 0.8)
        return batch


class Wrapped(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers

    def forward(self, x):
        return self.layers(x)


class Relative(nn.Module):
    """The scale goes beside the output: `predict` gets nothing else."""

    def __init__(self, layers, scale=1.0):
        super().__init__()
        self.layers, self.factor = layers, scale

    def forward(self, x, scale):
        return torch.cat([1 + self.factor * self.layers(x), scale[:, None]], dim=1)


class Scaled(Columns):
    """Amounts in units of each row's own scale, by which rows weigh, too."""

    kind = "regression"
    metrics: ClassVar = directions_of("mae", "rmse")
    factor = 1.0

    def encode(self, rows):
        features = [name for name in sorted(self.columns.features) if name != "scale"]
        scale = rows["scale"].to_torch().float()
        batch = {"x": rows.select(features).to_torch().float(), "scale": scale}
        if "label" in rows.columns:
            batch |= {LABEL: rows["label"].to_torch().float(), WEIGHT: scale / 30}
        return batch

    def build_model(self):
        return Relative(nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1)), self.factor)

    def losses(self, output, batch):
        return (output[:, 0] - batch[LABEL] / output[:, 1]).abs()

    def predict(self, output):
        return output[:, 0] * output[:, 1]


class Unscaled(Scaled):
    """Predictions stay in units of the scale."""

    def predict(self, output):
        return output[:, 0]


class Loud(Scaled):
    """The first outputs are far from any label."""

    factor = 300.0


class Choice(Columns):
    """One of two to five; those that a row lacks have minus infinity."""

    kind = "multiclass"
    absent = -torch.inf

    def fit(self, train):
        """The columns are standard already."""

    def encode(self, rows):
        features = [name for name in sorted(self.columns.features) if name != "there"]
        there = torch.tensor(rows["there"].to_list()) > 0
        batch = {"x": rows.select(features).to_torch().float(), "there": there}
        if "label" in rows.columns:
            batch[LABEL] = rows["label"].to_torch()
        return batch

    def build_model(self):
        return Utilities(self.absent)

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")


class Undefined(Choice):
    """Those that a row lacks have no number."""

    absent = torch.nan


class Utilities(nn.Module):
    def __init__(self, absent):
        super().__init__()
        self.layers, self.absent = (
            nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 5)),
            absent,
        )

    def forward(self, x, there):
        return torch.where(there, self.layers(x), self.absent)


class Zeroed(Choice):
    """The logarithm of a share that is zero for a class that the row has."""

    def build_model(self):
        return ZeroShares()


class ZeroShares(Utilities):
    def __init__(self):
        super().__init__(0.0)

    def forward(self, x, there):
        return torch.relu(super().forward(x, there)).log()


def outcomes(task_type, frame: pl.DataFrame, folder, *names: str):
    dataset = dataset_of(frame, folder)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection.model_validate(
        {"steps": 400, "global_batch_size": 128}, strict=False
    )
    results = run_checks(Subject.prepare(make, dataset, SETTINGS, training), names)
    return {each.check: (each.outcome, each.measured) for each in results}


@pytest.mark.parametrize(
    ("task_type", "frame", "checks"),
    [
        (LogLog, DEATHS, ["class_weights", "prediction_detail"]),
        (Scaled, AMOUNTS, ["initial_loss", "predictions", "loss_floor"]),
        (Choice, CHOICES, ["activations", "metric_values", "input_independent_baseline"]),
    ],
)
def test_healthy_tasks_pass(task_type, frame, checks, tmp_path):
    found = outcomes(task_type, frame, tmp_path, *checks)
    assert {name: each for name, each in found.items() if each[0] != "passed"} == {}


@pytest.mark.parametrize(
    ("task_type", "frame", "check"),
    [
        (RareWeighLess, DEATHS, "class_weights"),
        (RareRowsWeighLess, DEATHS, "class_weights"),
        (Unscaled, AMOUNTS, "predictions"),
        (Loud, AMOUNTS, "initial_loss"),
        (Undefined, CHOICES, "activations"),
        (Zeroed, CHOICES, "activations"),
    ],
)
def test_bugs_of_the_same_kinds_are_caught(task_type, frame, check, tmp_path):
    assert outcomes(task_type, frame, tmp_path, check)[check][0] == "failed"
