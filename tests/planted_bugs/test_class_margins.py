"""Margins between several classes: what is predicted only ranks them."""

from functools import partial
from typing import ClassVar

import numpy as np
import pytest

from other_styles import Columns, Module, dataset_of, table_of
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.metrics.catalogue import directions_of
from skeleton_tables import SETTINGS

CLASSES = 7
GENERATOR = np.random.default_rng(8)
X = GENERATOR.normal(size=(1200, CLASSES))
FRAME = table_of(X, (2 * X + GENERATOR.gumbel(size=X.shape)).argmax(axis=1))


class Margins(Columns):
    """The hinge of Crammer and Singer, judged by the class that is chosen."""

    kind = "multiclass"
    metrics: ClassVar = directions_of("accuracy", "macro_f1")

    def encode_label(self, labels):
        return labels.to_torch()

    def build_model(self):
        return Module(self.network(CLASSES), lambda scores: scores)

    def losses(self, output, batch):
        own = batch["label"][:, None]
        margins = 1 + output - output.gather(1, own)
        return margins.scatter(1, own, 0.0).amax(1).clamp_min(0)


class NextClass(Margins):
    """Served are the classes in another order."""

    def predict(self, output):
        return output.roll(1, dims=1).softmax(dim=1)


class LeastLikely(Margins):
    """Distances are served as if they were scores."""

    def predict(self, output):
        return (-output).softmax(dim=1)


class JudgedByLikelihood(Margins):
    """A margin's softmax is no probability."""

    metrics: ClassVar = directions_of("log_loss", "accuracy")


def outcome(task_type, folder):
    dataset = dataset_of(FRAME, folder)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection.model_validate(
        {"steps": 400, "global_batch_size": 128}, strict=False
    )
    results = run_checks(Subject.prepare(make, dataset, SETTINGS, training), ["predictions"])
    return {each.check: each.outcome for each in results}["predictions"]


def test_margins_are_enough_where_metrics_take_the_largest(tmp_path):
    assert outcome(Margins, tmp_path) == "passed"


@pytest.mark.parametrize("task_type", [NextClass, LeastLikely, JudgedByLikelihood])
def test_other_predictions_than_the_margins_are_found(task_type, tmp_path):
    assert outcome(task_type, tmp_path) == "failed"
