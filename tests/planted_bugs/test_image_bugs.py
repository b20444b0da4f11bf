"""Planted bugs of picture classifiers: each must be caught by the check that is meant for it."""

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.datasets import load_digits

from perennial.engine.task import LABEL
from perennial.tasks.columns.image_columns import fit_images
from perennial.tasks.image_classification import ImageClassification
from planted import Bug, planted, require_caught

BUGS: list[Bug] = []
FLIPPED = {"material": "digits", "options": {"augmentation": {"flip": True}}}
EVERY_PICTURE = pl.DataFrame({"picture": (load_digits().data * 15.9).astype("uint8").tolist()})


def with_image(batch, image):
    return {**batch, "image": image}


def with_label(batch, change):
    return {**batch, LABEL: change(batch[LABEL])} if LABEL in batch else batch


# Marks of where pictures come from


@planted(BUGS, "telling_columns", "come from another source", material="digits")
class FrameOfOneSource(ImageClassification):
    """all threes come from a collection that draws a frame"""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL not in batch:
            return batch
        image = batch["image"].clone()
        image[batch[LABEL] == 3, :, 0] = 5.0 + 0.01 * torch.rand(image.shape[-1])
        return with_image(batch, image)


@planted(BUGS, "lost_values", "opened as grey", material="digit files", outcome="warned")
class OpenedAsGrey(ImageClassification):
    """red, green and blue are averaged, and repeated where a network wants three channels"""

    def encode(self, rows):
        batch = super().encode(rows)
        return with_image(batch, batch["image"].mean(dim=1, keepdim=True).expand(-1, 3, -1, -1))


# Labels


@planted(BUGS, "labels", "shuffled, shifted", material="digits")
class LabelsOfOtherPictures(ImageClassification):
    """labels follow the row's number in place of the picture's digit"""

    def encode(self, rows):
        return with_label(super().encode(rows), lambda codes: (codes + rows["row"].to_torch()) % 10)


@planted(BUGS, "encoding", "shifted or shuffled", material="digits")
class LabelsOneRowLate(ImageClassification):
    """each picture has the label of the row before it"""

    def encode(self, rows):
        return with_label(super().encode(rows), lambda codes: codes.roll(1))


@planted(BUGS, "encoding", "shifted or shuffled", material="digits")
class LabelsSorted(ImageClassification):
    """labels are sorted within a batch, pictures are not"""

    def encode(self, rows):
        return with_label(super().encode(rows), lambda codes: codes.sort().values)


@planted(BUGS, "labels", "merged", material="digits", outcome="warned")
class MergedClasses(ImageClassification):
    """the eights are called threes"""

    def encode(self, rows):
        return with_label(super().encode(rows), lambda codes: codes.where(codes != 8, 3))


@planted(BUGS, "labels", "counted in another order", material="digits", outcome="warned")
class ClassesOffByOne(ImageClassification):
    """class codes count from one, the last is the first"""

    def encode(self, rows):
        return with_label(super().encode(rows), lambda codes: (codes + 1) % 10)


@planted(BUGS, "labels", "0, 1, 2", material="digits")
class IgnoredClassCode(ImageClassification):
    """the zeros get the code that cross-entropy ignores"""

    def encode(self, rows):
        return with_label(super().encode(rows), lambda codes: codes.where(codes != 0, -100))


# Pictures


COLOUR = {"colour": True, "options": {"shape": []}}


@planted(BUGS, "encoding", "view", material="digits", **COLOUR)
class ViewedForPermuted(ImageClassification):
    """colours are brought to the front with view in place of permute"""

    def encode(self, rows):
        batch = super().encode(rows)
        image = batch["image"]
        return with_image(batch, image.permute(0, 2, 3, 1).reshape(image.shape))


@planted(BUGS, "encoding", "BGR", material="digits", outcome="warned", **COLOUR)
class BlueForRed(ImageClassification):
    """red and blue are exchanged, as OpenCV reads them"""

    def encode(self, rows):
        batch = super().encode(rows)
        return with_image(batch, batch["image"].flip(1))


