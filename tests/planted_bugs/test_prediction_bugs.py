"""Predictions with less detail than the model, and class weights that pull the wrong way."""

import math
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn

from own_tasks import Leaving, Next
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.tabular import TabularClassification
from planted import Bug, require_caught
from planted import planted as planted_bug
from workshop import Workshop, results_of

BUGS: list[Bug] = []


def planted(check, hint, *, material="customers", outcome="failed", **how):
    return planted_bug(BUGS, check, hint, material=material, outcome=outcome, **how)


# What predict makes of outputs


class Weighted(Leaving):
    """Those who leave weigh three times as much in training."""

    def training_losses(self, output, batch):
        return self.losses(output, batch) * torch.where(batch[LABEL] > 0.5, 3.0, 1.0)


class Corrected(Weighted):
    """The weight is taken back from the predictions."""

    def predict(self, output):
        return torch.sigmoid(output - math.log(3.0))


@planted("predictions", "in the wrong direction")
class CorrectedTwice(Weighted):
    """the weight is added to the predictions once more"""

    def predict(self, output):
        return torch.sigmoid(output + math.log(3.0))


class Distance(Leaving):
    """A distance, small for label 1, with a margin: 1 is as good as 2."""

    metrics = directions_of("roc_auc")

    def losses(self, output, batch):
        margin = (1 - output.abs()).clamp_min(0)
        return torch.where(batch[LABEL] > 0.5, output, margin).square()

    def predict(self, output):
        return (-output.square()).exp()


@planted("predictions", "losses and predict disagree")
class DistanceOfTheOtherLabel(Distance):
    """the loss takes 1 for different, as its paper does, and labels say 1 for equal"""

    def losses(self, output, batch):
        return super().losses(output, {**batch, LABEL: 1 - batch[LABEL]})


@planted("predictions", "losses and predict disagree")
class DistanceAsProbability(Distance):
    """a distance beyond the margin is no probability that is read"""

    metrics = directions_of("log_loss", "roc_auc")


def test_distances_that_are_only_ranked_pass(workshop):
    result = results_of(workshop.subject(Distance, "customers"), "predictions")["predictions"]
    assert result.outcome == "passed", (result.measured, result.hint)


@pytest.mark.parametrize("task_type", [Weighted, Corrected])
def test_class_weights_kept_or_undone_in_predict_pass(task_type, workshop):
    result = results_of(workshop.subject(task_type, "customers"), "predictions")["predictions"]
    assert result.outcome == "passed", (result.measured, result.hint)


