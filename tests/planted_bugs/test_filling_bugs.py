"""Language models that learn what fills short texts up, and texts that end as fill does."""

from functools import partial
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from documents import documents, pinned, subject_of
from own_tasks import SETTINGS, OwnTask
from own_tasks import pinned as pinned_table
from perennial.check_skeleton.subject import Subject
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, WEIGHT
from perennial.tasks.columns.tokenization import BOUNDARY, IGNORED
from perennial.tasks.language_modeling import TOKENS, CausalLanguageModel
from workshop import results_of


def mostly_long(short: int) -> pl.DataFrame:
    """Documents longer than the context, but for some short ones among them."""
    frame = documents()
    text = pl.col("text").str.head(14)
    is_short = pl.int_range(pl.len()) % (frame.height // short) == 0
    long = pl.concat_str("text", pl.lit(" of the shape returns the mean value"))
    return frame.with_columns(text=pl.when(is_short).then(text).otherwise(long))


class Filled(CausalLanguageModel):
    """What fills a text up is a token like any other, in the loss and in the weights."""

    def encode(self, rows):
        batch = super().encode(rows)
        labels = batch[LABEL].masked_fill(batch[LABEL] == IGNORED, BOUNDARY)
        return {TOKENS: batch[TOKENS], LABEL: labels, WEIGHT: (labels != IGNORED).sum(1).float()}


class OneEnd(CausalLanguageModel):
    """The end of a text is learned, what fills it up behind is not."""

    def encode(self, rows):
        batch = super().encode(rows)
        length = (batch[LABEL] != IGNORED).sum(1, keepdim=True)
        is_end = torch.arange(batch[LABEL].shape[1]) == length
        labels = batch[LABEL].masked_fill(is_end, BOUNDARY)
        return {TOKENS: batch[TOKENS], LABEL: labels, WEIGHT: (labels != IGNORED).sum(1).float()}


def judged(task_type, frame, tmp_path):
    snapshot = pinned(tmp_path, frame)
    subject = subject_of(task_type, snapshot)
    return results_of(subject, "example_weights")["example_weights"]


@pytest.mark.parametrize("short", [30, 300])
def test_learned_padding_fails_although_few_texts_are_short(short, tmp_path):
    found = judged(Filled, mostly_long(short), tmp_path)
    assert found.outcome == "failed", found.measured
    assert "shortest texts" in found.measured
    assert "ignores" in found.hint


@pytest.mark.parametrize("task_type", [CausalLanguageModel, OneEnd])
def test_padding_that_the_loss_ignores_passes(task_type, tmp_path):
    found = judged(task_type, mostly_long(30), tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


def test_texts_without_padding_pass(tmp_path):
    frame = documents().with_columns(text=pl.concat_str("text", pl.lit(" of the shape returns")))
    found = judged(Filled, frame, tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


def test_texts_that_end_in_one_repeated_character_pass(tmp_path):
    dots = [
        f"{text[:6]}{'.' * (30 - place % 12)}" for place, text in enumerate(documents()["text"])
    ]
    found = judged(CausalLanguageModel, documents().with_columns(text=pl.Series(dots)), tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


TAGS = ("noun", "other", "verb")


def sentences(rows=1200, *, longest=12):
    """Words, and the tag of each, which its number tells."""
    random = np.random.default_rng(5)
    words = [random.integers(1, 30, random.integers(3, longest + 1)).tolist() for _ in range(rows)]
    tags = [[TAGS[word % 3] for word in each] for each in words]
    return pl.DataFrame({"row": np.arange(rows), "words": words, "tags": tags})


class Tagger(OwnTask):
    """The tag of each word; what fills sentences up has a tag that the loss ignores."""

    kind = "statistic"
    metrics: ClassVar = {"tag_loss": "minimize"}
    fill = -100
    length = 12

    def fit(self, train):
        self.learned = {}

    def filled(self, rows, fill):
        return torch.tensor([each + [fill] * (self.length - len(each)) for each in rows])

    def encode(self, rows):
        inputs = {"words": self.filled(rows["words"].to_list(), 0)}
        if "tags" in rows.columns:
            tags = [[TAGS.index(tag) for tag in each] for each in rows["tags"].to_list()]
            inputs[LABEL] = self.labels(tags)
            inputs[WEIGHT] = (inputs[LABEL] != -100).sum(dim=1).float()
        return inputs

    def labels(self, tags):
        return self.filled(tags, self.fill)

    def build_model(self):
        return Lookup()

    def losses(self, output, batch):
        losses = nn.functional.cross_entropy(
            output.transpose(1, 2), batch[LABEL].long(), reduction="none"
        )
        return losses.sum(dim=1) / (batch[LABEL] != -100).sum(dim=1).clamp_min(1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"tag_loss": float(np.average(predictions, weights=labels))}


class Lookup(nn.Module):
    outputs = 3

    def __init__(self):
        super().__init__()
        self.scores = nn.Embedding(30, self.outputs)

    def forward(self, words):
        return self.scores(words)


class FilledWithOther(Tagger):
    """What fills sentences up is tagged as other."""

    fill = 1


class TagsOfSentences(Tagger):
    """The tags that a sentence has anywhere, each a yes or a no: no position, and nothing filled."""

    def labels(self, tags):
        return torch.tensor([[float(tag in each) for tag in range(12)] for each in tags])

    def losses(self, output, batch):
        given = output.mean(dim=2)
        return nn.functional.binary_cross_entropy_with_logits(
            given, batch[LABEL].float(), reduction="none"
        ).mean(dim=1)


def judged_tags(task_type, tmp_path):
    snapshot = pinned_table(sentences(), tmp_path, "tags")
    make_task = partial(task_type, task_type.Options(), snapshot.task_columns)
    subject = Subject.prepare(make_task, Dataset(snapshot), SETTINGS, TrainingSection(seed=1))
    return results_of(subject, "example_weights")["example_weights"]


def test_learned_padding_of_tags_fails(tmp_path):
    found = judged_tags(FilledWithOther, tmp_path)
    assert found.outcome == "failed", found.measured
    assert "short lists" in found.measured


@pytest.mark.parametrize("task_type", [Tagger, TagsOfSentences])
def test_tags_whose_padding_is_ignored_do_not_fail(task_type, tmp_path):
    found = judged_tags(task_type, tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)
