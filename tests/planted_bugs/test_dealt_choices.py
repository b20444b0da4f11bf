"""Choices that augmentation deals in another order, with and without their answer."""

import pytest
import torch
from torch import nn

from other_structures import Autoencoder
from other_styles import dataset_of, numbers_table, table_of
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

CHOICES = 4


class Nearest(nn.Module):
    """A score for each choice, by its likeness to what is asked for."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, shown, asked):
        return (self.layer(shown) * asked[:, None]).sum(-1)


class Choices(Autoencoder):
    """The place of the part that is as large as what is asked for."""

    kind, reconstructs_inputs = "multiclass", False

    def encode(self, rows):
        x = super().encode(rows).pop("x")
        shown, asked = x[:, :12].reshape(-1, CHOICES, 3), x[:, 12:15]
        return {"shown": shown, "asked": asked, LABEL: (shown * asked[:, None]).sum(-1).argmax(1)}

    def build_model(self):
        return Nearest()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def augment(self, batch, generator):
        order = torch.rand(len(batch[LABEL]), CHOICES, generator=generator).argsort(1)
        shown = batch["shown"].gather(1, order[:, :, None].expand(-1, -1, 3))
        return {**batch, "shown": shown, LABEL: self.answer(order, batch[LABEL])}

    def answer(self, order, place):
        return (order == place[:, None]).int().argmax(1)


class OldPlace(Choices):
    def answer(self, order, place):
        return place


class OtherWayRound(Choices):
    """What stands at the old place, in place of where the old one went."""

    def answer(self, order, place):
        return order.gather(1, place[:, None])[:, 0]


class TwoTensors(Choices):
    """Parts of a choice are tensors of their own, and move together."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "shown": batch["shown"][:, :, :2], "price": batch["shown"][:, :, 2]}

    def build_model(self):
        return NearestOfTwo()

    def augment(self, batch, generator):
        order = torch.rand(len(batch[LABEL]), CHOICES, generator=generator).argsort(1)
        shown = batch["shown"].gather(1, order[:, :, None].expand(-1, -1, 2))
        price = batch["price"].gather(1, order)
        answer = self.answer(order, batch[LABEL])
        return {**batch, "shown": shown, "price": price, LABEL: answer}


class OldPlaceOfTwo(OldPlace, TwoTensors):
    """two tensors move, the answer does not"""


class NearestOfTwo(Nearest):
    """A score from both parts."""

    def forward(self, shown, price, asked):
        return super().forward(torch.cat([shown, price[:, :, None]], dim=2), asked)


class SetOfParts(OldPlace):
    """The class of a set, whose parts have no order."""

    def build_model(self):
        return OfAll()


class OfAll(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, CHOICES)

    def forward(self, shown, asked):
        return self.layer(shown).mean(1) + asked.sum(1, keepdim=True)


def examined(task_type, folder):
    dataset = dataset_of(table_of(*numbers_table(width=15)), folder)
    subject = prepared(task_type, dataset, training=TrainingSection(seed=1))
    return results_of(subject, "augmentation_keeps_labels")["augmentation_keeps_labels"]


@pytest.mark.parametrize("task_type", [OldPlace, OtherWayRound, OldPlaceOfTwo])
def test_an_answer_that_does_not_follow_its_choice_fails(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome == "failed", found.measured
    assert "in which the label names another one" in found.measured


@pytest.mark.parametrize("task_type", [Choices, SetOfParts, TwoTensors])
def test_choices_with_their_answer_and_sets_pass(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome != "failed", found.measured