class InColumns(Next):
    """Labels of shape [B, 1], as from a table's values."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL].reshape(-1, 1)} if LABEL in batch else batch

    def losses(self, output, batch):
        return super().losses(output, {**batch, LABEL: batch[LABEL].squeeze(1)})

    def score(self, predictions, labels):
        return super().score(predictions, labels.reshape(-1))


@pytest.mark.parametrize("check", ["predictions", "metric_direction", "metric_values"])
def test_labels_in_a_column_of_their_own_pass(check, workshop):
    result = results_of(workshop.subject(InColumns, "series"), check)[check]
    assert result.outcome == "passed", (result.measured, result.hint)


@planted("metric_direction", "reflect the rare class", outcome="warned")
class AccuracyOfTheRare(Leaving):
    """one in forty leaves, and accuracy alone judges"""

    metrics: ClassVar = directions_of("accuracy")

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            place = batch["numbers"].abs().sum(dim=1) if "numbers" in batch else None
            is_kept = (place * 1e4).long() % 20 == 0
            batch[LABEL] = torch.where(is_kept, batch[LABEL], torch.zeros_like(batch[LABEL]))
        return batch


@planted("prediction_detail", "rounds, clips, thresholds")
class Thresholded(Leaving):
    """predict returns classes, 0 or 1, where probabilities are asked for"""

    def predict(self, output):
        return (output > 0).float()


@planted("prediction_detail", "rounds, clips, thresholds")
class OneDecimal(Leaving):
    """probabilities are rounded to one decimal"""

    def predict(self, output):
        return (torch.sigmoid(output) * 10).round() / 10


@planted("prediction_detail", "rounds, clips, thresholds", material="digits")
class OneHot(ImageClassification):
    """predict returns the likeliest digit as certain"""

    def predict(self, output):
        return nn.functional.one_hot(output.argmax(dim=1), output.shape[1]).float()


@planted("prediction_detail", "saturates")
class Hot(Leaving):
    """a factor of a hundred makes every probability 0 or 1"""

    def predict(self, output):
        return torch.sigmoid(100 * output)


@planted("prediction_detail", "clips")
class Narrow(Leaving):
    """probabilities are cut at 10 and 90 %"""

    def predict(self, output):
        return torch.sigmoid(output).clamp(0.1, 0.9)


@planted("prediction_detail", "unrounded", material="series")
class WholeValues(Next):
    """values are rounded to whole numbers, the labels are not whole"""

    def predict(self, output):
        return super().predict(output / 4).round()


@planted("prediction_detail", "temperature")
class Cold(Leaving):
    """predict divides by a temperature that the loss does not know"""

    def predict(self, output):
        return torch.sigmoid(output / 10)


@planted("prediction_detail", "tanh for sigmoid")
class Tanh(Leaving):
    """predict squeezes with tanh, the loss with a sigmoid"""

    def predict(self, output):
        return (1 + torch.tanh(output)) / 2


@planted("prediction_detail", "temperature", material="multiclass")
class ColdSoftmax(TabularClassification):
    """the softmax of predict has a temperature of three"""

    def predict(self, output):
        return torch.softmax(output / 3, dim=-1)


class Scaled(TabularClassification):
    """Cosines times a scale, in the loss and in predict: most probabilities are nearly 0."""

    scale = 8

    def losses(self, output, batch):
        return super().losses(self.scale * output, batch)

    def predict(self, output):
        return super().predict(self.scale * output)


@planted("prediction_detail", "temperature", material="multiclass")
class ScaledInTheLoss(Scaled):
    """the scale of the loss is missing in predict"""

    def predict(self, output):
        return TabularClassification.predict(self, output)


@planted("prediction_detail", "predict uses its batch")
class Stretched(Leaving):
    """scores are stretched to 0 and 1 within each batch"""

    def predict(self, output):
        return (output - output.min()) / (output.max() - output.min() + 1e-9)


@planted("prediction_detail", "predict uses its batch")
class Ranked(Leaving):
    """predict returns the rank within the batch"""

    def predict(self, output):
        return output.argsort().argsort() / len(output)


@planted("prediction_detail", "predict uses its batch", material="series")
class Recentred(Next):
    """predictions of a batch are moved to the mean of the training"""

    def predict(self, output):
        return super().predict(output - output.mean())


# Class weights


class Rare(TabularClassification):
    """One label in ten is positive."""

    weights = (1.0, 9.0)

    def training_losses(self, output, batch):
        weights = torch.tensor(self.weights)[batch[LABEL].long()]
        return weights * self.losses(output, batch)


@planted("class_weights", "inverted", material="binary", positive=0.1)
class Inverted(Rare):
    """weights of the classes are frequencies in place of their inverse"""

    weights = (0.9, 0.1)


@planted("class_weights", "negatives over positives", material="binary", positive=0.1)
class PositivesOverNegatives(Rare):
    """pos_weight is positives over negatives"""

    def training_losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            output.squeeze(-1), batch[LABEL].float(), reduction="none",
            pos_weight=torch.tensor(0.1 / 0.9),
        )  # fmt: skip


@planted("class_weights", "inverted", material="binary", positive=0.1)
class InvertedWeights(TabularClassification):
    """the rows' weights are those of the other class"""

    def encode(self, rows):
        batch = super().encode(rows)
        return (
            {**batch, WEIGHT: torch.where(batch[LABEL] == 1, 0.1, 0.9)} if LABEL in batch else batch
        )


