"""Texts whose signs are removed although they tell of the label, and texts that lose nothing by it."""

import re
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS = 800
RANDOM = np.random.default_rng(6)
LANGUAGE = RANDOM.choice(["brackets", "colons", "none"], ROWS).tolist()
WORDS = ["value", "index", "count", "open", "name", "total", "item", "size"]
USUAL = {"brackets": "value", "colons": "index", "none": "count"}


def snippet(language, has_signs=True):
    """Words, of which one is usual in its language, and the language's signs."""
    words = [*RANDOM.choice(WORDS, 5), *([USUAL[language]] * int(RANDOM.integers(0, 3)))]
    ends = {"brackets": "();", "colons": ":", "none": ""}[language] if has_signs else "."
    return " ".join(f"{word}{ends if RANDOM.random() < 0.5 else ''}" for word in words)


class Snippets(Classes):
    """Words and signs as counts."""

    texts: ClassVar = [snippet(language) for language in LANGUAGE]
    tokens = re.compile(r"\w+|[^\w\s]")

    @classmethod
    def table(cls):
        return pl.DataFrame({"row": range(ROWS), "text": cls.texts, "label": LANGUAGE})

    def fit(self, train):
        self.fitted = {"mean": [0.0] * 24, **self.fit_label(train.collect()["label"])}

    def encode(self, rows):
        known = [*WORDS, "(", ")", ";", ":", "."]
        counts = np.zeros((len(rows), 24), dtype=np.float32)
        for row, text in enumerate(rows["text"].to_list()):
            for token in self.tokens.findall(text):
                counts[row, known.index(token) if token in known else 23] += 1
        batch = {"x": torch.from_numpy(counts)}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch


class WordsAlone(Snippets):
    """Punctuation is removed, as for prose."""

    tokens = re.compile(r"\w+")


class Prose(WordsAlone):
    """Full stops, which all texts have alike, are removed."""

    texts: ClassVar = [snippet(language, has_signs=False) for language in LANGUAGE]


def examine(task_type, folder):
    subject = prepared(task_type, dataset_of(task_type.table(), folder))
    return results_of(subject, "text_coverage")["text_coverage"]


def test_signs_that_are_removed_and_tell_of_the_label_fail(tmp_path):
    result = examine(WordsAlone, tmp_path)
    assert result.outcome == "failed", result.measured
    assert "do not reach the inputs" in result.measured
    assert set("();:") <= set(result.measured.partition(" of text")[0])


@pytest.mark.parametrize("task_type", [Snippets, Prose])
def test_signs_that_are_read_or_tell_nothing_do_not(task_type, tmp_path):
    assert examine(task_type, tmp_path).outcome in ("passed", "skipped")
