"""Statistics that threads add up in any order, and statistics of random rows."""

import itertools

import numpy as np
import pytest

from other_styles import Columns, Module, dataset_of, numbers_table, table_of
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

X, SCORE = numbers_table(600)


class Standardised(Columns):
    """Each fit finds means that are a rounding away from those of the last."""

    kind = "regression"
    noise = 1e-13
    drawn = itertools.count()

    def fit(self, train):
        super().fit(train)
        generator = np.random.default_rng(next(self.drawn))
        moved = np.array(self.fitted["mean"]) + self.noise * generator.normal(size=X.shape[1])
        self.fitted["mean"] = moved.tolist()

    def encode_label(self, labels):
        return labels.to_torch().float()

    def build_model(self):
        return Module(self.network(1), lambda found: found[:, 0])

    def losses(self, output, batch):
        return (output - batch[LABEL]) ** 2


class OfRandomRows(Standardised):
    noise = 1e-3


def examined(task_type, folder):
    dataset = dataset_of(table_of(X, SCORE.tolist()), folder)
    subject = prepared(task_type, dataset, training=TrainingSection(seed=1))
    return results_of(subject, "statistics_scope")["statistics_scope"]


def test_a_rounding_is_no_random_fit(tmp_path):
    assert examined(Standardised, tmp_path).outcome == "passed"


@pytest.mark.parametrize("task_type", [OfRandomRows])
def test_a_random_fit_fails(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert (found.outcome, "twice gives different" in found.measured) == ("failed", True)
