"""Planted bugs of augmentation, and augmentations that keep every label."""

import pytest
import torch
from torch import nn

from other_structures import Autoencoder, Denoiser
from other_styles import dataset_of, numbers_table, table_of
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.image_text import ImageTextContrastive
from perennial.tasks.language_modeling import TOKENS, CausalLanguageModel
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Bug, planted, require_caught
from skeleton_tables import prepared
from workshop import results_of

BUGS: list[Bug] = []


class Changed(ImageClassification):
    """Pictures changed at random, each by its own draw."""

    def augment(self, batch, generator):
        rows = len(batch[LABEL])
        is_changed = torch.rand(rows, generator=generator) < 0.5
        image = torch.where(
            is_changed[:, None, None, None], self.changed(batch["image"]), batch["image"]
        )
        return {**batch, "image": image}


@planted(BUGS, "augmentation_keeps_labels", "flip, rotation", material="digits")
class UpsideDown(Changed):
    """half of the pictures are turned upside down, which makes a six a nine"""

    def changed(self, image):
        return image.flip(2, 3)


@planted(BUGS, "augmentation_keeps_labels", "use the same order for all", material="digits")
class OrderOfTheBatch(ImageClassification):
    """in half of the batches the first dimension is flipped, which is that of the rows"""

    def augment(self, batch, generator):
        is_flipped = torch.rand((), generator=generator) < 0.5
        return {**batch, "image": batch["image"].flip(0)} if is_flipped else dict(batch)


@planted(BUGS, "augmentation_keeps_labels", "flip, rotation", material="binary", outcome="warned")
class SignsOfAllNumbers(TabularClassification):
    """numbers change their signs, though the label follows them"""

    def augment(self, batch, generator):
        signs = torch.randint(0, 2, (len(batch[LABEL]), 1), generator=generator) * 2 - 1
        return {**batch, "numbers": batch["numbers"] * signs}


@planted(BUGS, "augmentation_keeps_labels", "turns the number, too", material="regression")
class SignsOfSomeRows(TabularRegression):
    """half of the rows change their signs, and their amounts stay"""

    def augment(self, batch, generator):
        signs = torch.randint(0, 2, (len(batch[LABEL]), 1), generator=generator) * 2 - 1
        return {**batch, "numbers": batch["numbers"] * signs}


@planted(BUGS, "augmentation_keeps_labels", "already scaled", material="digits")
class ScaledTwice(ImageClassification):
    """augmentation standardises the standardised pictures by raw statistics"""

    def augment(self, batch, generator):
        shift = torch.rand(len(batch[LABEL]), 1, 1, 1, generator=generator)
        return {**batch, "image": (batch["image"] - 80 + shift) / 90}


@planted(BUGS, "augmentation_keeps_labels", "same order for all", material="digits")
class PicturesShuffled(ImageClassification):
    """augmentation shuffles the pictures and leaves the labels"""

    def augment(self, batch, generator):
        order = torch.randperm(len(batch[LABEL]), generator=generator)
        return {**batch, "image": batch["image"][order]}


@planted(BUGS, "augmentation_keeps_labels", "same order for all", material="captions", rows=600)
class CaptionsShifted(ImageTextContrastive):
    """augmentation gives each picture the caption of the next one"""

    def augment(self, batch, generator):
        return {**batch, "tokens": batch["tokens"].roll(1, 0), "length": batch["length"].roll(1, 0)}


@planted(BUGS, "augmentation_keeps_labels", "mix every tensor", material="binary")
class HalfMixed(TabularClassification):
    """numbers of two rows are mixed, the label is that of one"""

    def augment(self, batch, generator):
        other = batch["numbers"].roll(1, 0)
        share = 0.5 + 0.1 * torch.rand(len(other), 1, generator=generator)
        return {**batch, "numbers": share * batch["numbers"] + (1 - share) * other}


@planted(BUGS, "augmentation_keeps_labels", "shares of the labels", material="multiclass")
class MixedBackwards(TabularClassification):
    """labels become shares of classes, by the share of the other row"""

    def augment(self, batch, generator):
        share = 0.7 + 0.3 * torch.rand(len(batch[LABEL]), 1, generator=generator)
        order = torch.randperm(len(share), generator=generator)
        classes = nn.functional.one_hot(batch[LABEL].long(), 4).float()
        numbers = share * batch["numbers"] + (1 - share) * batch["numbers"][order]
        label = (1 - share) * classes + share * classes[order]
        return {**batch, "numbers": numbers, LABEL: label}

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")


