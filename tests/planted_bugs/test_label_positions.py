"""Masks that lie elsewhere than the pictures show them, and weights of their classes."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import dataset_of
from perennial.check_skeleton.checks.data.encoding.encoding import check_labels
from perennial.check_skeleton.checks.loss.class_weights import check_class_weights
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

HEIGHT, WIDTH = 12, 16


def streets(height=HEIGHT, width=WIDTH, rows=200):
    """A bright sky over a dark road, and a car; the mask has a class for each."""
    generator = np.random.default_rng(6)
    pictures, masks = [], []
    for _ in range(rows):
        mask = np.zeros((height, width), dtype=np.int64)
        mask[generator.integers(height // 3, 2 * height // 3) :] = 1
        y, x = generator.integers(1, height - 5), generator.integers(1, width - 7)
        mask[y : y + 3, x : x + 6] = 2
        colours = generator.normal([[200, 210, 240], [90, 90, 80], [170, 40, 50]], 25)
        pictures.append(colours[mask] + generator.normal(0, 12, (height, width, 3)))
        masks.append(mask)
    return pl.DataFrame({
        "row": range(rows),
        "photo": [each.ravel().tolist() for each in pictures],
        "label": [each.ravel().tolist() for each in masks],
    })  # fmt: skip


class Segmenter(nn.Module):
    """One convolution."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, pixels):
        return self.layer(pixels)


class Masks(Task):
    """A class for each position."""

    kind = "statistic"
    metrics = directions_of("mae")
    height, width = HEIGHT, WIDTH

    def encode(self, rows):
        photo = torch.tensor(rows["photo"].to_list()).view(-1, self.height, self.width, 3)
        batch = {"pixels": self.pixels((photo - 120) / 60)}
        if "label" in rows.columns:
            batch[LABEL] = self.masks(torch.tensor(rows["label"].to_list()))
        return batch

    def pixels(self, photo):
        return photo.permute(0, 3, 1, 2).contiguous()

    def masks(self, flat):
        return flat.view(-1, self.height, self.width)

    def build_model(self):
        return Segmenter()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none").mean((1, 2))


class Square(Masks):
    width = HEIGHT


class Exchanged(Masks):
    def masks(self, flat):
        return flat.view(-1, self.width, self.height).transpose(1, 2).contiguous()


class ExchangedSquare(Square):
    def masks(self, flat):
        return super().masks(flat).transpose(1, 2).contiguous()


class Mirrored(Masks):
    def masks(self, flat):
        return super().masks(flat).flip(2)


class PictureUpsideDown(Masks):
    def pixels(self, photo):
        return super().pixels(photo).flip(2)


class TurnedSquare(Square):
    def masks(self, flat):
        return super().masks(flat).rot90(1, (1, 2))


class ThreePixelsOff(Masks):
    """Masks were drawn on another map."""

    def masks(self, flat):
        return super().masks(flat).roll((3, 3), (1, 2))


class OnePixelOff(Masks):
    """As strides and borders have it."""

    def masks(self, flat):
        return super().masks(flat).roll((1, 1), (1, 2))


class ChannelsLast(Masks):
    def pixels(self, photo):
        return photo


class HalfSize(Masks):
    def masks(self, flat):
        return super().masks(flat)[:, ::2, ::2].contiguous()


class TwiceTheSize(Masks):
    def masks(self, flat):
        return super().masks(flat).repeat_interleave(2, 1).repeat_interleave(2, 2)


class OneHot(Masks):
    def masks(self, flat):
        return nn.functional.one_hot(super().masks(flat), 3).movedim(3, 1).float()


class MirroredOneHot(OneHot):
    def masks(self, flat):
        return super().masks(flat).flip(3)


class Depths(Masks):
    """A number for each position."""

    def masks(self, flat):
        steps = torch.arange(self.height)[:, None].expand(self.height, self.width)
        return super().masks(flat) * 3 + steps / 7


class UnrelatedToColours(Masks):
    """What the colours do not show lies nowhere else either."""

    def pixels(self, photo):
        return (
            torch.zeros(len(photo), 3, self.height, self.width)
            + photo.mean((1, 2, 3))[:, None, None, None]
        )


