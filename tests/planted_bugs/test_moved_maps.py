"""Pictures that augmentation flips, turns or leaves apart from their maps of labels."""

import pytest
import torch
from torch import nn

from other_structures import Autoencoder, Module
from other_styles import dataset_of, numbers_table, table_of
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

SIDE = 8


class Maps(Autoencoder):
    """Which of the pixels of a picture are bright, pixel by pixel."""

    reconstructs_inputs = False

    def encode(self, rows):
        batch = super().encode(rows)
        picture = batch.pop("x").reshape(-1, 1, SIDE, SIDE)
        return {**batch, "picture": picture, LABEL: (picture[:, 0] > 0.5).float()}

    def build_model(self):
        return Module(nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 1, 1)))

    def augment(self, batch, generator):
        picture, label = self.changed(batch["picture"], batch[LABEL], generator)
        return {**batch, "picture": picture, LABEL: label}


def flipped(maps, generator, axis=-1):
    drawn = torch.rand(len(maps), generator=generator) < 0.5
    return torch.where(drawn.reshape(-1, *[1] * (maps.ndim - 1)), maps.flip(axis), maps)


class MapStays(Maps):
    def changed(self, picture, label, generator):
        return flipped(picture, generator), label


class TwoDraws(Maps):
    def changed(self, picture, label, generator):
        return flipped(picture, generator), flipped(label, generator)


class OtherAxis(Maps):
    def changed(self, picture, label, generator):
        return picture.flip(-1), label.flip(-2)


class OtherWayRound(Maps):
    def changed(self, picture, label, generator):
        return picture.rot90(1, (2, 3)), label.rot90(-1, (1, 2))


class OneDraw(Maps):
    def changed(self, picture, label, generator):
        both = flipped(torch.cat([picture, label[:, None]], dim=1), generator)
        both = flipped(both, generator, axis=-2).rot90(1, (2, 3))
        return both[:, :1], both[:, 1]


class LightAndNoise(OneDraw):
    """Darker, inverted now and then, noisy, and with a part erased."""

    def changed(self, picture, label, generator):
        picture, label = super().changed(picture, label, generator)
        light = torch.randn(len(picture), 1, 1, 1, generator=generator)
        picture = picture * light + 0.5 * torch.randn(picture.shape, generator=generator)
        return torch.cat([0 * picture[:, :, :2], picture[:, :, 2:]], dim=2), label


class Shifted(Maps):
    """Both are cut from a larger frame at one place."""

    def changed(self, picture, label, generator):
        right = int(torch.randint(3, (), generator=generator))
        return picture.roll(right, 3), label.roll(right, 2)


class MixedPairs(OneDraw):
    """A half of another picture with its map."""

    def changed(self, picture, label, generator):
        picture, label = super().changed(picture, label, generator)
        order = torch.randperm(len(picture), generator=generator)
        return (
            torch.cat([picture[:, :, :4], picture[order][:, :, 4:]], dim=2),
            torch.cat([label[:, :4], label[order][:, 4:]], dim=1),
        )


class Heights(Maps):
    """A height for each column of a wide picture."""

    def encode(self, rows):
        batch = super().encode(rows)
        picture = batch["picture"].reshape(-1, 1, 4, 16)
        return {"picture": picture, LABEL: picture.mean((1, 2))}


class HeightsStay(Heights):
    def changed(self, picture, label, generator):
        return flipped(picture, generator), label


class HeightsFollow(Heights):
    def changed(self, picture, label, generator):
        both = flipped(torch.cat([picture[:, 0], label[:, None]], dim=1), generator)
        return both[:, None, :4], both[:, 4]


class UpsideDown(Heights):
    """Heights are counted from the other side then, column by column."""

    def changed(self, picture, label, generator):
        return picture.flip(2), 1 - label


class Steps(Heights):
    """A label for each step of two signals."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {"picture": batch["picture"][:, 0, :2].transpose(1, 2), LABEL: batch[LABEL]}


class StepsStay(Steps):
    def changed(self, picture, label, generator):
        return flipped(picture, generator, axis=1), label


class StepsFollow(Steps):
    def changed(self, picture, label, generator):
        return picture.flip(1), label.flip(1)


def examined(task_type, tmp_path):
    dataset = dataset_of(table_of(*numbers_table(width=SIDE * SIDE)), tmp_path)
    subject = prepared(task_type, dataset, training=TrainingSection(seed=1))
    return results_of(subject, "augmentation_keeps_labels")["augmentation_keeps_labels"]


@pytest.mark.parametrize(
    "task_type", [MapStays, TwoDraws, OtherAxis, OtherWayRound, HeightsStay, StepsStay]
)
def test_maps_that_do_not_follow_their_pictures_fail(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome == "failed", found.measured
    assert "by one draw" in found.hint


@pytest.mark.parametrize(
    "task_type",
    [OneDraw, LightAndNoise, Shifted, MixedPairs, HeightsFollow, UpsideDown, StepsFollow],
)
def test_maps_that_follow_their_pictures_pass(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)
