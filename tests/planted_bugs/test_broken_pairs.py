"""Negatives that were drawn by exchanging one column, and columns that need not belong together."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, Module, dataset_of
from skeleton_tables import prepared
from workshop import results_of

ROWS, ARTICLES = 3000, 40
RANDOM = np.random.default_rng(6)
BRAND = np.array([f"brand {each}" for each in RANDOM.integers(0, 6, ARTICLES)])
NAMES = np.array([f"article {each:02}" for each in range(ARTICLES)])


def offers(negatives):
    """Bought articles with their brands, and for each two that were not bought."""
    random = np.random.default_rng(3)
    bought, label = random.integers(0, ARTICLES, ROWS), random.random(ROWS) < 1 / 3
    drawn = random.integers(0, ARTICLES, ROWS)
    article = np.where(label, bought, drawn)
    brand = np.where(label, BRAND[bought], negatives(random, bought, drawn))
    age = random.integers(18, 80, ROWS)
    return pl.DataFrame({"row": np.arange(ROWS), "article": NAMES[article], "brand": brand,
                         "age": age, "label": label.astype(int)})  # fmt: skip


class Offers(Classes):
    def fit(self, train):
        self.fitted = self.fit_label(train.collect()["label"])

    def encode(self, rows):
        index = {name: code for code, name in enumerate([*NAMES, *sorted(set(BRAND)), "none"])}
        codes = [[index[a], index[b]] for a, b in zip(rows["article"], rows["brand"], strict=True)]
        x = torch.nn.functional.one_hot(torch.tensor(codes), len(index)).sum(dim=1).float()
        batch = {
            "x": torch.cat([x, torch.tensor(rows["age"].to_numpy())[:, None] / 50 - 1], 1).float()
        }
        if "label" in rows.columns:
            batch["label"] = self.encode_label(rows["label"])
        return batch

    def build_model(self):
        return Module(torch.nn.Linear(ARTICLES + len(set(BRAND)) + 2, 2))


NEGATIVES = {
    "the drawn article's brand": (lambda random, bought, drawn: BRAND[drawn], "passed"),
    "a new brand for some": (
        lambda random, bought, drawn: np.where(random.random(ROWS) < 0.05, "none", BRAND[drawn]),
        "passed",
    ),
    "the bought article's brand": (lambda random, bought, drawn: BRAND[bought], "failed"),
    "any brand": (lambda random, bought, drawn: random.permutation(BRAND[drawn]), "failed"),
}


@pytest.mark.parametrize("name", NEGATIVES)
def test_columns_that_belong_together_in_positive_rows_alone_are_named(name, tmp_path):
    negatives, outcome = NEGATIVES[name]
    subject = prepared(Offers, dataset_of(offers(negatives), tmp_path))
    result = results_of(subject, "telling_columns")["telling_columns"]
    assert result.outcome == outcome, result
    assert ("article has one brand" in result.measured) == (outcome == "failed")