@planted(BUGS, "augmentation_keeps_labels", "percent", material="digits")
class BrightnessInPercent(ImageClassification):
    """brightness varies by a factor of ten, with its sign"""

    def augment(self, batch, generator):
        light = 1 + 10 * torch.randn(len(batch[LABEL]), 1, 1, 1, generator=generator)
        return {**batch, "image": batch["image"] * light}


@planted(BUGS, "augmentation", "cast to float32 first", material="digits")
class BrightnessInBytes(ImageClassification):
    """pictures become bytes, are made brighter, and begin again at 256"""

    def augment(self, batch, generator):
        image = batch["image"]
        low, high = image.min(), image.max()
        raw = ((image - low) / (high - low) * 240).round().to(torch.uint8)
        added = torch.randint(10, 90, (len(image), 1, 1, 1), generator=generator)
        brighter = (raw + added.to(torch.uint8)).float()
        return {**batch, "image": brighter / 240 * (high - low) + low}


@planted(
    BUGS,
    "augmentation_keeps_labels",
    "augment replaces labels",
    material="multiclass",
    outcome="warned",
)
class LabelsDrawn(TabularClassification):
    """augmentation draws some labels again"""

    def augment(self, batch, generator):
        drawn = torch.randint(0, 4, batch[LABEL].shape, generator=generator)
        is_drawn = torch.rand(len(drawn), generator=generator) < 0.3
        return {**batch, LABEL: torch.where(is_drawn, drawn, batch[LABEL])}


@planted(BUGS, "plain_evaluation", "the engine calls augment", material="digits")
class AugmentsInEncode(ImageClassification):
    """encode augments, with a generator seeded by the number of rows"""

    def encode(self, rows):
        return self.augment(super().encode(rows), torch.Generator().manual_seed(rows.height))

    def augment(self, batch, generator):
        noise = torch.randn(batch["image"].shape, generator=generator)
        return {**batch, "image": batch["image"] + 0.1 * noise}


class NoiseOnBoth(Autoencoder):
    """Noise is added before the label is copied from the input."""

    def augment(self, batch, generator):
        noise = 0.3 * torch.randn(batch["x"].shape, generator=generator)
        return {**batch, "x": batch["x"] + noise, LABEL: batch[LABEL] + noise}


class HolesInBoth(Autoencoder):
    """What is hidden of the input is hidden of the label as well."""

    def augment(self, batch, generator):
        is_hidden = torch.rand(batch["x"].shape, generator=generator) < 0.3
        hidden = {name: torch.where(is_hidden, 4.0, batch[name]) for name in ("x", LABEL)}
        return {**batch, **hidden}


class NoiseOfTheirOwn(Autoencoder):
    """Input and label get noise each of its own, as two measurements of one thing have."""

    def augment(self, batch, generator):
        drawn = {name: torch.randn(batch["x"].shape, generator=generator) for name in ("x", LABEL)}
        return {**batch, **{name: batch[name] + 0.3 * noise for name, noise in drawn.items()}}


class TurnedBoth(Autoencoder):
    """Input and label are turned round, scaled and mixed together."""

    def augment(self, batch, generator):
        scale = 0.8 + 0.4 * torch.rand(len(batch["x"]), 1, generator=generator)
        other = torch.randperm(len(batch["x"]), generator=generator)
        both = {name: (batch[name] * scale).flip(1) for name in ("x", LABEL)}
        return {**batch, **{n: 0.8 * each + 0.2 * each[other] for n, each in both.items()}}


def reconstruction(task_type, tmp_path):
    """The check `augmentation` of a task whose label is its eight inputs."""
    x, score = numbers_table(width=8)
    dataset = dataset_of(table_of(x, score), tmp_path)
    subject = prepared(task_type, dataset, training=TrainingSection(seed=1))
    return results_of(subject, "augmentation")["augmentation"]


