"""Decoders that are taught with the right steps before: their label is an input, and no leak."""

from functools import partial
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

LETTERS, LENGTH, START = "abcdefgh", 8, 8
SOURCES = np.random.default_rng(3).integers(0, len(LETTERS), size=(1200, LENGTH))
TEXTS = ["".join(LETTERS[code] for code in row) for row in SOURCES]
FRAME = pl.DataFrame(
    {"row": range(len(TEXTS)), "written": TEXTS, "label": [text[::-1] for text in TEXTS]}
)


def codes_of(texts):
    return torch.tensor([[LETTERS.index(letter) for letter in text] for text in texts])


class Decoder(nn.Module):
    """Reads the source, then writes a letter for each one that it is given or has written."""

    def __init__(self, *, is_bidirectional=False):
        super().__init__()
        self.letters = nn.Embedding(9, 24)
        self.encoder = nn.GRU(24, 32, batch_first=True)
        self.decoder = nn.GRU(24, 32, batch_first=True, bidirectional=is_bidirectional)
        self.head = nn.Linear(64 if is_bidirectional else 32, len(LETTERS))

    def forward(self, source, before=None):
        _, state = self.encoder(self.letters(source))
        state = state.repeat(2 if self.decoder.bidirectional else 1, 1, 1)
        if before is not None:
            return self.head(self.decoder(self.letters(before), state)[0])
        step, found = torch.full((len(source), 1), START), []
        for _ in range(LENGTH):
            hidden, state = self.decoder(self.letters(step), state)
            found.append(self.head(hidden))
            step = found[-1].argmax(-1)
        return torch.cat(found, dim=1)


class Reversed(Task):
    """Writes letters backwards, taught by the letters before."""

    kind = "statistic"
    metrics: ClassVar = {"letter_accuracy": "maximize"}

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def letters_before(self, label):
        return torch.cat([torch.full((len(label), 1), START), label[:, :-1]], dim=1)

    def encode(self, rows):
        batch = {"source": codes_of(rows["written"])}
        if "label" in rows.columns:
            batch[LABEL] = codes_of(rows["label"])
            batch["before"] = self.letters_before(batch[LABEL])
        return batch

    def build_model(self):
        return Decoder()

    def losses(self, output, batch):
        losses = functional.cross_entropy(output.mT, batch[LABEL], reduction="none")
        return losses.mean(dim=1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        return (output.argmax(-1) == batch[LABEL]).double().mean(dim=1, keepdim=True)

    def score(self, predictions, labels):
        return {"letter_accuracy": float(predictions.mean())}


class ClassesFirst(Reversed):
    """Scores of letters as a cross entropy reads them, [B, letters, T]."""

    def build_model(self):
        class Turned(Decoder):
            def forward(self, source, before=None):
                return super().forward(source, before).mT

        return Turned()

    def losses(self, output, batch):
        return super().losses(output.mT, batch)

    def predict(self, output):
        return output.argmax(1)

    def statistic(self, output, batch):
        return super().statistic(output.mT, batch)


class Marked(Reversed):
    """Labels begin with a mark, which no step answers."""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            marks = torch.full((len(batch[LABEL]), 1), START)
            batch[LABEL] = torch.cat([marks, batch[LABEL]], dim=1)
        return batch

    def losses(self, output, batch):
        return super().losses(output, {LABEL: batch[LABEL][:, 1:]})

    def statistic(self, output, batch):
        return super().statistic(output, {LABEL: batch[LABEL][:, 1:]})


class ClassesFirstNotShifted(ClassesFirst):
    """The same, and each letter is given when it is asked for."""

    def letters_before(self, label):
        return label


class MarkedNotShifted(Marked):
    """The same, and each letter is given when it is asked for."""

    def letters_before(self, label):
        return label


class NotShifted(Reversed):
    """Each letter is given when it is asked for."""

    def letters_before(self, label):
        return label


class LettersBehind(Reversed):
    """Shifted the other way: the next letter is given, and not the last."""

    def letters_before(self, label):
        return torch.cat([label[:, 1:], torch.full((len(label), 1), START)], dim=1)


class BothWays(Reversed):
    """The decoder reads the letters that are to come, too."""

    def build_model(self):
        return Decoder(is_bidirectional=True)


def judge(task_type, folder, features=("written", "label"), check="serving_inputs"):
    dataset = dataset_of(FRAME, folder, features=features, text=features)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection.model_validate(
        {"steps": 400, "global_batch_size": 128}, strict=False
    )
    (result,) = run_checks(Subject.prepare(make, dataset, SETTINGS, training), [check])
    return result


@pytest.mark.parametrize("task_type", [Reversed, ClassesFirst, Marked])
def test_letters_before_are_no_leak(task_type, tmp_path):
    result = judge(task_type, tmp_path)
    assert result.outcome == "passed", result


@pytest.mark.parametrize(
    "task_type", [NotShifted, LettersBehind, BothWays, ClassesFirstNotShifted, MarkedNotShifted]
)
def test_letters_that_are_to_come_are_a_leak(task_type, tmp_path):
    result = judge(task_type, tmp_path)
    assert result.outcome == "failed"
    assert "without the label column" in result.measured


class StartAlone(Reversed):
    """Without a label, the decoder is given the mark that begins every word."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {"before": torch.full((rows.height, 1), START), **batch}


@pytest.mark.parametrize("task_type", [Reversed, ClassesFirst, Marked, StartAlone])
@pytest.mark.parametrize("check", ["serving_inputs", "shuffled_labels"])
def test_letters_before_are_no_leak_where_the_label_is_not_named_a_feature(
    task_type, check, tmp_path
):
    result = judge(task_type, tmp_path, ("written",), check)
    assert result.outcome in ("passed", "skipped"), result


class RowNumber(Reversed):
    """Taught by the letters before, and by the row's number."""

    def encode(self, rows):
        batch = super().encode(rows)
        if "row" in rows.columns:
            batch["source"] = (batch["source"] + rows["row"].to_torch()[:, None]) % len(LETTERS)
        return batch


def test_another_column_is_a_leak_beside_letters_before(tmp_path):
    result = judge(RowNumber, tmp_path, ("written",))
    assert result.outcome == "failed"
    assert "source" in result.measured


@pytest.mark.parametrize("task_type", [NotShifted, LettersBehind, BothWays])
def test_letters_to_come_are_a_leak_where_the_label_is_not_named_a_feature(task_type, tmp_path):
    result = judge(task_type, tmp_path, ("written",))
    assert result.outcome == "failed"
    assert "if only the features are given" in result.measured


class BagOfLetters(Reversed):
    """The source is averaged: its letters have no places."""

    def build_model(self):
        class Averaged(Decoder):
            def forward(self, source, before=None):
                middle = self.letters(source).mean(dim=1, keepdim=True)
                state = self.encoder(middle)[1]
                return self.head(self.decoder(self.letters(before), state)[0])

        return Averaged()


@pytest.mark.parametrize(("task_type", "outcome"), [(Reversed, "passed"), (BagOfLetters, "warned")])
def test_the_order_of_a_source_is_read(task_type, outcome, tmp_path):
    result = judge(task_type, tmp_path, ("written", "label"), "position_use")
    assert result.outcome == outcome, result
    if outcome == "warned":
        assert "for source" in result.measured