MOVED = {
    Exchanged: "read with height and width exchanged",
    ExchangedSquare: "with height and width exchanged",
    Mirrored: "mirrored",
    PictureUpsideDown: "turned upside down",
    TurnedSquare: "turned to the right",
    MirroredOneHot: "mirrored",
    ThreePixelsOff: "moved by -3 rows and -3 columns",
}
HEALTHY = (
    Masks, Square, ChannelsLast, HalfSize, TwiceTheSize, OneHot, Depths, UnrelatedToColours,
    OnePixelOff,
)  # fmt: skip


class Weighted(Masks):
    """Weights for sky, road and the rare car; some positions have no class."""

    weights = (1.0, 1.0, 6.0)
    void = 255

    def masks(self, flat):
        masks = super().masks(flat).clone()
        masks[:, :2] = self.void
        return masks

    def losses(self, output, batch):
        losses = nn.functional.cross_entropy(
            output, batch[LABEL], reduction="none", ignore_index=self.void
        )
        return losses.mean((1, 2))

    def training_losses(self, output, batch):
        weight = torch.tensor(self.weights)
        losses = nn.functional.cross_entropy(
            output, batch[LABEL], weight, reduction="none", ignore_index=self.void
        )
        return losses.mean((1, 2))


class InvertedWeights(Weighted):
    weights = (1.0, 0.9, 0.1)


class EqualWeights(Weighted):
    weights = (1.0, 1.0, 1.0)


class Transcribed(Masks):
    """The parts of a column from top to bottom, aligned with the rows by the loss (CTC)."""

    def masks(self, flat):
        masks = super().masks(flat)[:, :, 0]
        is_new = torch.nn.functional.pad(masks[:, 1:] != masks[:, :-1], (1, 0), value=True)
        parts = torch.zeros(len(masks), 4, dtype=torch.long)  # 0 is both blank and padding
        for row, (column, new) in enumerate(zip(masks, is_new, strict=True)):
            found = column[new][:4] + 1
            parts[row, : len(found)] = found
        return parts

    def losses(self, output, batch):
        rows = output.mean(-1).permute(2, 0, 1)
        rows = torch.cat([rows, rows.mean(-1, keepdim=True)], dim=-1).log_softmax(-1)
        label = batch[LABEL]
        steps = torch.full((len(label),), len(rows))
        return nn.functional.ctc_loss(rows, label, steps, (label > 0).sum(1), reduction="none")


def subject_of(task_type, folder):
    dataset = dataset_of(streets(task_type.height, task_type.width), folder)
    return Subject.prepare(
        lambda: task_type(task_type.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection(steps=100, global_batch_size=64),
    )  # fmt: skip


def labels_of(task_type, folder):
    return check_labels(subject_of(task_type, folder))


@pytest.mark.parametrize("task_type", MOVED)
def test_moved_masks_fail(task_type, tmp_path):
    result = labels_of(task_type, tmp_path)
    assert result.outcome == "failed", result.measured
    assert result.measured.endswith(MOVED[task_type])
    assert "PIL's size is width first" in result.hint


@pytest.mark.parametrize("task_type", HEALTHY)
def test_masks_that_fit_their_pictures_pass(task_type, tmp_path):
    result = labels_of(task_type, tmp_path)
    assert result.outcome == "passed", (result.measured, result.hint)


def test_inverted_weights_of_the_positions_classes_fail(tmp_path):
    result = check_class_weights(subject_of(InvertedWeights, tmp_path))
    assert result.outcome == "failed", result.measured
    assert "class 2 (" in result.measured
    assert "of the positions) weighs 0.111 times as much as class 1" in result.measured


def test_labels_that_the_loss_aligns_with_the_output_have_no_weights_of_positions(tmp_path):
    result = check_class_weights(subject_of(Transcribed, tmp_path))
    assert result.outcome == "skipped", result.measured


@pytest.mark.parametrize("task_type", [Weighted, EqualWeights])
def test_weights_for_rare_classes_of_positions_pass(task_type, tmp_path):
    result = check_class_weights(subject_of(task_type, tmp_path))
    assert result.outcome == "passed", (result.measured, result.hint)