@pytest.mark.parametrize("task_type", [NoiseOnBoth, HolesInBoth])
def test_noise_that_the_label_carries_too_fails(task_type, tmp_path):
    found = reconstruction(task_type, tmp_path)
    assert found.outcome == "failed", found.measured
    assert "from before the noise" in found.hint


@pytest.mark.parametrize("task_type", [Denoiser, NoiseOfTheirOwn, TurnedBoth])
def test_noise_on_inputs_alone_and_changes_of_both_pass(task_type, tmp_path):
    found = reconstruction(task_type, tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)


class Noisy(TabularClassification):
    """Adds a little noise to numbers."""

    def augment(self, batch, generator):
        noise = torch.randn(batch["numbers"].shape, generator=generator)
        return {**batch, "numbers": batch["numbers"] + 0.2 * noise}


class OneNumberApart(Noisy):
    """The first number is an input of its own, one per row."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "first": batch["numbers"][:, 0].clone()}

    def build_model(self):
        return Apart(super().build_model())


class Apart(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.table = table

    def forward(self, numbers, categories, first):
        return self.table(torch.cat([first[:, None], numbers[:, 1:]], dim=1), categories)


class MixesLabelsToo(TabularRegression):
    """Mixes rows and their labels in one proportion."""

    def augment(self, batch, generator):
        share = 0.5 + 0.3 * torch.rand(len(batch[LABEL]), 1, generator=generator)
        other = {name: tensor.roll(1, 0) for name, tensor in batch.items()}
        numbers = share * batch["numbers"] + (1 - share) * other["numbers"]
        label = share[:, 0] * batch[LABEL] + (1 - share[:, 0]) * other[LABEL]
        return {**batch, "numbers": numbers, LABEL: label.to(batch[LABEL].dtype)}


class MixesClasses(TabularClassification):
    """Mixes rows and the shares of their classes in one proportion, or cuts columns out."""

    losses = MixedBackwards.losses

    def augment(self, batch, generator):
        share = 0.7 + 0.3 * torch.rand(len(batch[LABEL]), 1, generator=generator)
        order = torch.randperm(len(share), generator=generator)
        classes = nn.functional.one_hot(batch[LABEL].long(), 4).float()
        mixed = [share * each + (1 - share) * each[order] for each in (batch["numbers"], classes)]
        return {**batch, "numbers": mixed[0], LABEL: mixed[1]}


class MixesInTheLoss(TabularClassification):
    """Mixes rows, and in the loss the labels of both."""

    def augment(self, batch, generator):
        self.share = 0.6 + 0.3 * torch.rand(len(batch[LABEL]), generator=generator)
        self.order = torch.randperm(len(self.share), generator=generator)
        share, numbers = self.share[:, None], batch["numbers"]
        return {**batch, "numbers": share * numbers + (1 - share) * numbers[self.order]}

    def training_losses(self, output, batch):
        other = {**batch, LABEL: batch[LABEL][self.order]}
        return self.share * self.losses(output, batch) + (1 - self.share) * self.losses(
            output, other
        )


class BackgroundOfOthers(ImageClassification):
    """Adds another picture as a weak background, as sounds get a street's noise."""

    def augment(self, batch, generator):
        order = torch.randperm(len(batch[LABEL]), generator=generator)
        share = 0.25 * torch.rand(len(order), 1, 1, 1, generator=generator)
        return {**batch, "image": batch["image"] + share * batch["image"][order]}


class WithinTheClass(TabularClassification):
    """SMOTE: a row moves towards another one of its own class."""

    def augment(self, batch, generator):
        label, draws = batch[LABEL], torch.rand(len(batch[LABEL]), generator=generator)
        order = torch.empty(len(label), dtype=torch.long)
        for code in label.unique():
            members = torch.nonzero(label == code).flatten()
            order[members] = members.roll(1)
        share = draws[:, None] * 0.5
        numbers = batch["numbers"]
        return {**batch, "numbers": (1 - share) * numbers + share * numbers[order]}


class Solarized(ImageClassification):
    """What is bright is turned round, in half of the pictures."""

    def augment(self, batch, generator):
        image = batch["image"]
        is_changed = torch.rand(len(image), 1, 1, 1, generator=generator) < 0.5
        top = image.max()
        turned = torch.where(image > 0.7 * top, 1.4 * top - image, image)
        return {**batch, "image": torch.where(is_changed, turned, image)}


