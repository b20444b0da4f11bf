"""Adverts whose numbers tell the rent: kept as words, as values, or dropped by the tokenizer."""

import re

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Numbers, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS = 900
RANDOM = np.random.default_rng(6)
SIZE, ROOMS = RANDOM.uniform(25, 120, ROWS).round(1), RANDOM.integers(1, 6, ROWS)
WORDS = [
    "bright",
    "quiet",
    "flat",
    "with",
    "a",
    "view",
    "near",
    "the",
    "park",
    "and",
    "shops",
    "on",
    "the",
    "hill",
]
ADVERTS = [
    f"{' '.join(RANDOM.choice(WORDS, 6))}, {str(size).replace('.', ',')} m2, built {year}"
    for size, year in zip(SIZE, RANDOM.integers(1900, 2020, ROWS), strict=True)
]


def table(label):
    return pl.DataFrame({"row": range(ROWS), "advert": ADVERTS, "label": label})


class Bag(Numbers):
    """Counts words, and adds up their numbers."""

    def fit(self, train):
        self.fitted = {"mean": [0.0] * (len(WORDS) + 1), **self.fit_label(train.collect()["label"])}

    def encode(self, rows):
        counts = [
            [*(text.split().count(word) for word in WORDS), self.numbers(text)]
            for text in rows["advert"]
        ]
        batch = {"x": torch.tensor(counts, dtype=torch.float32)}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch

    def numbers(self, text):
        return sum(float(each.replace(",", ".")) for each in re.findall(r"\d+,\d+", text)) / 70


class WordsAlone(Bag):
    """the tokenizer keeps letters alone"""

    def numbers(self, text):
        return 0.0


@pytest.mark.parametrize(
    ("task_type", "label", "outcome"),
    [
        (Bag, 12 * SIZE, "passed"),
        (WordsAlone, RANDOM.normal(size=ROWS), "passed"),
        (WordsAlone, 12 * SIZE + RANDOM.normal(0, 90, ROWS), "failed"),
    ],
)
def test_numbers_that_tell_the_label_and_are_dropped_fail(task_type, label, outcome, tmp_path):
    dataset = dataset_of(table(label), tmp_path, text=("advert",))
    result = results_of(prepared(task_type, dataset), "lost_values")["lost_values"]
    assert (result.outcome == "failed") == (outcome == "failed"), result
    if outcome == "failed":
        assert "the number before 'm' in advert" in result.measured
