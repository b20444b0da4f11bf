"""Columns that a model cannot tell apart: one network for all of them, or for two by mistake."""

import numpy as np
import pytest
import torch
from torch import nn

from mixed_numbers import Numbers, TwoClasses, subject_of
from other_styles import numbers_table, table_of
from perennial.check_skeleton.checks.model.gradients import check_input_use
from perennial.engine.task import LABEL

X, SCORE = numbers_table()
WIDTH = X.shape[1]


def curve():
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1))


class Additive(nn.Module):
    """One curve for each column, summed."""

    def __init__(self, curves):
        super().__init__()
        self.curves = nn.ModuleList(curves)

    def forward(self, x):
        parts = [curve(x[:, [place]]) for place, curve in enumerate(self.curves)]
        return torch.cat(parts, dim=1).sum(dim=1)


class Tokens(nn.Module):
    """Each number is a token, and attention mixes them; a vector of its own `names` its column."""

    def __init__(self, names):
        super().__init__()
        self.value = nn.Linear(1, 16)
        self.column = nn.Parameter(0.5 * torch.randn(WIDTH, 16), requires_grad=names)
        self.names = names
        self.mix = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 1)

    def forward(self, x):
        tokens = self.value(x.unsqueeze(-1))
        tokens = tokens + self.column if self.names else tokens
        return self.head(self.mix(tokens).mean(dim=1)).squeeze(-1)


class OneForTwo(nn.Module):
    """Columns that come as inputs of their own; the second is read by the first one's branch."""

    def __init__(self, own):
        super().__init__()
        self.first, self.second, self.rest = curve(), curve(), curve()
        self.own = own

    def forward(self, x0, x1, x2):
        second = self.second if self.own else self.first
        parts = self.first(x0[:, None]), second(x1[:, None]), self.rest(x2[:, None])
        return torch.cat(parts, dim=1).sum(dim=1)


class Apart(Numbers):
    def encode(self, rows):
        batch = super().encode(rows)
        named = {f"x{place}": batch["x"][:, place].clone() for place in range(3)}
        return {**named, **{key: value for key, value in batch.items() if key == LABEL}}


def of(kind, build):
    class Own(kind):
        def build_model(self):
            return build()

    return Own


MODELS = {
    "a curve for each column": (
        of(Numbers, lambda: Additive([curve()] * WIDTH)),
        of(Numbers, lambda: Additive([curve() for _ in range(WIDTH)])),
    ),
    "tokens of numbers": (
        of(TwoClasses, lambda: Tokens(names=False)),
        of(TwoClasses, lambda: Tokens(names=True)),
    ),
    "a branch of its own": (
        of(Apart, lambda: OneForTwo(own=False)),
        of(Apart, lambda: OneForTwo(own=True)),
    ),
}


def label_of(kind):
    return (SCORE > 0).astype(int) if kind.kind == "binary" else SCORE


@pytest.mark.parametrize("name", MODELS)
def test_columns_that_share_a_network_fail(name, tmp_path):
    bug, _ = MODELS[name]
    found = check_input_use(subject_of(bug, table_of(X, label_of(bug)), tmp_path))
    assert found.outcome == "failed", found.measured
    assert "exchange their values" in found.measured


@pytest.mark.parametrize("name", MODELS)
def test_columns_with_their_own_weights_pass(name, tmp_path):
    _, healthy = MODELS[name]
    found = check_input_use(subject_of(healthy, table_of(X, label_of(healthy)), tmp_path))
    assert found.outcome == "passed", found.measured


def test_a_set_of_numbers_passes(tmp_path):
    """The label is a sum over its members: which is which tells nothing."""
    x = np.random.default_rng(4).normal(size=(1500, WIDTH))
    label = np.tanh(2 * x).sum(axis=1) + 0.3 * np.random.default_rng(5).normal(size=1500)
    task = of(Numbers, lambda: Additive([curve()] * WIDTH))
    found = check_input_use(subject_of(task, table_of(x, label), tmp_path))
    assert found.outcome == "passed", found.measured


class Quiet(nn.Module):
    """Weights of their own, and an answer in units so large that it is nearly zero."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return 1e-6 * self.layer(x).squeeze(-1)


def test_a_set_whose_first_member_counts_more_does_not_fail(tmp_path):
    x = np.random.default_rng(4).normal(size=(1500, WIDTH))
    noise = 0.5 * np.random.default_rng(5).normal(size=1500)
    label = np.tanh(2 * x).sum(axis=1) + 0.5 * np.tanh(2 * x[:, 0]) + noise
    task = of(Numbers, lambda: Additive([curve()] * WIDTH))
    found = check_input_use(subject_of(task, table_of(x, label), tmp_path))
    assert found.outcome == "warned", found.measured
    assert "exchange their values" in found.measured


def test_answers_of_any_size_are_compared_by_their_size(tmp_path):
    found = check_input_use(subject_of(of(Numbers, Quiet), table_of(X, SCORE), tmp_path))
    assert found.outcome == "passed", found.measured