@planted("class_weights", "weighted twice", material="binary", outcome="warned", positive=0.1)
class Twice(Rare):
    """rare rows have a larger weight, and the loss weighs them again"""

    weights = (1.0, 81.0)


@planted("class_weights", "other data", outcome="warned")
class OfOtherData(Leaving):
    """classes of equal frequency have the weights of another data set"""

    def training_losses(self, output, batch):
        return self.losses(output, batch) * torch.where(batch[LABEL] == 1, 12.0, 1.0)


@planted("augmentation", "not returned", outcome="warned")
class NotReturned(Leaving):
    """augment makes noise and returns the batch without it"""

    def augment(self, batch, generator):
        _ = batch["numbers"] + 0.1 * torch.randn(batch["numbers"].shape, generator=generator)
        return dict(batch)


@planted("augmentation", "strength or probability", outcome="warned")
class OfNoStrength(Leaving):
    """the strength of the noise is an integer division that gives 0"""

    def augment(self, batch, generator):
        noise = torch.randn(batch["numbers"].shape, generator=generator)
        return {**batch, "numbers": batch["numbers"] + (1 // 10) * noise}


@planted("augmentation", "probability", outcome="warned")
class Never(Leaving):
    """the probability of blanking a column is compared the wrong way round"""

    def augment(self, batch, generator):
        blank = torch.rand(batch["numbers"].shape, generator=generator) > 1.0
        return {**batch, "numbers": batch["numbers"].masked_fill(blank, 0.0)}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_caught(bug: Bug, workshop: Workshop):
    require_caught(bug, workshop)


# Healthy neighbours


class Balanced(Rare):
    """Weights by inverse frequency."""


class InLosses(Rare):
    """Weights in the loss that is measured, too, so that probabilities are moved by right."""

    def losses(self, output, batch):
        weights = torch.tensor(self.weights)[batch[LABEL].long()]
        return weights * super().losses(output, batch)

    def training_losses(self, output, batch):
        return self.losses(output, batch)


class Focal(Leaving):
    """Easy examples count less."""

    def losses(self, output, batch):
        chance = torch.sigmoid(output)
        right = torch.where(batch[LABEL] == 1, chance, 1 - chance)
        return (1 - right) ** 2 * super().losses(output, batch)


class Smoothed(Leaving):
    """Labels are 0.1 and 0.9."""

    def losses(self, output, batch):
        return super().losses(output, {**batch, LABEL: 0.1 + 0.8 * batch[LABEL]})


class Hinge(Leaving):
    """A margin in place of a likelihood."""

    def losses(self, output, batch):
        return (1 - (2 * batch[LABEL] - 1) * output).clamp_min(0)


class TwoOutputs(Leaving):
    """A mean and a deviation, of probability."""

    def build_model(self):
        model = super().build_model()
        model.layers[-1] = nn.Linear(32, 2)
        model.forward = lambda numbers, job: model.layers(torch.cat([numbers, model.job(job)], 1))
        return model

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(dim=1)[:, 1]


class NotNegative(Next):
    """Values are cut at a limit that none reaches."""

    def predict(self, output):
        return super().predict(output).clamp(-np.inf, 1e6)


@pytest.mark.parametrize(
    ("task_type", "material", "shape"),
    [
        (Balanced, "binary", {"positive": 0.1}),
        (InLosses, "binary", {"positive": 0.1}),
        (Focal, "customers", {}),
        (Smoothed, "customers", {}),
        (Hinge, "customers", {}),
        (TwoOutputs, "customers", {}),
        (NotNegative, "series", {}),
        (Next, "series", {}),
        (TabularClassification, "multiclass", {}),
        (Scaled, "multiclass", {}),
        (ImageClassification, "digits", {}),
    ],
)  # fmt: skip
@pytest.mark.parametrize("check", ["prediction_detail", "class_weights"])
def test_healthy_tasks_have_no_findings(task_type, material, shape, check, workshop):
    result = results_of(workshop.subject(task_type, material, **shape), check)[check]
    assert result.outcome in ("passed", "skipped"), (result.measured, result.hint)
