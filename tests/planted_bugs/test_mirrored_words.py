"""Mirrored pictures beside texts that tell left from right."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import dataset_of
from perennial.check_skeleton.checks.data.augmentation.augmentation import (
    check_augmentation_keeps_labels,
)
from perennial.check_skeleton.checks.data.augmentation.mirrored_words import (
    describe_mirrored_words,
)
from perennial.engine.task import LABEL, Task
from skeleton_tables import prepared

SIDE, WORDS = 8, ["left", "right", "above", "below", "red", "blue", "links", "rechts"]
TURNED = {"left": "right", "right": "left"}


def scenes(words, rows=400, *, share=1.0):
    """Pictures of a spot and texts that say where it is; others name a colour."""
    random = np.random.default_rng(3)
    pictures, texts = [], []
    for row in range(rows):
        place = row % 2
        picture = random.normal(0, 0.3, (3, SIDE, SIDE))
        picture[:, 2:5, 1 + 4 * place : 3 + 4 * place] += 2
        pictures.append(picture.ravel().tolist())
        word = words[place] if random.random() < share else "red"
        texts.append(f"a spot, {word}")
    return pl.DataFrame(
        {"row": range(rows), "picture": pictures, "text": texts, "label": [0] * rows}
    )


class Matched(nn.Module):
    """Picture and text as one vector each."""

    def __init__(self):
        super().__init__()
        self.picture, self.text = nn.Linear(3 * SIDE * SIDE, 8), nn.Embedding(len(WORDS), 8)

    def forward(self, picture, text):
        return torch.stack([self.picture(picture.flatten(1)), self.text(text)], dim=1)


class Scenes(Task):
    """Does the text belong to the picture: contrast with the others of a batch."""

    kind = "statistic"
    metrics = dict.fromkeys(["off"], "minimize")
    needs_whole_batch, scored_together = True, 8

    def encode(self, rows):
        pictures = torch.tensor(rows["picture"].to_list()).float().view(-1, 3, SIDE, SIDE)
        text = torch.tensor([WORDS.index(each.split(", ")[1]) for each in rows["text"]])
        label = torch.zeros(rows.height, dtype=torch.long)
        return {"picture": pictures, "text": text, LABEL: label}

    def augment(self, batch, generator):
        coin = torch.rand(len(batch["text"]), generator=generator) < 0.5
        picture = torch.where(
            coin[:, None, None, None], self.turn(batch["picture"]), batch["picture"]
        )
        return {**batch, "picture": picture, "text": self.reword(batch["text"], coin)}

    def turn(self, picture):
        return picture.flip(3)

    def reword(self, text, coin):
        return text

    def build_model(self):
        return Matched()

    def losses(self, output, batch):
        products = output[:, 0] @ output[:, 1].T
        return nn.functional.cross_entropy(products, torch.arange(len(output)), reduction="none")

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"off": float(predictions.mean())}


class Exchanged(Scenes):
    """The words are exchanged with the sides."""

    def reword(self, text, coin):
        other = torch.tensor([WORDS.index(TURNED.get(word, word)) for word in WORDS])
        return torch.where(coin, other[text], text)


class UpsideDown(Scenes):
    """Left and right stay."""

    def turn(self, picture):
        return picture.flip(2)


@pytest.mark.parametrize(
    ("task", "words", "share", "outcome"),
    [
        (Scenes, ("left", "right"), 1.0, "failed"),
        (Scenes, ("links", "rechts"), 1.0, "failed"),
        (Scenes, ("left", "right"), 0.05, ""),
        (Exchanged, ("left", "right"), 1.0, ""),
        (UpsideDown, ("left", "right"), 1.0, ""),
        (Scenes, ("above", "below"), 1.0, ""),
        # "right" alone means correct as often.
        (Scenes, ("right", "right"), 1.0, ""),
    ],
)
def test_texts_that_mirroring_makes_wrong_are_found(tmp_path, task, words, share, outcome):
    dataset = dataset_of(scenes(words, share=share), tmp_path, features=("picture", "text"))
    found = check_augmentation_keeps_labels(prepared(task, dataset))
    assert (found.outcome if "mirrors" in found.measured else "") == outcome, found


class Signs(Scenes):
    """Which way a sign points, by the name of its class."""

    kind, metrics = "multiclass", dict.fromkeys(["accuracy"], "maximize")
    needs_whole_batch, scored_together = False, 1

    def encode(self, rows):
        batch = {"picture": super().encode(rows)["picture"]}
        if "label" in rows.columns:
            names = ["turn left", "turn right", "stop"]
            batch[LABEL] = torch.tensor([names.index(each) for each in rows["label"]])
        return batch

    def augment(self, batch, generator):
        coin = torch.rand(len(batch["picture"]), generator=generator) < 0.5
        turned = self.turn(batch["picture"])
        picture = torch.where(coin[:, None, None, None], turned, batch["picture"])
        return {**batch, "picture": picture}


def test_rare_classes_that_are_named_by_their_side_are_found(tmp_path):
    rows = scenes(("left", "right"), share=0.05).with_columns(
        label=pl.col("text").replace_strict(
            {"a spot, left": "turn left", "a spot, right": "turn right"}, default="stop"
        )
    )
    subject = prepared(Signs, dataset_of(rows, tmp_path, features=("picture",)))
    assert "label still says left or right" in describe_mirrored_words(subject)
