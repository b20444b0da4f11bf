"""Bugs of adapters: bases that move or were never loaded, matrices that learn nothing; and healthy ones."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from perennial.tasks.tabular import TabularClassification
from stored_weights import store_weights
from workshop import results_of

CHECK = "frozen_parameters"


class Network(nn.Module):
    """Categories and numbers, an encoder, attention over its parts, and a head."""

    def __init__(self, numbers, size):
        super().__init__()
        self.table = nn.Embedding(size, 4)
        self.encoder = nn.Sequential(nn.Linear(numbers + 4, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.attention = nn.MultiheadAttention(8, 1, batch_first=True)
        self.spare = nn.Linear(16, 16)
        self.head = nn.Linear(16, 1)

    def forward(self, numbers, categories):
        hidden = self.encode(torch.cat([numbers, self.table(categories[:, 0])], dim=1))
        parts = hidden.view(-1, 2, 8)
        hidden = hidden + self.attention(parts, parts, parts, need_weights=False)[0].flatten(1)
        return self.head(hidden)

    def encode(self, inputs):
        return self.encoder(inputs)


class Detached(Network):
    """The encoder is called as an extractor of features."""

    def encode(self, inputs):
        with torch.no_grad():
            return self.encoder(inputs)


class Thawing(Network):
    """Whoever sets it to training mode trains all of it."""

    def train(self, mode=True):
        self.requires_grad_(mode)
        return super().train(mode)


class Wide(Network):
    """Its layers have inputs enough to be quantized."""

    def __init__(self, numbers, size):
        super().__init__(numbers, size)
        self.encoder = nn.Sequential(nn.Linear(numbers + 4, 64), nn.ReLU(), nn.Linear(64, 16))


class WideDetached(Wide, Detached):
    pass


class Healthy(TabularClassification):
    network = Network

    def build_model(self):
        numbers = self.encode(self._rows)["numbers"].shape[1]
        (size, *_) = (len(values) + 1 for values in self.fitted.categories.values())
        return self.network(numbers, size)

    def fit(self, train):
        super().fit(train)
        self._rows = train.head(1).collect()


class WideTask(Healthy):
    network = Wide


class WideDetachedEncoder(Healthy):
    network = WideDetached


class DetachedEncoder(Healthy):
    network = Detached


class ThawingBase(Healthy):
    network = Thawing


@pytest.fixture
def examine(workshop, tmp_path):
    """The result of the check on a task whose base is stored."""

    def run(task=Healthy, initial=(), check=CHECK, **adapter):
        training = {"adapter": {"rank": 2, "targets": ("encoder.*",), **adapter}}
        subject = workshop.subject(task, "binary", training=training)
        if initial is not None:
            state = subject.build_model().state_dict()
            found = store_weights(tmp_path / "store", state, **dict(initial))
            subject = replace(subject, initial=found)
        return results_of(subject, check)[check]

    return run


@pytest.mark.parametrize(
    "adapter",
    [
        {"targets": ("encoder.*", "table", "head")},
        {"dropout": 0.1, "whole": ("head.*",)},
        {"initial": {"new": ("head.*",)}, "whole": ("head.*",)},
    ],
)
def test_a_healthy_adapter_passes(examine, adapter):
    """Also with a batch normalisation beside it, whose statistics stand still."""
    result = examine(**adapter)
    assert result.outcome == "passed", result


@pytest.mark.parametrize("bits", [4, 8])
def test_a_healthy_base_of_few_bits_passes(examine, bits):
    result = examine(WideTask, base_bits=bits)
    assert result.outcome == "passed", result


def test_few_bits_without_a_layer_that_gains_by_them_are_caught(examine):
    result = examine(base_bits=4)
    assert result.outcome == "failed", result
    assert "base_bits = 4 has no effect" in result.measured


def test_an_adapter_of_few_bits_without_a_gradient_is_caught(examine):
    result = examine(WideDetachedEncoder, targets=("encoder.*", "head"), base_bits=4)
    assert result.outcome == "failed", result
    assert "encoder.2.lora_A" in result.measured


@pytest.mark.parametrize(
    ("task", "targets", "name"),
    [
        (DetachedEncoder, ("encoder.*", "head"), "encoder.0.lora_A"),
        (Healthy, ("spare", "head"), "spare.lora_A"),
        # PyTorch's attention reads the weights of this layer and never calls it.
        (Healthy, ("attention.out_proj", "head"), "attention.out_proj.lora_A"),
    ],
)
def test_an_adapter_without_a_gradient_is_caught(examine, task, targets, name):
    result = examine(task, targets=targets)
    assert (result.outcome, name in result.measured) == ("failed", True), result
    assert "training.adapter.targets" in result.hint


def test_a_base_that_receives_updates_is_caught(examine):
    result = examine(ThawingBase)
    assert result.outcome == "failed", result
    assert "frozen tensors changed within 3 updates: attention." in result.measured


def test_an_adapter_without_a_base_is_caught(examine):
    result = examine(initial=None)
    assert (result.outcome, "no weights to adapt" in result.measured) == ("failed", True), result


def test_a_random_head_that_is_never_trained_is_caught(examine):
    result = examine(initial={"new": ("head.*",)})
    assert result.outcome == "failed", result
    assert result.measured.startswith("head.bias, head.weight would stay at random values")


def test_a_pattern_without_a_match_names_the_modules_that_there_are(examine):
    result = examine(targets=("encodr.*",))
    assert result.outcome == "failed"
    assert "'encodr.*' matches no module" in result.measured
    assert "table, encoder.0, attention.out_proj, spare, head" in result.hint


def test_a_base_that_was_never_trained_is_caught(examine):
    """Adapters cannot make up for it; its loss is that of random weights."""
    result = examine(check="initial_weights")
    assert result.outcome == "failed", result
