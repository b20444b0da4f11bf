"""Losses that need no label, as of triplets, may have a constant for one; others may not."""

from functools import partial
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import dataset_of
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

ROWS, WIDTH = 600, 4
SIDES = ("anchor", "label", "negative")


def triplets() -> pl.DataFrame:
    """Points of two clouds: one, another of its cloud, and one of the other cloud."""
    generator = np.random.default_rng(2)
    cloud = generator.integers(0, 2, ROWS)[:, None]
    points = [generator.normal(size=(ROWS, WIDTH)) + 2 * side for side in (cloud, cloud, 1 - cloud)]
    columns = {name: each.tolist() for name, each in zip(SIDES, points, strict=True)}
    return pl.DataFrame({"row": range(ROWS), **columns})


class Sides(nn.Module):
    """The same layer for what is compared."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 3)

    def forward(self, anchor, negative, positive=None):
        positive = anchor if positive is None else positive
        return torch.stack([self.layer(each) for each in (anchor, positive, negative)], dim=1)


class Triplets(Task):
    """nearer to its own cloud than to the other"""

    kind = "statistic"
    metrics: ClassVar = {"nearer": "maximize"}

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        given = {
            name: torch.tensor(rows[name].to_list(), dtype=torch.float32)
            for name in SIDES
            if name in rows.columns
        }
        positive = given.pop("label", None)
        return given if positive is None else {**given, **self.labelled(positive)}

    def labelled(self, positive):
        return {"positive": positive, LABEL: torch.zeros(len(positive))}

    def build_model(self):
        return Sides()

    def losses(self, output, batch):
        anchor, positive, negative = output.unbind(dim=1)
        return torch.relu((anchor - positive).norm(dim=1) - (anchor - negative).norm(dim=1) + 1)

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        anchor, positive, negative = output.unbind(dim=1)
        return ((anchor - positive).norm(dim=1) < (anchor - negative).norm(dim=1)).double()

    def score(self, predictions, labels):
        return {"nearer": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return 1.0


class LossReadsTheLabel(Triplets):
    """the loss reads a label that is always the same"""

    def losses(self, output, batch):
        return (output[:, 0, 0] - batch[LABEL]).square()


class StatisticReadsTheLabel(Triplets):
    """the loss ignores the label that the statistic reads"""

    def statistic(self, output, batch):
        return (output[:, 0, 0] - batch[LABEL]).abs()


class LabelColumnLost(Triplets):
    """the label column reaches neither the inputs nor the label"""

    def labelled(self, positive):
        return {LABEL: torch.zeros(len(positive))}


class LossIgnoresTheLabel(Triplets):
    """a label is encoded, and neither loss nor statistic reads it"""

    def labelled(self, positive):
        return {"positive": positive, LABEL: positive[:, 0]}

    def losses(self, output, batch):
        return (output[:, 0] - output[:, 0].detach() + 1).square().sum(dim=1)


class Regression(Triplets):
    """numbers are to be predicted, and all are the same"""

    kind = "regression"
    metrics: ClassVar = {"mae": "minimize"}

    def predict(self, output):
        return output[:, 0, 0]


@pytest.fixture(scope="module")
def examine(tmp_path_factory):
    dataset = dataset_of(triplets(), tmp_path_factory.mktemp("table"))

    def outcomes(task_type):
        make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
        training = TrainingSection(seed=1, steps=50, global_batch_size=64)
        subject = Subject.prepare(make, dataset, SETTINGS, training)
        checks = ("labels", "loss_floor", "loss_not_clipped", "serving_inputs")
        results = run_checks(subject, checks)
        return {result.check: result for result in results}

    return outcomes


def test_label_checks_are_skipped_for_losses_without_labels(examine):
    results = examine(Triplets)
    assert results.pop("serving_inputs").outcome == "passed"
    assert {result.outcome for result in results.values()} == {"skipped"}
    assert all("the loss needs no label" in result.hint for result in results.values())
    assert not any(result.is_unmeasured for result in results.values())


@pytest.mark.parametrize(
    "bug",
    [LossReadsTheLabel, StatisticReadsTheLabel, LabelColumnLost, Regression],
    ids=lambda bug: bug.__doc__,
)
def test_every_other_label_that_is_always_the_same_fails(examine, bug):
    result = examine(bug)["labels"]
    assert (result.outcome, "every sampled label is" in result.measured) == ("failed", True)
    assert "kind = 'statistic'" in result.hint


def test_a_loss_that_ignores_its_label_fails(examine):
    results = examine(LossIgnoresTheLabel)
    assert results["loss_floor"].outcome == "failed"
    assert "labels are not used" in results["loss_floor"].hint


class ServedPositive(Triplets):
    """what is served is the embedding of the label column"""

    def predict(self, output):
        return output[:, 1]


class LabelAsSize(Triplets):
    """the anchor is scaled by the label column"""

    def labelled(self, positive):
        return {"positive": positive, "negative": positive, LABEL: torch.zeros(len(positive))}


@pytest.mark.parametrize("bug", [ServedPositive, LabelAsSize], ids=lambda bug: bug.__doc__)
def test_a_label_column_that_reaches_what_is_served_fails(examine, bug):
    assert examine(bug)["serving_inputs"].outcome == "failed"
