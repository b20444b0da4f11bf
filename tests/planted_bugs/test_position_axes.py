"""Classes of positions, normalised over positions or over the batch instead of over classes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.checks.loss.losses import check_per_example_losses
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

HEIGHT, WIDTH, CLASSES = 4, 5, 3


class Masks(Task):
    """Small grey pictures and the class of each pixel."""

    kind = "statistic"
    metrics: Mapping[str, Any] = {"error": "minimize"}

    def encode(self, rows):
        shape = (-1, HEIGHT, WIDTH)
        batch = {"x": torch.tensor(rows["picture"].to_list()).float().view(shape).unsqueeze(1)}
        batch[LABEL] = torch.tensor(rows["label"].to_list()).view(shape)
        return batch

    def losses(self, output, batch):
        return self.of_positions(output, batch[LABEL]).flatten(1).mean(1)

    def statistic(self, output, batch):
        return (output.argmax(1) != batch[LABEL]).double().flatten(1).mean(1)


class Network(nn.Module):
    """Scores of the classes of each pixel, or of each step where `is_text`."""

    def __init__(self, classes, is_text):
        super().__init__()
        self.layer, self.is_text = nn.Conv2d(1, classes, 3, padding=1), is_text

    def forward(self, x):
        found = self.layer(x)
        return found.flatten(2).transpose(1, 2) if self.is_text else found


def subject_of(folder, losses, *, is_text=False, classes=CLASSES):
    class Own(Masks):
        def encode(self, rows):
            batch = super().encode(rows)
            return {**batch, LABEL: batch[LABEL].flatten(1)} if is_text else batch

        def build_model(self):
            return Network(classes, is_text)

        def of_positions(self, output, labels):
            return losses(output, labels)

    generator = np.random.default_rng(5)
    grey = generator.integers(0, 256, (400, HEIGHT * WIDTH))
    frame = pl.DataFrame(
        {"row": range(400), "picture": grey.tolist(), "label": (grey * CLASSES // 256).tolist()}
    )
    dataset = dataset_of(frame, folder)
    make = partial(Own, Own.Options(), dataset.snapshot.task_columns)
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return Subject.prepare(make, dataset, SETTINGS, training)


def normalised(output, labels, dim):
    return functional.nll_loss(output.log_softmax(dim), labels, reduction="none")


def weighed(output, labels):
    return functional.cross_entropy(
        output, labels, weight=torch.tensor([0.2, 1.0, 3.0]), reduction="none"
    )


def smoothed(output, labels):
    return functional.cross_entropy(output, labels, label_smoothing=0.1, reduction="none")


def tags(output, labels):
    right = functional.one_hot(labels, CLASSES).movedim(-1, 1).float()
    return functional.binary_cross_entropy_with_logits(output, right, reduction="none").mean(1)


def margins(output, labels):
    right = output.gather(1, labels[:, None])
    return (1 + output - right).clamp(min=0).sum(1)


def by_word(output, labels):
    return functional.cross_entropy(output.transpose(1, 2), labels, reduction="none")


def along_words(output, labels):
    chances = output.log_softmax(1).transpose(1, 2)
    return functional.nll_loss(chances, labels, reduction="none")


BUGS = {
    "along the height": (partial(normalised, dim=2), False),
    "along the width": (partial(normalised, dim=3), False),
    "along the words": (along_words, True),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_softmax_over_positions_fails(bug, tmp_path):
    losses, is_text = BUGS[bug]
    result = check_per_example_losses(subject_of(tmp_path, losses, is_text=is_text))
    assert result.outcome == "failed", result.measured
    assert "changes no loss" in result.measured


def test_a_softmax_over_the_batch_fails(tmp_path):
    result = check_per_example_losses(subject_of(tmp_path, partial(normalised, dim=0)))
    assert result.outcome == "failed"
    assert "of its halves differ" in result.measured


HEALTHY = {
    "over the classes": (partial(normalised, dim=1), False, CLASSES),
    "weighed": (weighed, False, CLASSES),
    "smoothed": (smoothed, False, CLASSES),
    "a sigmoid for each class": (tags, False, CLASSES),
    "margins": (margins, False, CLASSES),
    "words": (by_word, True, CLASSES),
    "as many classes as rows": (partial(normalised, dim=1), False, HEIGHT),
    "as many classes as words": (by_word, True, HEIGHT * WIDTH),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_losses_of_classes_pass(case, tmp_path):
    losses, is_text, classes = HEALTHY[case]
    result = check_per_example_losses(
        subject_of(tmp_path, losses, is_text=is_text, classes=classes)
    )
    assert result.outcome == "passed", result.measured
