"""Every kind of layer that can have an adapter gets one, and its sum predicts what both did."""

import importlib

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from perennial.contracts.adapter import Adapter
from perennial.contracts.errors import PerennialError
from perennial.engine.adapters import add_adapter, merge_adapter
from perennial.engine.config.training import TrainingSection

LAYERS = {
    "linear": (lambda: nn.Linear(6, 4), (5, 6)),
    "without a bias": (lambda: nn.Linear(6, 4, bias=False), (5, 6)),
    "transformers' Conv1D": (lambda: Conv1D(4, 6), (5, 6)),
    "convolution": (lambda: nn.Conv1d(6, 4, 3), (5, 6, 8)),
    "picture": (lambda: nn.Conv2d(3, 4, 3, stride=2), (2, 3, 9, 9)),
    "volume": (lambda: nn.Conv3d(2, 3, 2), (2, 2, 5, 5, 5)),
    "embedding": (lambda: nn.Embedding(9, 4), None),
}


def adapted(module: nn.Module) -> nn.Module:
    model = nn.Sequential(module, nn.Flatten())
    add_adapter(model, TrainingSection(adapter=Adapter(targets=("0",), rank=2)))
    return model


@pytest.mark.parametrize("kind", LAYERS)
def test_each_kind_begins_as_it_was_and_merges_to_what_it_became(kind):
    torch.manual_seed(4)
    make, shape = LAYERS[kind]
    plain = make()
    rows = torch.randint(0, 9, (5, 3)) if shape is None else torch.randn(shape)
    before = plain(rows).flatten(1)
    model = adapted(plain)
    assert torch.allclose(model(rows), before, atol=1e-6)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
        moved = model(rows)
        assert not torch.allclose(moved, before, atol=1e-2)
        merge_adapter(model)
        assert torch.allclose(model(rows), moved, rtol=1e-5, atol=1e-5)
    assert model[0] is plain


def test_the_seed_alone_draws_the_adapter_and_the_callers_generator_stays():
    drawn = []
    for draws in (0, 7):
        torch.rand(draws)
        layer, state = nn.Sequential(nn.Linear(6, 4)), torch.get_rng_state()
        add_adapter(layer, TrainingSection(adapter=Adapter(targets=("0",))))
        assert torch.equal(torch.get_rng_state(), state)
        drawn.append(layer.get_parameter("0.lora_A.default.weight"))
    assert torch.equal(*drawn)


def test_without_peft_the_error_names_what_to_install(monkeypatch):
    real = importlib.import_module

    def missing(name, *more):
        if name == "peft":
            raise ModuleNotFoundError("No module named 'peft'")
        return real(name, *more)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(PerennialError, match="needs peft") as error:
        adapted(nn.Linear(6, 4))
    assert "pip install 'perennial[adapters]'" in error.value.action
