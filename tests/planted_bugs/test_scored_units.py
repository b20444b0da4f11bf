"""Tasks that learn scaled labels, and predict and score in the unit of the data's column."""

import numpy as np
import pytest
import torch

from other_styles import Columns, Module, dataset_of, numbers_table, table_of
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

CHECKS = ("per_example_losses", "metric_values", "predictions", "metric_direction")
SCALE, SHIFT = 80_000.0, 200_000.0


class Dollars(Columns):
    """Learns a value in units of its own; predictions and scores are in dollars."""

    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def encode_label(self, labels):
        return torch.from_numpy(self.into_units(labels.to_numpy())).float()

    def build_model(self):
        return Module(self.network(1), lambda output: output[:, 0])

    def losses(self, output, batch):
        return (output - batch[LABEL]) ** 2

    def predict(self, output):
        return torch.from_numpy(self.into_dollars(output.detach().double().numpy()))

    def score(self, predictions, labels):
        return super().score(predictions, self.into_dollars(labels))

    def into_units(self, dollars):
        return (dollars - SHIFT) / SCALE

    def into_dollars(self, units):
        return units * SCALE + SHIFT


class Logarithms(Dollars):
    def into_units(self, dollars):
        return np.log1p(dollars) - 12.0

    def into_dollars(self, units):
        return np.expm1(units + 12.0)


class InOneColumn(Dollars):
    """Labels and outputs of shape [B, 1]."""

    def encode_label(self, labels):
        return super().encode_label(labels)[:, None]

    def build_model(self):
        return Module(self.network(1))

    def losses(self, output, batch):
        return super().losses(output, batch)[:, 0]

    def predict(self, output):
        return super().predict(output)[:, 0]


class ScoresUnits(Dollars):
    """Predictions in dollars are compared with labels in units."""

    def score(self, predictions, labels):
        return super(Dollars, self).score(predictions, labels)


class PredictsUnits(Dollars):
    """Predictions in units are compared with labels in dollars."""

    def predict(self, output):
        return output


class Deviations(Dollars):
    """Learns, predicts and scores in standard deviations from the mean."""

    def fit_label(self, labels):
        return {"label": [labels.mean(), labels.std()]}

    def into_units(self, dollars):
        mean, deviation = self.fitted["label"]
        return (dollars - mean) / deviation

    def into_dollars(self, units):
        return units


class Restored(Deviations):
    """Learns in deviations, and predicts and scores in dollars."""

    def into_dollars(self, units):
        mean, deviation = self.fitted["label"]
        return units * deviation + mean


def subject_of(task_type, folder):
    x, score = numbers_table(900)
    dollars = np.exp(12.0 + 0.4 * score / score.std())
    return prepared(task_type, dataset_of(table_of(x, dollars), folder))


def outcomes(task_type, folder):
    subject = subject_of(task_type, folder)
    return {name: results_of(subject, name)[name].outcome for name in CHECKS}


@pytest.mark.parametrize("task_type", [Dollars, Logarithms, Restored, InOneColumn])
def test_scores_in_the_unit_of_the_predictions_pass(task_type, tmp_path):
    assert outcomes(task_type, tmp_path) == dict.fromkeys(CHECKS, "passed")


@pytest.mark.parametrize("task_type", [ScoresUnits, PredictsUnits])
def test_scores_of_two_units_fail(task_type, tmp_path):
    found = outcomes(task_type, tmp_path)
    assert "failed" in (found["metric_values"], found["metric_direction"], found["predictions"])


def test_standard_deviations_that_are_served_warn(tmp_path):
    found = results_of(subject_of(Deviations, tmp_path), "predictions")["predictions"]
    assert (found.outcome, found.measured) == (
        "warned",
        "labels are standardised, and so are predictions of them",
    )


def test_labels_of_one_column_are_taken(tmp_path):
    subject = subject_of(InOneColumn, tmp_path)
    for name in ("labels", "telling_columns"):
        assert results_of(subject, name)[name].outcome == "passed"
