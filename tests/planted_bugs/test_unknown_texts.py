"""Texts that a vocabulary does not know, because they are rare or because it was made of other rows."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, Module, dataset_of
from skeleton_tables import prepared
from workshop import results_of

ROWS = 3000


def shops(folder):
    """Rows of 60 shops, of which some are ten times as large as others."""
    random = np.random.default_rng(2)
    sizes = np.linspace(1, 10, 60)
    shop = random.choice(60, ROWS, p=sizes / sizes.sum())
    table = {"row": np.arange(ROWS), "shop": [f"shop {each:02}" for each in shop],
             "label": random.integers(0, 2, ROWS)}  # fmt: skip
    return dataset_of(pl.DataFrame(table), folder)


class Vocabulary(Classes):
    """Knows every shop of the training split."""

    def words(self, frame):
        return sorted(frame["shop"].unique())

    def fit(self, train):
        frame = train.collect()
        self.fitted = {"words": self.words(frame), **self.fit_label(frame["label"])}

    def encode(self, rows):
        index = {word: code for code, word in enumerate(self.fitted["words"], start=1)}
        codes = torch.tensor([index.get(word, 0) for word in rows["shop"]])
        batch = {"x": torch.nn.functional.one_hot(codes, 70).float()}
        if "label" in rows.columns:
            batch["label"] = self.encode_label(rows["label"])
        return batch

    def build_model(self):
        return Module(torch.nn.Linear(70, 2))


class Frequent(Vocabulary):
    """Knows the shops with fifty rows or more."""

    def words(self, frame):
        return frame["shop"].value_counts().filter(pl.col("count") >= 50)["shop"].to_list()


class Hashed(Vocabulary):
    """Shops share sixteen places, and so do those that nobody knows."""

    def encode(self, rows):
        batch = super().encode(rows)
        codes = torch.tensor([sum(word.encode()) % 16 for word in rows["shop"]])
        return {**batch, "x": torch.nn.functional.one_hot(codes, 70).float()}


class FirstRows(Vocabulary):
    def words(self, frame):
        return sorted(frame["shop"].head(20).unique())


class FirstLetters(Vocabulary):
    def words(self, frame):
        return sorted(frame["shop"].unique())[:20]


class OtherSpelling(Vocabulary):
    """The second half of the shops is written another way."""

    def words(self, frame):
        return [w if w < "shop 30" else w.upper() for w in super().words(frame)]


@pytest.mark.parametrize("task_type", [Vocabulary, Frequent, Hashed])
def test_rare_texts_may_be_unknown(task_type, tmp_path):
    result = results_of(prepared(task_type, shops(tmp_path)), "lost_values")["lost_values"]
    assert result.outcome == "passed", result


@pytest.mark.parametrize("task_type", [FirstRows, FirstLetters, OtherSpelling])
def test_frequent_texts_that_are_unknown_are_named(task_type, tmp_path):
    result = results_of(prepared(task_type, shops(tmp_path)), "lost_values")["lost_values"]
    assert result.outcome == "failed", result
    assert "values of shop" in result.measured


class Visits(Vocabulary):
    """The last four shops that someone visited, as codes."""

    def words(self, frame):
        return sorted(frame["shop"].explode().unique())

    def encode(self, rows):
        index = {word: code for code, word in enumerate(self.fitted["words"], start=2)}
        lists = [[index.get(word, 1) for word in each] for each in rows["shop"]]
        batch = {"shops": torch.tensor([([0] * 4 + each)[-4:] for each in lists])}
        if "label" in rows.columns:
            batch["label"] = self.encode_label(rows["label"])
        return batch

    def build_model(self):
        return Module(torch.nn.Sequential(torch.nn.Embedding(70, 2), Mean()))


class Mean(torch.nn.Module):
    def forward(self, vectors):
        return vectors.mean(1)


class WordsOfAnotherColumn(Visits):
    def words(self, frame):
        return ["one", "two", "three"]


class FirstVisits(Visits):
    def words(self, frame):
        return sorted(frame["shop"].head(8).explode().unique())


class HowMany(WordsOfAnotherColumn):
    """Counts the visits; which shops they were is of no interest."""

    def encode(self, rows):
        batch = super().encode(rows)
        counts = (batch.pop("shops") > 0).sum(1, keepdim=True)
        return {**batch, "x": counts.float().expand(-1, 70).clone()}

    def build_model(self):
        return Module(torch.nn.Linear(70, 2))


def visits(folder):
    random = np.random.default_rng(2)
    sizes = np.linspace(1, 10, 60)
    lists = [
        [f"shop {each:02}" for each in random.choice(60, length, p=sizes / sizes.sum())]
        for length in random.integers(1, 7, ROWS)
    ]
    table = {"row": np.arange(ROWS), "shop": lists, "label": random.integers(0, 2, ROWS)}
    return dataset_of(pl.DataFrame(table), folder)


@pytest.mark.parametrize(
    ("task_type", "measured"),
    [
        (WordsOfAnotherColumn, "all 60 items of shop are encoded like one that was never seen"),
        (FirstVisits, "values of shop"),
    ],
)
def test_items_of_lists_that_are_unknown_are_named(task_type, measured, tmp_path):
    result = results_of(prepared(task_type, visits(tmp_path)), "lost_values")["lost_values"]
    assert result.outcome == "failed", result
    assert measured in result.measured


@pytest.mark.parametrize("task_type", [Visits, HowMany])
def test_items_that_are_known_or_counted_pass(task_type, tmp_path):
    result = results_of(prepared(task_type, visits(tmp_path)), "lost_values")["lost_values"]
    assert result.outcome != "failed", result
