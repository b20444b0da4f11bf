"""Texts of several lengths, and a loss that leaves their ends out or keeps them."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.checks.model.sequences import check_next_token
from perennial.engine.task import LABEL, WEIGHT, Task
from skeleton_tables import prepared

ROWS, LENGTH, PAD, END, IGNORED = 400, 16, 0, 1, -100
WORDS = [f"word{place}" for place in range(30)]


class NextWord(nn.Module):
    """An embedding and a recurrent layer."""

    def __init__(self):
        super().__init__()
        self.words, self.state = nn.Embedding(len(WORDS) + 2, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, len(WORDS) + 2)

    def forward(self, ids, mask=None):
        return self.head(self.state(self.words(ids))[0])


class Notes(Task):
    """Predicts each next word and the end; the collator copies ids and leaves padding out."""

    kind = "statistic"
    metrics = dict.fromkeys(["nats"], "minimize")
    end, pad, gives_mask = END, PAD, False

    def fit(self, train):
        self.fitted = {}

    def encode(self, rows):
        ids = torch.full((rows.height, LENGTH), self.pad)
        mask = torch.zeros((rows.height, LENGTH), dtype=torch.long)
        for row, text in enumerate(rows["label"]):
            codes = [WORDS.index(word) + 2 for word in text.split()][: LENGTH - 1]
            codes += [] if self.end is None else [self.end]
            ids[row, : len(codes)] = torch.tensor(codes)
            mask[row, : len(codes)] = 1
        labels = ids.masked_fill(self.left_out(ids, mask), IGNORED)
        batch = {"ids": ids, LABEL: labels, WEIGHT: (labels[:, 1:] != IGNORED).sum(1).float()}
        return {**batch, "mask": mask} if self.gives_mask else batch

    def left_out(self, ids, mask):
        return mask == 0

    def build_model(self):
        return NextWord()

    def losses(self, output, batch):
        targets = batch[LABEL][:, 1:]
        lost = functional.cross_entropy(output[:, :-1].transpose(1, 2), targets, reduction="none")
        return lost.sum(1) / (targets != IGNORED).sum(1).clamp(min=1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"nats": float(np.average(predictions.reshape(-1), weights=labels))}


class PaddedWithTheEnd(Notes):
    """No token of its own pads; padding is left out by its place."""

    pad = END


class EndLeftOutWithPadding(PaddedWithTheEnd):
    """Padding is left out by its number, which is the end's."""

    gives_mask = True

    def left_out(self, ids, mask):
        return ids == self.pad


class EndLeftOut(Notes):
    """The end has a number of its own and is left out."""

    def left_out(self, ids, mask):
        return (mask == 0) | (ids == END)


class WithoutEnd(Notes):
    """Texts stop without an end."""

    end = None


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """Texts of 4 to 12 words, each of which hints at the next."""
    random = np.random.default_rng(5)
    texts = []
    for _ in range(ROWS):
        place, words = int(random.integers(len(WORDS))), []
        for _ in range(int(random.integers(4, 13))):
            words.append(WORDS[place])
            place = (place + int(random.integers(1, 4))) % len(WORDS)
        texts.append(" ".join(words))
    frame = pl.DataFrame({"row": np.arange(ROWS), "label": texts})
    return dataset_of(frame, tmp_path_factory.mktemp("notes"), features=("label",), text=("label",))


@pytest.mark.parametrize(
    ("task", "outcome", "measured"),
    [
        (Notes, "passed", "of positions"),
        (PaddedWithTheEnd, "passed", "of positions"),
        (EndLeftOut, "failed", "end with token 1, which is no target"),
        (EndLeftOutWithPadding, "failed", "mask counts a token more than the last target"),
        (WithoutEnd, "warned", "the last target of"),
    ],
)
def test_ends_that_are_no_target_of_the_loss_are_found(notes, task, outcome, measured):
    found = check_next_token(prepared(task, notes))
    assert (found.outcome, measured in found.measured) == (outcome, True), found
