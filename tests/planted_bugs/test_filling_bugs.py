"""Language models that learn what fills short texts up, and texts that end as fill does."""

import polars as pl
import pytest
import torch

from components.engine.task import LABEL, WEIGHT
from components.tasks.columns.tokenization import BOUNDARY, IGNORED
from components.tasks.language_modeling import TOKENS, CausalLanguageModel
from documents import documents, pinned, subject_of
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
def test_learned_fill_fails_though_few_texts_are_short(short, tmp_path):
    found = judged(Filled, mostly_long(short), tmp_path)
    assert found.outcome == "failed", found.measured
    assert "shortest texts" in found.measured
    assert "ignores" in found.hint


@pytest.mark.parametrize("task_type", [CausalLanguageModel, OneEnd])
def test_fill_that_the_loss_ignores_passes(task_type, tmp_path):
    found = judged(task_type, mostly_long(30), tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


def test_texts_without_fill_pass(tmp_path):
    frame = documents().with_columns(text=pl.concat_str("text", pl.lit(" of the shape returns")))
    found = judged(Filled, frame, tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


def test_texts_that_end_in_one_repeated_character_pass(tmp_path):
    dots = [
        f"{text[:6]}{'.' * (30 - place % 12)}" for place, text in enumerate(documents()["text"])
    ]
    found = judged(CausalLanguageModel, documents().with_columns(text=pl.Series(dots)), tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)
