import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.parallelism.activations import (
    compile_blocks,
    offload_activations,
    save_memory,
    selective_policy,
)

aten = torch.ops.aten
CPU = torch.device("cpu")


class Blocks:
    """What the engine asks of a task here: which modules are blocks."""

    def __init__(self, *names):
        self.names = names

    def blocks(self, model):
        return [model.get_submodule(name) for name in self.names]


class Counting(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 4)
        self.norm, self.dropout = nn.BatchNorm1d(8), nn.Dropout(dropout)
        self.calls = 0

    def forward(self, x, scale=1.0):
        self.calls += 1
        hidden = self.dropout(torch.relu(self.norm(self.first(x))))
        return self.second(hidden) * scale


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(Counting(dropout), Counting(dropout))


def section(checkpointing="none", **memory):
    return TrainingSection(memory={"activation_checkpointing": checkpointing, **memory})


def passed(model):
    """Gradients and buffers after one forward and backward pass."""
    torch.manual_seed(1)
    x = torch.randn(6, 4)
    model(x).square().sum().backward()
    return [p.grad for p in model.parameters()] + list(model.buffers())


def saved_values(model):
    """How many numbers the forward pass leaves for the backward pass."""
    count = 0

    def keep(tensor):
        nonlocal count
        count += 0 if isinstance(tensor, nn.Parameter) else tensor.numel()
        return tensor

    with saved_tensors_hooks(keep, lambda tensor: tensor):
        output = model(torch.randn(6, 4))
    del output
    return count


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_checkpointed_blocks_compute_the_same_bits(checkpointing, dropout):
    plain, saving = network(dropout), network(dropout)
    save_memory(saving, Blocks("0", "1"), section(checkpointing), CPU)
    for expected, found in zip(passed(plain), passed(saving), strict=True):
        assert torch.equal(expected, found)
    assert saving[0].calls == 2, "computed once more"
    assert [*saving.state_dict()] == [*plain.state_dict()], "names stay"


def test_checkpointing_keeps_fewer_values():
    plain, saving = network(), network()
    save_memory(saving, Blocks("0", "1"), section("full"), CPU)
    assert saved_values(saving) < saved_values(plain) / 3


def test_only_the_blocks_are_computed_again():
    model = network()
    save_memory(model, Blocks("1"), section("full"), CPU)
    passed(model)
    assert [block.calls for block in model] == [1, 2]


def test_no_block_is_computed_again_when_nothing_is_learned():
    model = network()
    save_memory(model, Blocks("0"), section("selective"), CPU)
    with torch.no_grad():
        output = model[0](torch.randn(6, 4), scale=2.0)
    assert model[0].calls == 1
    assert not output.requires_grad


@pytest.mark.parametrize("checkpointing", ["full", "selective"])
def test_without_blocks_there_is_nothing_to_checkpoint(checkpointing):
    with pytest.raises(BadTaskError, match=r"Blocks.blocks returns none"):
        save_memory(network(), Blocks(), section(checkpointing), CPU)


@pytest.mark.parametrize(
    ("operation", "arguments", "policy"),
    [
        (aten.mm.default, (), CheckpointPolicy.MUST_SAVE),
        (aten.convolution.default, (), CheckpointPolicy.MUST_SAVE),
        (aten.relu.default, (), CheckpointPolicy.PREFER_RECOMPUTE),
        (aten.native_dropout.default, (), CheckpointPolicy.PREFER_RECOMPUTE),
        (
            aten._scaled_dot_product_flash_attention.default,
            (None, None, None),
            CheckpointPolicy.MUST_SAVE,
        ),
        (
            aten._scaled_dot_product_flash_attention.default,
            (None, None, None, 0.1),
            CheckpointPolicy.PREFER_RECOMPUTE,
        ),
        (
            aten._scaled_dot_product_efficient_attention.default,
            (None, None, None, None, True, 0.1),
            CheckpointPolicy.PREFER_RECOMPUTE,
        ),
    ],
)
def test_selective_keeps_what_is_costly_and_draws_nothing(operation, arguments, policy):
    assert selective_policy(None, operation, *arguments) is policy


def test_selective_keeps_attention_on_this_machine():
    """Which kernel runs is PyTorch's choice: its name must be among those that are kept."""
    kept = []

    class Names(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if selective_policy(None, func, *args, **(kwargs or {})) is CheckpointPolicy.MUST_SAVE:
                kept.append(str(func))
            return func(*args, **(kwargs or {}))

    query = torch.randn(1, 2, 8, 4, requires_grad=True)
    with Names():
        functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    assert len(kept) == 1


def test_offloaded_activations_come_back_unchanged_and_weights_stay():
    plain, model = network(), network()
    expected = passed(plain)
    torch.manual_seed(1)
    x = torch.randn(6, 4)
    moved = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func is aten.copy_.default:
                moved.append(args[1])
            return func(*args, **(kwargs or {}))

    with Copies(), offload_activations():
        output = model(x).square().sum()
    output.backward()
    found = [p.grad for p in model.parameters()] + list(model.buffers())
    for one, other in zip(expected, found, strict=True):
        assert torch.equal(one, other)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    assert moved
    assert not any(tensor.untyped_storage().data_ptr() in weights for tensor in moved)


def test_activations_on_a_cpu_are_not_offloaded():
    with pytest.raises(PerennialError, match="runs on the CPU"):
        save_memory(network(), Blocks("0"), section(activation_offload=True), CPU)


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")
@pytest.mark.parametrize(
    ("names", "expected"),
    [(("0", "1"), [False, True, True]), ((), [True, False, False])],
    ids=["blocks", "no blocks"],
)
def test_blocks_are_compiled_or_else_the_model(names, expected):
    model = network()
    compile_blocks(model, Blocks(*names))
    compiled = [module._compiled_call_impl is not None for module in (model, *model)]
    assert compiled == expected