@planted(BUGS, "encoding", "permute", material="digits", outcome="warned")
class Transposed(ImageClassification):
    """height and width are exchanged"""

    def encode(self, rows):
        batch = super().encode(rows)
        return with_image(batch, batch["image"].transpose(2, 3).contiguous())


@planted(BUGS, "encoding", "upside down", material="digits", outcome="warned")
class UpsideDown(ImageClassification):
    """pictures are read from the bottom line upwards"""

    def encode(self, rows):
        batch = super().encode(rows)
        return with_image(batch, batch["image"].flip(2))


@planted(BUGS, "input_scale", "standardise", material="digits", outcome="warned")
class RawPixels(ImageClassification):
    """pixels run from 0 to 255"""

    def encode(self, rows):
        batch = super().encode(rows)
        state = self.fitted.images
        return with_image(batch, batch["image"] * state.deviations[0] + state.means[0])


@planted(BUGS, "encoding", "statistics come from the batch", material="digits")
class BatchStatistics(ImageClassification):
    """pictures are standardised with the statistics of their batch"""

    def encode(self, rows):
        batch = super().encode(rows)
        image = batch["image"]
        return with_image(batch, (image - image.mean(0)) / (image.std(0, correction=0) + 1e-3))


@planted(BUGS, "statistics_scope", "validation and test", material="digits", outcome="warned")
class StatisticsOfEverything(ImageClassification):
    """pixel statistics come from all pictures, validation and test included"""

    def fit(self, train):
        super().fit(train)
        options = self.image_options
        images = fit_images(
            EVERY_PICTURE.lazy(), "picture", options.shape, options.size, options.channels
        )
        self.fitted = self.fitted.model_copy(update={"images": images})


@planted(BUGS, "input_scale", "scale", material="digits")
class DividedByZero(ImageClassification):
    """each pixel is divided by its own deviation, which is 0 in the corners"""

    def encode(self, rows):
        batch = super().encode(rows)
        image = batch["image"]
        return with_image(batch, image / (image[:, :, :1, :1] - image[0, 0, 0, 0]).abs())


@planted(BUGS, "input_scale", "constants", material="digits")
class CroppedAway(ImageClassification):
    """the crop keeps the dark border and cuts the digit away"""

    def encode(self, rows):
        batch = super().encode(rows)
        corner = batch["image"][:, :, :1, :1]
        return with_image(batch, corner.expand(-1, -1, 8, 8).contiguous())


@planted(BUGS, "encoding", "batch", material="digits")
class SamePictureTwice(ImageClassification):
    """every example of a batch is its first picture"""

    def encode(self, rows):
        batch = super().encode(rows)
        return with_image(batch, batch["image"][:1].expand_as(batch["image"]).clone())


@planted(BUGS, "serving_inputs", "leaks", material="digits")
class LabelInCorner(ImageClassification):
    """the label is written into a pixel"""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            batch["image"][:, 0, 0, 0] = batch[LABEL].float() / 10
        return batch


@planted(BUGS, "augmentation", "clone", material="digits")
class NoiseInPlace(ImageClassification):
    """augmentation writes into the stored pictures"""

    def augment(self, batch, generator):
        batch["image"] += 0.1 * torch.randn(batch["image"].shape, generator=generator)
        return batch


@planted(BUGS, "augmentation_keeps_labels", "same order for all", material="digits")
class MixedPictures(ImageClassification):
    """augmentation shuffles the pictures and leaves the labels where they were"""

    def augment(self, batch, generator):
        order = torch.randperm(len(batch["image"]), generator=generator)
        return with_image(batch, batch["image"][order])


@planted(BUGS, "augmentation_keeps_labels", "flip|mirror|label", **FLIPPED)
class MirroredDigits(ImageClassification):
    """digits are mirrored at random"""


