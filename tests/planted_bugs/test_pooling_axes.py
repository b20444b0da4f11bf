"""Attention over words that is normalised over the turns that they are part of."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from mixed_numbers import TwoClasses, subject_of
from perennial.check_skeleton.checks.model.attention import check_attention
from perennial.engine.task import LABEL

ROWS, TURNS, WORDS, CODES, WIDTH = 400, 5, 7, 30, 8


def by_einsum(weights, x):
    return torch.einsum("btw,btwd->btd", weights, x)


def by_product(weights, x):
    return (weights[..., None] * x).sum(dim=2)


def by_numpy_names(weights, x):
    return (weights[..., None] * x).sum(axis=2)


def by_matrices(weights, x):
    return (weights.unsqueeze(2) @ x).squeeze(2)


def by_turned_matrices(weights, x):
    return (x.transpose(2, 3) @ weights.unsqueeze(-1)).squeeze(-1)


class Words(nn.Module):
    """Words are pooled to turns, and turns to a dialogue."""

    def __init__(self, pool, axis, turn_axis=1):
        super().__init__()
        self.words, self.score = nn.Embedding(CODES, WIDTH), nn.Linear(WIDTH, 1)
        self.turn_score, self.head = nn.Linear(WIDTH, 1), nn.Linear(WIDTH, 1)
        self.pool, self.axis, self.turn_axis = pool, axis, turn_axis

    def forward(self, words):
        x = self.words(words)
        turns = self.pool(self.score(x).squeeze(-1).softmax(dim=self.axis), x)
        weights = self.turn_score(turns).softmax(dim=self.turn_axis)
        return self.head((weights * turns).sum(dim=1))[:, 0]


class Clusters(nn.Module):
    """NetVLAD: words are assigned to clusters, and what they differ by is summed over words."""

    def __init__(self, clusters):
        super().__init__()
        self.words, self.assign = nn.Embedding(CODES, WIDTH), nn.Linear(WIDTH, clusters)
        self.centres = nn.Parameter(torch.randn(clusters, WIDTH))
        self.head = nn.Linear(clusters * WIDTH, 1)

    def forward(self, words):
        x = self.words(words.flatten(1))
        shares = self.assign(x).softmax(dim=-1)
        left = (shares.unsqueeze(-1) * (x.unsqueeze(2) - self.centres)).sum(dim=1)
        return self.head(left.flatten(1))[:, 0]


class Heads(nn.Module):
    """Several weights for each word, of which each set adds up to 1."""

    def __init__(self):
        super().__init__()
        self.words, self.score = nn.Embedding(CODES, WIDTH), nn.Linear(WIDTH, WORDS)
        self.head = nn.Linear(WORDS * WIDTH, 1)

    def forward(self, words):
        x = self.words(words.flatten(1))
        weights = self.score(x).softmax(dim=1)
        return self.head((weights.transpose(1, 2) @ x).flatten(1))[:, 0]


class Received(nn.Module):
    """The first words of turns attend to each other; those that get most attention count most."""

    def __init__(self):
        super().__init__()
        self.words, self.query = nn.Embedding(CODES, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, words, mask):
        x = self.words(words[:, :, 0])
        scores = self.query(x) @ x.transpose(1, 2)
        weights = scores.masked_fill(~mask, -1e9).softmax(dim=-1)
        counts = weights.sum(dim=1)
        return self.head((counts.unsqueeze(-1) * (weights @ x)).sum(dim=1))[:, 0]


class Thickness(nn.Module):
    """Each pixel of a picture has a layer; how thick a layer is counts."""

    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.Conv2d(3, 3, 3, padding=1), nn.Linear(3 * WORDS, 1)

    def forward(self, picture):
        return self.head(self.layers(picture).softmax(dim=1).sum(dim=2).flatten(1))[:, 0]


class OtherCalls(Words):
    """The same as `Words`, in calls of other forms: arguments by name, in `vmap`, of a scalar."""

    def forward(self, words):
        x = self.words(words)
        weights = torch.vmap(lambda each: self.score(each).squeeze(-1).softmax(-1).clone())(x)
        weights = weights.transpose(dim0=1, dim1=2).transpose(dim0=1, dim1=2).unsqueeze(2)
        turns = torch.matmul(weights, other=x).squeeze(2)
        own = self.turn_score(turns).softmax(dim=1)
        whole = torch.mul(own, other=turns).sum(dim=1) + 0 * own.sum(dim=None)
        return self.head(whole)[:, 0] * torch.softmax(torch.zeros(()), dim=0)


def with_mask(words):
    return {"words": words, "mask": torch.ones(len(words), TURNS, TURNS).tril().bool()}


def as_pictures(words):
    return {"picture": torch.stack([words.float()] * 3, dim=1) / CODES}


def examine(build, folder, inputs_of_words=lambda words: {"words": words}):
    class Dialogues(TwoClasses):
        def fit(self, train):
            self.fitted = {}

        def encode(self, rows):
            words = torch.tensor(rows["words"].to_list()).reshape(-1, TURNS, WORDS)
            labels = {LABEL: rows["label"].to_torch().float()} if "label" in rows.columns else {}
            return {**inputs_of_words(words), **labels}

        def build_model(self):
            return build()

    words = np.random.default_rng(3).integers(0, CODES, (ROWS, TURNS * WORDS))
    label = ((words == 1).sum(axis=1) > 0).astype(int)
    frame = pl.DataFrame({"row": range(ROWS), "words": words.tolist(), "label": label})
    return check_attention(subject_of(Dialogues, frame, folder))


POOLS = [by_einsum, by_product, by_numpy_names, by_matrices, by_turned_matrices]


@pytest.mark.parametrize("pool", POOLS)
def test_weights_over_turns_that_are_summed_over_words_warn(pool, tmp_path):
    """No failure: a gate over the fields of events, whose values are added up, computes the same."""
    found = examine(lambda: Words(pool, axis=1), tmp_path)
    assert found.outcome == "warned", found.measured
    assert "are summed over another one, of 7" in found.measured


@pytest.mark.parametrize("pool", POOLS)
def test_weights_over_the_words_that_are_summed_pass(pool, tmp_path):
    assert examine(lambda: Words(pool, axis=2), tmp_path).outcome in ("passed", "skipped")


@pytest.mark.parametrize("clusters", [4, TURNS * WORDS])
def test_shares_of_clusters_that_are_summed_over_words_pass(clusters, tmp_path):
    assert examine(lambda: Clusters(clusters), tmp_path).outcome in ("passed", "skipped")


def test_several_heads_over_words_pass(tmp_path):
    assert examine(Heads, tmp_path).outcome in ("passed", "skipped")


@pytest.mark.parametrize(
    ("model", "inputs"), [(Received, with_mask), (Thickness, as_pictures)], ids=("words", "pixels")
)
def test_weights_that_are_added_up_without_values_pass(model, inputs, tmp_path):
    found = examine(model, tmp_path, inputs)
    assert found.outcome in ("passed", "skipped"), found.measured


def test_calls_of_other_forms_reach_the_model_unchanged(tmp_path):
    found = examine(lambda: OtherCalls(None, axis=2), tmp_path)
    assert found.outcome in ("passed", "skipped"), found.measured