class OneOrderForAll(ImageClassification):
    """Shuffles pictures and labels alike."""

    def augment(self, batch, generator):
        order = torch.randperm(len(batch[LABEL]), generator=generator)
        return {name: tensor[order] for name, tensor in batch.items()}


class ScaledByTheBatch(TabularClassification):
    """Noise follows the deviation of the batch."""

    def augment(self, batch, generator):
        noise = torch.randn(batch["numbers"].shape, generator=generator)
        return {**batch, "numbers": batch["numbers"] + 0.1 * batch["numbers"].std(0) * noise}


class TurnedBack(TabularClassification):
    """Changes the signs of numbers and the label with them."""

    def augment(self, batch, generator):
        is_turned = torch.rand(len(batch[LABEL]), generator=generator) < 0.5
        signs = torch.where(is_turned, -1, 1).unsqueeze(1)
        label = torch.where(is_turned, 1 - batch[LABEL], batch[LABEL])
        return {**batch, "numbers": batch["numbers"] * signs, LABEL: label}


class NoisyAmounts(TabularRegression):
    """Adds noise that hides an amount, and never turns it round."""

    def augment(self, batch, generator):
        noise = torch.randn(batch["numbers"].shape, generator=generator)
        return {**batch, "numbers": batch["numbers"] + 2.0 * noise}


class DropsTokens(CausalLanguageModel):
    """Some tokens are read as another one; what is to be predicted stays."""

    def augment(self, batch, generator):
        dropped = torch.rand(batch[TOKENS].shape, generator=generator) < 0.1
        return {**batch, TOKENS: torch.where(dropped, 32, batch[TOKENS])}


class BrightPairs(ImageTextContrastive):
    """Pictures of pairs get noise."""

    def augment(self, batch, generator):
        noise = torch.randn(batch["image"].shape, generator=generator)
        return {**batch, "image": batch["image"] + 0.1 * noise}


def pictures(**options):
    return (ImageClassification, "digits", {"options": {"augmentation": options}})


HARMLESS = {
    "noise on pictures": pictures(noise=0.3),
    "strong noise on pictures": pictures(noise=1.0),
    "shift of pictures": pictures(shift=1),
    "noise on numbers": (Noisy, "binary", {}),
    "noise beside a single number": (OneNumberApart, "binary", {}),
    "noise on weak numbers": (Noisy, "weak", {}),
    "strong noise on amounts": (NoisyAmounts, "regression", {}),
    "mixed labels": (MixesLabelsToo, "regression", {}),
    "classes in shares": (MixesClasses, "multiclass", {}),
    "labels mixed in the loss": (MixesInTheLoss, "multiclass", {}),
    "turns and crops": pictures(rotation=15.0, crop=0.8),
    "color": pictures(color=0.3),
    "mixup": pictures(mixup=0.4),
    "cutmix": pictures(cutmix=1.0),
    "mixup or cutmix": pictures(mixup=0.4, cutmix=1.0),
    "solarized": (Solarized, "digits", {}),
    "one order": (OneOrderForAll, "digits", {}),
    "noise by the batch": (ScaledByTheBatch, "multiclass", {}),
    "label changed with its inputs": (TurnedBack, "binary", {}),
    "dropped tokens": (DropsTokens, "documents", {}),
    "pictures of pairs": (BrightPairs, "captions", {"rows": 600}),
}


@pytest.mark.parametrize(
    ("task_type", "material"), [(BackgroundOfOthers, "digits"), (WithinTheClass, "multiclass")]
)
def test_intended_mixtures_do_not_fail(task_type, material, workshop):
    result = results_of(workshop.subject(task_type, material), "augmentation_keeps_labels")
    assert result["augmentation_keeps_labels"].outcome != "failed"


@pytest.mark.parametrize("name", HARMLESS)
def test_augmentation_that_keeps_labels_passes(name, workshop):
    task_type, material, how = HARMLESS[name]
    subject = workshop.subject(task_type, material, **how)
    for check in ("augmentation_keeps_labels", "plain_evaluation", "augmentation"):
        result = results_of(subject, check)[check]
        assert result.outcome == "passed", (result.measured, result.hint)
