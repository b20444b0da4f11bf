"""Codes and copies: fields that share vectors, padding_idx that is not padding, one input twice."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from own_tasks import LENGTH, SETTINGS, OwnTask, Praise, Reader, pinned
from perennial.check_skeleton.subject import Subject
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from workshop import results_of

FIELDS = {"user": 120, "item": 60, "hour": 24}


def clicks(rows=2400):
    """Who clicked on what and when, with a taste of each user for each item."""
    random = np.random.default_rng(11)
    codes = {name: random.integers(0, size, rows) for name, size in FIELDS.items()}
    taste = np.sin(codes["user"] * 7.0) * np.cos(codes["item"] * 5.0) + 0.1 * (codes["hour"] - 12)
    clicked = (taste + random.logistic(size=rows) / 2 > 0).astype(np.int64)
    return pl.DataFrame({"row": np.arange(rows), **codes, "clicked": clicked})


class Summed(nn.Module):
    def __init__(self, size, offsets):
        super().__init__()
        self.table = nn.Embedding(size, 8)
        self.head = nn.Linear(8, 1)
        self.register_buffer("offsets", torch.tensor(offsets))

    def forward(self, fields):
        return self.head(self.table(fields + self.offsets).sum(dim=1)).squeeze(1)


class Clicks(OwnTask):
    """Fields one after another in one table."""

    offsets = (0, 120, 180)
    size = 204

    def fit(self, train):
        self.learned = {}

    def encode(self, rows):
        fields = np.stack([rows[name].to_numpy() for name in FIELDS], axis=1)
        return self.with_label(rows, {"fields": torch.from_numpy(fields)})

    def build_model(self):
        return Summed(self.size, self.offsets)


class WithoutOffsets(Clicks):
    """User 5, item 5 and hour 5 share a vector."""

    offsets = (0, 0, 0)


class WithoutOffsetsOfHours(WithoutOffsets):
    """The same in a table with codes for what is missing."""

    size = 208


class SmallTable(WithoutOffsets):
    """One vocabulary for all fields, by design."""

    size = 120


class HashedTable(WithoutOffsets):
    """A table far larger than what is used of it."""

    size = 4096


class Pairs(OwnTask):
    """Users and items in tables of their own."""

    second = "item"

    def fit(self, train):
        self.learned = {}

    def encode(self, rows):
        names = {"left": "user", "right": self.second}
        codes = {each: torch.from_numpy(rows[name].to_numpy() + 0) for each, name in names.items()}
        return self.with_label(rows, codes)

    def build_model(self):
        return Product()


class Product(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Embedding(120, 8), nn.Embedding(120, 8)

    def forward(self, left, right):
        return (self.left(left) * self.right(right)).sum(dim=1)


class UserTwice(Pairs):
    """The item's code is the user's: copy and paste."""

    second = "user"


class TwoViews(UserTwice):
    """Two views of one thing, and every column is read."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "left": self.mixed(rows), "right": self.mixed(rows)}

    def mixed(self, rows):
        code = rows["user"] * 10_000 + rows["item"] * 100 + rows["hour"]
        return torch.from_numpy(code.to_numpy() + 0)


class OtherPadding(Praise):
    """Padding is 0, and padding_idx is the code of a frequent word."""

    def build_model(self):
        model = super().build_model()
        size, width = model.words.weight.shape
        model.words = nn.Embedding(size, width, padding_idx=3)
        return model


class NoPadding(Praise):
    """Padding has a vector like any other code."""

    def build_model(self):
        model = Reader(2 + len(self.learned["words"]), LENGTH)
        model.words.padding_idx = None
        return model


def judged(task_type, check, tmp_path):
    snapshot = pinned(clicks(), tmp_path, "clicked")
    make_task = partial(task_type, task_type.Options(), snapshot.task_columns)
    subject = Subject.prepare(make_task, Dataset(snapshot), SETTINGS, TrainingSection(seed=1))
    return results_of(subject, check)[check]


@pytest.mark.parametrize("task_type", [WithoutOffsets, WithoutOffsetsOfHours])
def test_fields_that_share_the_vectors_of_one_table_fail(task_type, tmp_path):
    found = judged(task_type, "input_form", tmp_path)
    assert found.outcome == "failed", found.measured
    assert "offset" in found.hint


@pytest.mark.parametrize("task_type", [Clicks, SmallTable, HashedTable, Pairs])
def test_tables_made_for_their_codes_pass(task_type, tmp_path):
    found = judged(task_type, "input_form", tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


def test_one_column_in_place_of_two_fails(tmp_path):
    found = judged(UserTwice, "repeated_inputs", tmp_path)
    assert found.outcome == "failed", found.measured
    assert "copy and paste" in found.hint


@pytest.mark.parametrize("task_type", [Pairs, TwoViews])
def test_inputs_that_read_every_column_pass(task_type, tmp_path):
    found = judged(task_type, "repeated_inputs", tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


def test_a_word_in_place_of_padding_fails(workshop):
    found = results_of(workshop.subject(OtherPadding, "reviews"), "input_form")["input_form"]
    assert found.outcome == "failed", found.measured
    assert "padding_idx" in found.hint


@pytest.mark.parametrize("task_type", [Praise, NoPadding])
def test_padding_with_or_without_a_vector_passes(task_type, workshop):
    found = results_of(workshop.subject(task_type, "reviews"), "input_form")["input_form"]
    assert found.outcome == "passed", (found.measured, found.hint)
