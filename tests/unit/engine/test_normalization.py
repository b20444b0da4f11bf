"""Which batch normalisation replaces which, and what ghost batches compute, in one process."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import Normalization, TrainingSection
from perennial.engine.parallelism.normalization import GhostBatchNorm, SyncedBatchNorm, normalized
from perennial.engine.world.distributed import World

ALONE = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))
INPUTS = {
    "BatchNorm1d": (nn.BatchNorm1d, (24, 5)),
    "BatchNorm1d of sequences": (nn.BatchNorm1d, (24, 5, 7)),
    "BatchNorm2d": (nn.BatchNorm2d, (24, 5, 4, 3)),
    "BatchNorm3d": (nn.BatchNorm3d, (24, 5, 2, 3, 2)),
}


def section(**normalization) -> TrainingSection:
    return TrainingSection(normalization=Normalization(**normalization))


def stirred(norm: nn.Module) -> nn.Module:
    """Parameters and statistics that a mistake would show in."""
    with torch.no_grad():
        for tensor in (norm.weight, norm.bias, norm.running_mean):
            tensor.normal_()
        norm.running_var.uniform_(0.5, 2.0)
    return norm


def copies(kind, *arguments, seed=0):
    """The same normalisation twice, once replaced."""
    torch.manual_seed(seed)
    plain = stirred(kind(5))
    twin = kind(5)
    twin.load_state_dict(plain.state_dict())
    return plain, arguments[0](twin, *arguments[1:])


@pytest.mark.parametrize(("kind", "shape"), INPUTS.values(), ids=INPUTS)
def test_ghost_batches_equal_the_plain_module_on_each_chunk(kind, shape):
    plain, ghost = copies(kind, GhostBatchNorm, 8)
    x = torch.randn(shape)
    expected = torch.cat([plain(chunk) for chunk in x.split(8)])
    assert torch.equal(ghost(x), expected)
    for name, value in plain.state_dict().items():
        assert torch.equal(ghost.state_dict()[name], value), name
    assert int(ghost.num_batches_tracked) == 3
    plain.eval()
    ghost.eval()
    assert torch.equal(ghost(x), plain(x)), "served by the running statistics"


@pytest.mark.parametrize(("rows", "chunks"), [(8, 1), (9, 2), (20, 3), (3, 1)])
def test_ghost_chunks_are_as_equal_as_rows_allow(rows, chunks):
    plain, ghost = copies(nn.BatchNorm1d, GhostBatchNorm, 8)
    x = torch.randn(rows, 5)
    expected = torch.cat([plain(chunk) for chunk in x.tensor_split(chunks)])
    assert torch.equal(ghost(x), expected)


@pytest.mark.parametrize(("kind", "shape"), INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("momentum", [0.1, None])
def test_one_process_alone_synchronises_to_what_pytorch_computes(kind, shape, momentum):
    plain, synced = copies(kind, SyncedBatchNorm, ())
    plain.momentum = synced.momentum = momentum
    x, weight = torch.randn(shape) * 3 + 5, torch.randn(shape)
    outputs, gradients = [], []
    for norm in (plain, synced):
        own = x.clone().requires_grad_()
        output = norm(own)
        (output * weight).sum().backward()
        outputs.append(output.detach())
        gradients.append([own.grad, norm.weight.grad, norm.bias.grad])
    assert torch.allclose(*outputs, rtol=1e-5, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-5)
    for name, value in plain.state_dict().items():
        assert torch.allclose(synced.state_dict()[name], value, rtol=1e-5, atol=1e-6), name


def test_the_gradient_is_that_of_the_statistics_too():
    synced = SyncedBatchNorm(stirred(nn.BatchNorm1d(3)), ()).double()
    x = torch.randn(6, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(synced, (x,), eps=1e-6, atol=1e-6)


def test_large_means_cancel_no_variance():
    """What summing plain squares in float32 would get wrong by half."""
    synced = SyncedBatchNorm(nn.BatchNorm1d(2), ())
    output = synced(torch.randn(512, 2) + 3000.0)
    assert torch.allclose(output.std(0, correction=0), torch.ones(2), atol=1e-3)


def test_local_leaves_the_model_as_it_is():
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5))
    assert type(normalized(model, section(), ALONE)[1]) is nn.BatchNorm1d


@pytest.mark.parametrize("size", [None, 16])
def test_ghost_replaces_every_batch_norm_and_keeps_its_tensors(size):
    inner = nn.Sequential(nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5))
    model = nn.Sequential(inner, nn.Flatten(), nn.BatchNorm1d(20))
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    changed = normalized(model, section(batch_norm="ghost", ghost_batch_size=size), ALONE)
    kinds = [type(each) for each in changed.modules() if isinstance(each, nn.BatchNorm1d)]
    assert kinds == [GhostBatchNorm, GhostBatchNorm]
    assert changed[2].size == (size or 64)
    after = {name: tensor.data_ptr() for name, tensor in changed.state_dict().items()}
    assert after == before
    assert type(normalized(nn.BatchNorm1d(4), section(batch_norm="ghost"), ALONE)) is GhostBatchNorm


@pytest.mark.parametrize("kind", ["sync", "ghost"])
def test_a_model_without_batch_norm_is_refused(kind):
    model = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5))
    with pytest.raises(PerennialError, match="no batch normalisation") as refused:
        normalized(model, section(batch_norm=kind), ALONE)
    assert "LayerNorm" in str(refused.value)


@pytest.mark.parametrize("kind", ["local", "sync"])
def test_a_ghost_size_without_ghosts_is_refused(kind):
    with pytest.raises(ValidationError, match="has no effect with"):
        Normalization(batch_norm=kind, ghost_batch_size=32)


def test_written_out_defaults_are_read_again():
    for kind in ("local", "sync", "ghost"):
        written = Normalization(batch_norm=kind).model_dump()
        assert Normalization(**written) == Normalization(batch_norm=kind)
