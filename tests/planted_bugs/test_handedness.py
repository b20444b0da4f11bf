"""Mirrored pictures whose points keep the names of left and right."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import dataset_of
from perennial.check_skeleton.checks.data.augmentation.augmentation import (
    check_augmentation_keeps_labels,
)
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

SIDE = 12
LEFT, RIGHT, MOUTH = 0, 1, 2
EXCHANGED = [RIGHT, LEFT, MOUTH]


def faces(rows=500, *, ordered=True):
    """A grey picture with three bright places: two eyes and a mouth, or three in any order."""
    rng = np.random.default_rng(2)
    pictures, points = [], []
    for _ in range(rows):
        places = np.array([[2, 3], [8, 3], [5, 8]]) + rng.integers(0, 3, (3, 2))
        if not ordered:
            places = rng.permutation(places)
        picture = rng.normal(0, 0.1, (SIDE, SIDE))
        picture[places[:, 1], places[:, 0]] += [1, 1, 2]
        pictures.append(picture.ravel().tolist())
        points.append((places / (SIDE - 1) * 2.0 - 1).ravel().tolist())
    return pl.DataFrame({"row": range(rows), "picture": pictures, "label": points})


class Faces(Task):
    """Where the three points are; nothing is changed while it trains."""

    kind = "statistic"
    metrics = dict.fromkeys(["off"], "minimize")
    is_flat = False

    def encode(self, rows):
        batch = {"x": torch.tensor(rows["picture"].to_list()).float().view(-1, 1, SIDE, SIDE)}
        if "label" in rows.columns:
            points = torch.tensor(rows["label"].to_list()).float()
            batch[LABEL] = points if self.is_flat else points.view(-1, 3, 2)
        return batch

    def move(self, picture, points, coin):
        return picture, points

    def augment(self, batch, generator):
        coin = torch.rand(len(batch["x"]), generator=generator) < 0.5
        points = batch[LABEL].view(-1, 3, 2)
        picture, points = self.move(batch["x"], points, coin)
        return {**batch, "x": picture, LABEL: points.reshape(batch[LABEL].shape)}


class Net(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layer, self.shape = nn.Linear(SIDE * SIDE, 6), shape

    def forward(self, x):
        return self.layer(x.flatten(1)).view(-1, *self.shape)


class Mirrored(Faces):
    """Each point moves with the picture and keeps its name."""

    order = (LEFT, RIGHT, MOUTH)

    def build_model(self):
        return Net((6,) if self.is_flat else (3, 2))

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().flatten(1).mean(1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def move(self, picture, points, coin):
        mirrored = (points * torch.tensor([-1.0, 1.0]))[:, list(self.order)]
        return (
            torch.where(coin[:, None, None, None], picture.flip(-1), picture),
            torch.where(coin[:, None, None], mirrored, points),
        )


class MirroredInOneRow(Mirrored):
    is_flat = True


class Exchanged(Mirrored):
    order = tuple(EXCHANGED)


class Turned(Mirrored):
    """Half are turned round: left stays left of a face that stands on its head."""

    def move(self, picture, points, coin):
        return (
            torch.where(coin[:, None, None, None], picture.flip(-1, -2), picture),
            torch.where(coin[:, None, None], -points, points),
        )


class Brighter(Mirrored):
    def move(self, picture, points, coin):
        return picture * (1 + 0.2 * coin[:, None, None, None]), points


def examine(task_type, folder, **table):
    dataset = dataset_of(faces(**table), folder)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return check_augmentation_keeps_labels(Subject.prepare(make, dataset, SETTINGS, training))


@pytest.mark.parametrize("task_type", [Mirrored, MirroredInOneRow])
def test_points_that_keep_their_names_in_a_mirror_warn(task_type, tmp_path):
    result = examine(task_type, tmp_path)
    assert result.outcome == "warned", result.measured
    assert "points 1, 2, 3 of the label lie one way round" in result.measured


@pytest.mark.parametrize(
    ("task_type", "ordered"),
    [(Exchanged, True), (Turned, True), (Brighter, True), (Mirrored, False)],
)
def test_points_with_the_right_names_pass(task_type, ordered, tmp_path):
    result = examine(task_type, tmp_path, ordered=ordered)
    assert "one way round" not in result.measured, result.measured
