"""Texts that are split, or spelt, in another way than the vocabulary's words were."""

import re
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import dataset_of
from perennial.check_skeleton.checks.model.text_coverage import check_text_coverage
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

LENGTH = 24
GOOD = ["friendly", "quiet", "clean", "spotless", "lovely", "generous", "charming", "tasty"]
BAD = ["rude", "loud", "dirty", "broken", "smelly", "tiny", "boring", "cold"]
THINGS = ["staff", "room", "pool", "breakfast", "view", "shower", "lift", "garden", "bar", "floor"]


def reviews(rows=900):
    """Three clauses each, of which most end in a mark, and whether they are kind."""
    rng = np.random.default_rng(3)
    texts, kind = [], []
    for _ in range(rows):
        is_kind = int(rng.integers(2))
        words = GOOD if is_kind else BAD
        clauses = [
            f"the {rng.choice(THINGS)} was {rng.choice(words)}{rng.choice([',', '.', '!', ' and'])}"
            for _ in range(3)
        ]
        texts.append(" ".join(clauses))
        kind.append(is_kind)
    return pl.DataFrame({"row": range(rows), "review": texts, "label": kind})


def headlines(rows=900):
    """Two clauses each, whose first words have capital letters."""
    rng = np.random.default_rng(3)
    kind = rng.integers(0, 2, rows).tolist()
    texts = [
        " and ".join(
            f"{rng.choice(GOOD if is_kind else BAD).capitalize()} {rng.choice(THINGS)} there"
            for _ in range(2)
        )
        for is_kind in kind
    ]
    return pl.DataFrame({"row": range(rows), "review": texts, "label": kind})


def words_of(text):
    return re.findall(r"[a-z]+", text)


def with_marks(text):
    return re.findall(r"[a-z]+|[.,!]", text)


def letters(text):
    return list(text)


class Kindness(Task):
    """The mean of embedded tokens; `learned` makes the vocabulary's, `read` those of a request."""

    kind = "binary"
    metrics: Mapping[str, Any] = {"log_loss": "minimize"}
    learned = read = staticmethod(words_of)
    most = 1000

    def fit(self, train):
        tokens = [token for text in train.collect()["review"] for token in self.learned(text)]
        self.fitted = {"words": [word for word, _ in Counter(tokens).most_common(self.most)]}

    def state(self):
        return self.fitted

    def load_state(self, state):
        self.fitted = state

    def find_code(self, token, codes):
        return codes.get(token, 1)

    def encode(self, rows):
        codes = {word: code for code, word in enumerate(self.fitted["words"], start=2)}
        lists = [[self.find_code(t, codes) for t in self.read(text)] for text in rows["review"]]
        width = 160 if self.read is letters else LENGTH
        batch = {"tokens": torch.tensor([(each + [0] * width)[:width] for each in lists])}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor(rows["label"].to_list())
        return batch

    def build_model(self):
        return nn.Identity()

    def losses(self, output, batch):
        raise NotImplementedError


class SplitAtBlanks(Kindness):
    read = staticmethod(str.split)


class SplitAtLast(Kindness):
    """Marks are words of the vocabulary, and stay on words when these are looked up."""

    learned, read = staticmethod(with_marks), staticmethod(str.split)


def in_lower_case(text):
    return text.lower().split()


class VocabularyInLowerCase(Kindness):
    learned, read = staticmethod(in_lower_case), staticmethod(str.split)


class LowerCaseForBoth(Kindness):
    learned = read = staticmethod(in_lower_case)


class BlanksForBoth(Kindness):
    learned = read = staticmethod(str.split)


class MarksAreWords(Kindness):
    learned = read = staticmethod(with_marks)


class FewWords(BlanksForBoth):
    """Room for the most frequent words alone."""

    most = 36


class Letters(Kindness):
    learned = read = staticmethod(letters)


class Hashed(BlanksForBoth):
    def find_code(self, token, codes):
        return 2 + crc32(token.encode()) % 500


def examine(task_type, folder, rows=reviews):
    dataset = dataset_of(rows(), folder)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return check_text_coverage(Subject.prepare(make, dataset, SETTINGS, training))


@pytest.mark.parametrize("task_type", [SplitAtBlanks, SplitAtLast])
def test_marks_that_stay_on_words_fail(task_type, tmp_path):
    result = examine(task_type, tmp_path)
    assert result.outcome == "failed", result.measured
    assert "because of the mark that touches them" in result.measured


@pytest.mark.parametrize(
    "task_type", [Kindness, BlanksForBoth, MarksAreWords, FewWords, Letters, Hashed]
)
def test_one_tokenizer_for_both_passes(task_type, tmp_path):
    result = examine(task_type, tmp_path)
    assert result.outcome != "failed", result.measured
    assert "mark that touches" not in result.measured


def test_words_that_are_unknown_by_their_capitals_fail(tmp_path):
    result = examine(VocabularyInLowerCase, tmp_path, headlines)
    assert result.outcome == "failed", result.measured
    assert "because of their capital letters" in result.measured


@pytest.mark.parametrize("task_type", [LowerCaseForBoth, BlanksForBoth, FewWords, Letters, Hashed])
def test_capitals_that_are_known_pass(task_type, tmp_path):
    result = examine(task_type, tmp_path, headlines)
    assert result.outcome != "failed", result.measured
    assert "capital letters" not in result.measured
