"""Linear layers of few bits: their size, their error, their gradients, and the way back."""

import pytest
import torch
from scipy.stats import norm
from torch import nn

from perennial.contracts.adapter import Adapter
from perennial.contracts.errors import PerennialError
from perennial.engine.adapters import add_adapter, merge_adapter
from perennial.engine.config.training import TrainingSection
from perennial.engine.low_bits import (
    BLOCK,
    NF4,
    LowBitLinear,
    dequantize,
    dequantize_linears,
    levels_of_bytes,
    low_bit_layers,
    quantize,
    quantize_linears,
)
from perennial.engine.parallelism.pipeline import num_parameters

CPU = torch.device("cpu")


def frozen(*layers):
    return nn.Sequential(*layers).requires_grad_(False)


def size(model):
    return sum(each.nbytes for each in model.parameters())


def test_levels_are_the_quantiles_of_the_paper():
    """Appendix E: quantiles of both halves up to the same probability, and one zero."""
    offset = (1 - 1 / 30 + 1 - 1 / 32) / 2
    upper = norm.ppf(torch.linspace(offset, 0.5, 9)[:-1])
    lower = -norm.ppf(torch.linspace(offset, 0.5, 8)[:-1])
    levels = sorted([*upper / upper.max(), 0.0, *lower / upper.max()])
    assert levels == pytest.approx(NF4, abs=1e-5)


@pytest.mark.parametrize(("bits", "bound", "share"), [(4, 0.152, 0.15), (8, 1 / 254, 0.27)])
@pytest.mark.parametrize("columns", [64, 65, 256])
def test_weights_are_within_half_a_level_and_small(bits, bound, share, columns):
    weights = torch.randn(40, columns, generator=torch.Generator().manual_seed(1))
    weights[3] = 0.0
    codes, scales = quantize(weights, bits)
    found = dequantize(codes, scales, levels_of_bytes(bits, CPU))[:, :columns]
    errors = (found - weights).abs() / scales.repeat_interleave(BLOCK, 1)[:, :columns]
    errors[3] = 0.0
    assert float(errors.max()) <= bound + 1e-6
    assert torch.equal(found[3], torch.zeros(columns))
    padded = -(-columns // BLOCK) * BLOCK
    assert codes.nbytes + scales.nbytes <= share * 4 * weights.shape[0] * padded
    again = quantize(found, bits)
    assert torch.equal(again[0], codes), "what is quantized already keeps its codes"


@pytest.mark.parametrize("bits", [4, 8])
def test_outputs_and_gradients_are_those_of_the_dequantized_layer(bits):
    torch.manual_seed(0)
    model = frozen(nn.Linear(100, 70), nn.Tanh(), nn.Linear(70, 9))
    model[2].bias.requires_grad_(True)
    whole, count = size(model), num_parameters(model)
    quantize_linears(model, bits)
    assert len(low_bit_layers(model)) == 2
    assert size(model) < (0.3 if bits == 4 else 0.5) * whole
    assert num_parameters(model) == count
    rows = torch.randn(5, 3, 100, requires_grad=True)

    def found():
        output = model(rows)
        return (output, *torch.autograd.grad(output.square().sum(), [rows, model[2].bias]))

    few = found()
    state = {name: each.shape for name, each in model.state_dict().items()}
    assert "0.codes" in state
    assert not [name for name in state if "table" in name]
    dequantize_linears(model)
    assert [type(each) for each in model] == [nn.Linear, nn.Tanh, nn.Linear]
    for one, other in zip(few, found(), strict=True):
        assert torch.equal(one, other)


def test_the_backward_pass_keeps_codes_and_no_weights():
    model = frozen(nn.Linear(256, 256), nn.Linear(256, 256))
    quantize_linears(model, 4)
    kept = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        model(torch.randn(2, 256, requires_grad=True))
    assert sum(each.nbytes for each in kept) < 0.3 * 2 * 4 * 256 * 256


def test_autocast_multiplies_in_short_types():
    model = frozen(nn.Linear(64, 8))
    quantize_linears(model, 4)
    rows = torch.randn(4, 64, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        output = model(rows)
    output.float().sum().backward()
    assert (output.dtype, rows.grad.dtype) == (torch.bfloat16, torch.float32)
    assert torch.allclose(output.float(), model(rows), atol=0.05)


class Doubling(nn.Linear):
    """A layer whose own `forward` must not be lost."""

    def forward(self, input):
        return 2.0 * super().forward(input)


def test_layers_that_would_change_or_gain_nothing_stay():
    tied, first = nn.Linear(64, 64), nn.Linear(64, 64)
    tied.weight = first.weight
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(64, 64))
    seen = []
    able = nn.Linear(64, 64)
    able.register_forward_hook(lambda *_: seen.append(1))
    model = frozen(able, first, tied, normed, Doubling(64, 64), nn.Linear(64, 63), nn.Linear(63, 4))
    trained = model[5]
    trained.weight.requires_grad_(True)
    quantize_linears(model, 4)
    assert low_bit_layers(model) == [able]
    model(torch.randn(2, 64))
    assert seen, "hooks stay"


def test_a_model_without_such_layers_is_refused():
    with pytest.raises(PerennialError, match="base_bits = 4 has no effect") as error:
        quantize_linears(frozen(nn.Linear(63, 64), nn.Conv1d(64, 64, 3)), 4)
    assert "64 inputs" in error.value.evidence


@pytest.mark.parametrize("bits", [4, 8])
def test_an_adapter_merges_into_the_dequantized_base(bits):
    """Also where a model reads an adapted layer's weights without calling it."""
    torch.manual_seed(2)
    plain = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 3))
    weights, rows = plain[0].weight.clone(), torch.randn(50, 128)
    model = plain
    adapter = Adapter(targets=("0",), rank=2, base_bits=bits, whole=("2.*",))
    add_adapter(model, TrainingSection(adapter=adapter))
    assert isinstance(model[0].base_layer, LowBitLinear)
    assert type(model[2]) is nn.Linear, "what is trained whole keeps its bits"
    assert model[0].weight.shape == (64, 128)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.3)
        served = model(rows)
        merge_adapter(model)
        assert float((model(rows) - served).abs().max()) < 1e-5 * float(served.abs().max())
    assert type(model[0]) is nn.Linear
    assert not torch.allclose(model[0].weight, weights, atol=1e-3)
    assert f"of {bits} bits" in adapter.describe()