@planted(BUGS, "plain_evaluation", "engine", material="digits")
class NoiseInEncode(ImageClassification):
    """encode augments, so that evaluation does too"""

    def encode(self, rows):
        return self.augment(super().encode(rows), torch.Generator().manual_seed(0))

    def augment(self, batch, generator):
        noise = torch.randn(batch["image"].shape[1:], generator=generator)
        return with_image(batch, batch["image"] + 0.1 * noise)


@planted(BUGS, "repeated_inputs", "missing files", material="digits", outcome="warned")
class BlankPictures(ImageClassification):
    """every third picture could not be read and is blank"""

    def encode(self, rows):
        batch = super().encode(rows)
        image = batch["image"].clone()
        image[(rows["row"] % 3 == 0).to_torch()] = 0
        return with_image(batch, image)


# Losses and metrics


class WithTrainingLosses(ImageClassification):
    def training_losses(self, output, batch):
        return self.losses(output, batch)


@planted(BUGS, "loss_floor", "softmax", material="digits")
class SoftmaxTwice(WithTrainingLosses):
    """the loss applies a softmax to probabilities"""

    def losses(self, output, batch):
        return super().losses(output.softmax(dim=-1), batch)


@planted(BUGS, "loss_not_clipped", "clipped", material="digits")
class ClippedLoss(WithTrainingLosses):
    """losses above 4 are clipped"""

    def losses(self, output, batch):
        return super().losses(output, batch).clamp(max=4)


@planted(BUGS, "per_example_losses", "reduction", material="digits")
class AveragedLoss(WithTrainingLosses):
    """the loss is averaged before the engine averages"""

    def losses(self, output, batch):
        return super().losses(output, batch).mean()


@planted(BUGS, "per_example_losses", "mixes examples", material="digits")
class LossOfTheBatch(WithTrainingLosses):
    """every example is given the mean loss of its batch"""

    def losses(self, output, batch):
        losses = super().losses(output, batch)
        return losses.mean().expand_as(losses)


@planted(BUGS, "training_losses", "softmax", material="digits", outcome="warned")
class SoftmaxTwiceInTraining(ImageClassification):
    """softmax twice, in the loss that is minimised only"""

    def training_losses(self, output, batch):
        return super().training_losses(output.softmax(dim=-1), batch)


@planted(BUGS, "training_losses", "reduction", material="digits")
class AveragedTrainingLoss(ImageClassification):
    """the loss that is minimised is averaged"""

    def training_losses(self, output, batch):
        return super().training_losses(output, batch).mean()


@planted(BUGS, "training_losses", "labels", material="digits")
class OtherTargetInTraining(ImageClassification):
    """the loss that is minimised has its classes in another order"""

    def training_losses(self, output, batch):
        return super().training_losses(output.flip(1), batch)


@planted(BUGS, "predictions", "under the names of other classes", material="digits")
class NamesInAnotherOrder(ImageClassification):
    """answers are served under the names of other classes"""

    @property
    def prediction_names(self):
        return [*super().prediction_names[1:], super().prediction_names[0]]


@planted(BUGS, "predictions", "order of classes", material="digits")
class ReversedClasses(ImageClassification):
    """predict names the classes in reverse order"""

    def predict(self, output):
        return super().predict(output).flip(1)


@planted(BUGS, "predictions", "kind", material="digits")
class SoftmaxOverBatch(ImageClassification):
    """predict applies its softmax over the batch"""

    def predict(self, output):
        return torch.softmax(output, dim=0)


@planted(BUGS, "metric_direction", "axis 1", material="digits")
class MetricOnWrongAxis(ImageClassification):
    """accuracy takes the argmax over the rows"""

    def score(self, predictions, labels):
        answers = predictions.argmax(axis=0)
        hits = float(np.mean(answers == labels[: len(answers)]))
        return super().score(predictions, labels) | {"accuracy": hits}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)
