"""Tasks that measure statistics: numbers in another order or scale, gaps that count as labels."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.checks.loss.predictions import check_predictions
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

ROWS, HOURS = 400, 4
PLACES = torch.tensor([100, 10, 1])
RNG = np.random.default_rng
X = RNG(3).normal(size=(ROWS, 3))


class Network(nn.Module):
    def __init__(self, *shape):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, int(np.prod(shape))))
        self.shape = shape

    def forward(self, x):
        return self.layers(x).view(-1, *self.shape)


class Measured(Task):
    """Three numbers, and a label of some form."""

    kind = "statistic"
    metrics: Mapping[str, Any] = {"error": "minimize"}

    def encode(self, rows):
        x = rows.select("a", "b", "c").to_numpy()
        own = self.encode_label(rows["label"])
        return {"x": torch.tensor(x, dtype=torch.float32), LABEL: own}

    def statistic(self, output, batch):
        return self.losses(output, batch).detach().double()


class Digits(Measured):
    """A number of three digits, read digit by digit."""

    order = (0, 1, 2)

    def encode_label(self, labels):
        return torch.tensor(labels.to_list())[:, None] // PLACES % 10

    def build_model(self):
        return Network(3, 10)

    def losses(self, output, batch):
        found = functional.cross_entropy(output.transpose(1, 2), batch[LABEL], reduction="none")
        return found.sum(dim=1)

    def predict(self, output):
        return (output.argmax(dim=2)[:, list(self.order)] * PLACES).sum(dim=1).float()


class DigitsFromTheRight(Digits):
    order = (2, 1, 0)


class Hours(Measured):
    """Four hours ahead, of which some may be missing."""

    def encode_label(self, labels):
        return torch.tensor([[np.nan if v is None else v for v in each] for each in labels]).float()

    def build_model(self):
        return Network(HOURS)

    def losses(self, output, batch):
        known = batch[LABEL].isfinite()
        return ((output - batch[LABEL].nan_to_num()).square() * known).mean(dim=1)

    def predict(self, output):
        return output * 1.0


class HoursBackwards(Hours):
    def predict(self, output):
        return output.flip(1)


class GapsAreZero(Hours):
    def losses(self, output, batch):
        return (output - batch[LABEL].nan_to_num()).square().mean(dim=1)


class Depths(Hours):
    """Depths, of which -1 says that nobody marked them."""

    def encode_label(self, labels):
        return torch.tensor(labels.to_list()).float()

    def losses(self, output, batch):
        return ((output - batch[LABEL]).square() * (batch[LABEL] != -1)).mean(dim=1)


class UnmarkedDepths(Depths):
    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(dim=1)


class Beyond(Depths):
    """Depths, of which -1 says that they lie beyond what was measured."""

    def losses(self, output, batch):
        is_beyond = batch[LABEL] == -1
        error = (output - batch[LABEL]).abs()
        return torch.where(is_beyond, functional.softplus(-output), error).mean(dim=1)


class Risk(Measured):
    """Serves a rank, which is no number of the label's."""

    def encode_label(self, labels):
        return torch.tensor(labels.to_list()).float()

    def build_model(self):
        return Network(1)

    def losses(self, output, batch):
        return (output[:, 0] - (batch[LABEL] / 500 - 1)).square()

    def predict(self, output):
        return -output[:, 0].exp()


class Riders(Hours):
    """Counts of riders, learned as standardised logarithms and measured as counts."""

    def losses(self, output, batch):
        return (output - (batch[LABEL].log1p() - 3) / 0.2).square().mean(dim=1)

    def predict(self, output):
        return (0.2 * output + 3).expm1()

    def statistic(self, output, batch):
        return (self.predict(output) - batch[LABEL]).abs().mean(dim=1).double()


class LogarithmsOfRiders(Riders):
    def predict(self, output):
        return 0.2 * output + 3


class StandardisedRiders(Riders):
    def predict(self, output):
        return output * 1.0


class ServedAndMeasuredAsLogarithms(LogarithmsOfRiders):
    """Means to: the statistic is the error of the logarithm."""

    def statistic(self, output, batch):
        return (self.predict(output) - batch[LABEL].log1p()).abs().mean(dim=1).double()


def riders():
    return (20 + 4 * np.array(hours())).clip(2).round().tolist()


def readings():
    return RNG(4).integers(0, 1000, ROWS)


def hours(share=0.0):
    values = (X[:, :1] + np.arange(HOURS) % 2 + RNG(5).normal(size=(ROWS, HOURS))).tolist()
    missing = RNG(6).random((ROWS, HOURS)) < share
    return [
        [None if gap else value for value, gap in zip(*each, strict=True)]
        for each in zip(values, missing, strict=True)
    ]


def depths():
    values = (20 + 4 * np.array(hours())).clip(2).round(1)
    return np.where(RNG(7).random(values.shape) < 0.1, -1.0, values).tolist()


def examined(task_type, labels, folder):
    columns = dict(zip("abc", X.T, strict=True))
    dataset = dataset_of(pl.DataFrame({"row": range(ROWS), **columns, "label": labels}), folder)
    make = lambda: task_type(task_type.Options(), dataset.snapshot.task_columns)  # noqa: E731
    training = TrainingSection(global_batch_size=32, micro_batch_size=32)
    return check_predictions(Subject.prepare(make, dataset, SETTINGS, training))


@pytest.mark.parametrize(
    ("task_type", "labels", "measured"),
    [
        (DigitsFromTheRight, readings(), "is served as"),
        (HoursBackwards, hours(), "is served as"),
        (LogarithmsOfRiders, riders(), "gives logarithms of the label's numbers"),
        (StandardisedRiders, riders(), "gives logarithms of the label's numbers"),
        (GapsAreZero, hours(0.2), "missing numbers among 1024 labels count in the loss"),
        (UnmarkedDepths, depths(), "missing numbers among 1024 labels count in the loss"),
    ],
)
def test_labels_in_another_order_or_scale_and_counted_gaps_fail(
    task_type, labels, measured, tmp_path
):
    result = examined(task_type, labels, tmp_path)
    assert result.outcome == "failed", result.measured
    assert measured in result.measured


@pytest.mark.parametrize(
    ("task_type", "labels"),
    [
        (Digits, readings()),
        (Hours, hours()),
        (Hours, hours(0.2)),
        (Risk, readings()),
        (Riders, riders()),
        (ServedAndMeasuredAsLogarithms, riders()),
        (Depths, depths()),
        (Beyond, depths()),
        (UnmarkedDepths, hours()),
    ],
)
def test_labels_as_they_are_masked_gaps_and_risks_pass(task_type, labels, tmp_path):
    result = examined(task_type, labels, tmp_path)
    assert result.outcome == "passed", result.measured


class Named(Digits):
    """Names the answers of `predict`, which a statistic does not serve unless it says so."""

    prediction_names = ("first", "second", "third")

    def predict(self, output):
        return output.argmax(dim=-1)


class NamedAndServed(Named):
    serves_predictions = True


@pytest.mark.parametrize(("task_type", "outcome"), [(Named, "failed"), (NamedAndServed, "passed")])
def test_names_that_are_not_those_of_what_is_served_fail(task_type, outcome, tmp_path):
    result = examined(task_type, readings(), tmp_path)
    assert result.outcome == outcome, result
    assert outcome == "passed" or "serves_predictions" in result.hint
