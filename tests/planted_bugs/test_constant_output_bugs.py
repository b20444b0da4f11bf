"""Metrics that take outputs which are all alike for good ones, and metrics that do not."""

from typing import ClassVar

import numpy as np
import pytest
import torch

from perennial.engine.task import LABEL
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.image_text import ImageTextContrastive
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Bug, planted, require_caught
from workshop import results_of

BUGS: list[Bug] = []
TIES = "ties count as wins"


@planted(BUGS, "metric_direction", TIES, material="captions", rows=600)
class TiesAreWon(ImageTextContrastive):
    """captions that score as well as the right one are counted as behind it"""

    def statistic(self, output, batch):
        found = super().statistic(output, batch)
        found[:, 1::2] = 1
        return found


@planted(BUGS, "metric_direction", TIES, material="digits")
class HitsByThoseAhead(ImageClassification):
    """a digit is found if none is likelier: none is where all are equal"""

    metrics: ClassVar = {"found": "maximize"}

    def score(self, predictions, labels):
        own = predictions[np.arange(len(labels)), labels.astype(int)]
        ahead = (predictions > own[:, None]).sum(axis=1)
        return {"found": float((ahead == 0).mean())}


@planted(BUGS, "metric_direction", TIES, material="binary")
class PairsByThoseBehind(TabularClassification):
    """a pair of rows is in order unless the wrong one is clearly ahead"""

    metrics: ClassVar = {"pairs_in_order": "maximize"}

    def score(self, predictions, labels):
        ones, zeros = predictions[labels == 1], predictions[labels == 0]
        return {"pairs_in_order": float((ones[:, None] >= zeros[None, :]).mean())}


@planted(BUGS, "metric_direction", TIES, material="regression")
class OrderByThoseBehind(TabularRegression):
    """two rows are in order unless their predictions are in the opposite order"""

    metrics: ClassVar = {"in_order": "maximize"}

    def score(self, predictions, labels):
        steps = np.diff(labels[:512]) * np.diff(predictions[:512])
        return {"in_order": float((steps >= 0).mean())}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)


class TiesAreLost(ImageTextContrastive):
    """Captions that score as well as the right one are counted as ahead."""

    def statistic(self, output, batch):
        found = super().statistic(output, batch)
        found[:, 0::2] += found[:, 1::2] - 1
        found[:, 1::2] = 1
        return found


class Calibration(TabularClassification):
    """How far probabilities are from shares, on average: the prior alone is perfect."""

    metrics: ClassVar = {"log_loss": "minimize", "gap": "minimize"}

    def score(self, predictions, labels):
        bins = np.minimum((predictions * 10).astype(int), 9)
        gaps = [
            abs(predictions[bins == b].mean() - labels[bins == b].mean()) * (bins == b).mean()
            for b in np.unique(bins)
        ]
        chance = np.where(labels == 1, predictions, 1 - predictions)
        loss = -np.log(np.clip(chance, 1e-7, 1)).mean()
        return {"log_loss": float(loss), "gap": float(sum(gaps))}


class Found(TabularClassification):
    """The share of ones that are found: a constant yes finds all of them."""

    metrics: ClassVar = {"found": "maximize"}

    def score(self, predictions, labels):
        return {"found": float((predictions[labels == 1] > 0.5).mean())}


class Bias(TabularRegression):
    """The absolute mean error: the mean alone has none."""

    metrics: ClassVar = {"rmse": "minimize", "bias": "minimize"}

    def score(self, predictions, labels):
        error = predictions - labels
        return {"rmse": float(np.sqrt((error**2).mean())), "bias": float(abs(error.mean()))}


class Gaps(ImageClassification):
    """How far the confidence in digits is from the share of right ones."""

    metrics: ClassVar = {"accuracy": "maximize", "gap": "minimize"}

    def score(self, predictions, labels):
        is_right = predictions.argmax(axis=1) == labels
        gap = abs(float(predictions.max(axis=1).mean() - is_right.mean()))
        return {"accuracy": float(is_right.mean()), "gap": gap}


class FoundOfEach(ImageClassification):
    """The share of ones that are found, example by example: a yes to everything finds all."""

    kind = "statistic"
    metrics: ClassVar = {"found": "maximize"}

    def statistic(self, output, batch):
        is_one = batch[LABEL] == 1
        return torch.stack([(output[:, 1] > 0) & is_one, is_one], 1).double()

    def score(self, predictions, labels):
        right, ones = np.average(predictions, axis=0, weights=labels)
        return {"found": float(right / ones)}


HEALTHY = [
    (FoundOfEach, "digits", {}),
    (ImageTextContrastive, "captions", {"rows": 600}), (TiesAreLost, "captions", {"rows": 600}),
    (Calibration, "binary", {}), (Found, "binary", {}), (Bias, "regression", {}),
    (Gaps, "digits", {}), (CausalLanguageModel, "documents", {}),
]  # fmt: skip


@pytest.mark.parametrize(("task_type", "material", "shape"), HEALTHY)
def test_metrics_that_one_constant_maximises_pass(task_type, material, shape, workshop):
    subject = workshop.subject(task_type, material, **shape)
    result = results_of(subject, "metric_direction")["metric_direction"]
    assert result.outcome == "passed", (result.measured, result.hint)


class LogError(TabularRegression):
    """The logarithm of the error: there is none for predictions that equal the labels."""

    metrics: ClassVar = {"log_rmse": "minimize"}

    def score(self, predictions, labels):
        with np.errstate(divide="ignore"):
            return {"log_rmse": float(np.log(((predictions - labels) ** 2).mean()) / 2)}


def test_a_metric_that_perfect_predictions_do_not_define_is_not_a_failure(workshop):
    subject = workshop.subject(LogError, "regression")
    result = results_of(subject, "metric_direction")["metric_direction"]
    assert result.is_unmeasured, (result.outcome, result.measured)
