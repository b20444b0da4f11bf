"""Bugs of freezing: frozen parts that change, gradients that freezing cuts off, and healthy neighbours."""

import pytest
import torch
from torch import nn

from perennial.tasks.tabular import TabularClassification
from workshop import results_of

CHECK = "frozen_parameters"


class Network(nn.Module):
    """Categories and numbers, an adapter below a body, and a head."""

    max_norm = None
    cuts_off = False

    def __init__(self, numbers, size):
        super().__init__()
        self.table = nn.Embedding(size, 4, max_norm=self.max_norm)
        self.adapter = nn.Linear(numbers + 4, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.head = nn.Linear(8, 1)

    def forward(self, numbers, categories):
        hidden = self.adapter(torch.cat([numbers, self.table(categories[:, 0])], dim=1))
        is_frozen = not self.body[0].weight.requires_grad
        with torch.set_grad_enabled(not (is_frozen and self.cuts_off) and torch.is_grad_enabled()):
            hidden = self.body(hidden)
        return self.head(hidden)


class Healthy(TabularClassification):
    """Its weights come from elsewhere: they are the same whatever the seed."""

    network = Network
    is_loaded = True

    def build_model(self):
        numbers = self.encode(self._rows)["numbers"].shape[1]
        (size, *_) = (len(values) + 1 for values in self.fitted.categories.values())
        with torch.random.fork_rng():
            if self.is_loaded:
                torch.manual_seed(0)
            return self.network(numbers, size)

    def fit(self, train):
        super().fit(train)
        self._rows = train.head(1).collect()


class Renormalised(Healthy):
    """The lookup shortens the rows of a frozen embedding, in place."""

    network = type("Network", (Network,), {"max_norm": 0.1})


class CutOff(Healthy):
    """The frozen body runs without gradients, so that the adapter below it learns nothing."""

    network = type("Network", (Network,), {"cuts_off": True})


class Unloaded(Healthy):
    """Nobody loads what is frozen."""

    is_loaded = False


def examine(workshop, task, **training):
    subject = workshop.subject(task, "binary", training=training)
    return results_of(subject, CHECK)[CHECK]


@pytest.mark.parametrize(
    "training",
    [
        {"frozen": ("body.*", "table.*")},
        {"steps": 4, "stages": ({"steps": 2, "trainable": ("head.*",)}, {"steps": 2})},
        {"frozen": ("adapter.*",), "optimizer": {"name": "sgd", "rates": {"head.*": 10.0}}},
    ],
)
def test_freezing_that_holds_passes(workshop, training):
    """Also with a batch normalisation in the frozen body: its statistics stand still."""
    result = examine(workshop, Healthy, **training)
    assert result.outcome == "passed", result


def test_a_frozen_embedding_that_is_renormalised_is_caught(workshop):
    result = examine(workshop, Renormalised, frozen=("table.*",))
    assert (result.outcome, "table.weight" in result.measured) == ("failed", True), result
    assert "max_norm" in result.hint


def test_an_adapter_without_a_gradient_is_caught(workshop):
    result = examine(workshop, CutOff, frozen=("body.*",))
    assert (result.outcome, "adapter.weight" in result.measured) == ("failed", True), result
    assert examine(workshop, CutOff, frozen=("table.*",)).outcome == "passed"


def test_what_is_frozen_at_random_values_is_caught(workshop):
    result = examine(workshop, Unloaded, frozen=("body.*",))
    assert (result.outcome, "body.0.weight" in result.measured) == ("failed", True), result
    assert "[model.initial]" in result.hint


def test_what_a_later_stage_trains_may_begin_at_random(workshop):
    stages = ({"steps": 2, "trainable": ("head.*",)}, {"steps": 2})
    assert examine(workshop, Unloaded, steps=4, stages=stages).outcome == "passed"


def test_a_pattern_without_a_match_is_caught_before_the_training(workshop):
    result = examine(workshop, Healthy, frozen=("bodies.*",))
    assert (result.outcome, result.measured) == (
        "failed",
        "training.frozen: 'bodies.*' matches no parameter",
    )


def test_a_training_without_frozen_parameters_is_not_examined(workshop):
    assert examine(workshop, Healthy).outcome == "skipped"
