import pytest
import torch
from torch import nn

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.parallelism.pipeline import (
    Passthrough,
    assign_parts,
    cut,
    divide_blocks,
    require_chain,
)
from perennial.engine.task import ParallelPlan

PLAN = ParallelPlan(before=("embedding",), blocks="blocks", after=("norm", "head"))


class Block(nn.Linear):
    def forward(self, stream, scale):
        return stream + scale * super().forward(stream).relu()


class Chain(nn.Module):
    def __init__(self, blocks=5):
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.blocks = nn.ModuleList(Block(8, 8) for _ in range(blocks))
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 11, bias=False)

    def forward(self, tokens, scale=1.0):
        stream = self.embedding(tokens)
        for block in self.blocks:
            stream = block(stream, scale)
        return self.head(self.norm(stream))


@pytest.mark.parametrize(
    ("blocks", "stages", "sizes"),
    [(4, 2, [2, 2]), (5, 2, [3, 2]), (5, 4, [2, 1, 1, 1]), (7, 3, [3, 2, 2]), (3, 3, [1, 1, 1])],
)
def test_blocks_are_divided_evenly_with_more_at_the_front(blocks, stages, sizes):
    division = divide_blocks(blocks, stages)
    assert [index for part in division for index in part] == list(range(blocks))
    assert sorted(map(len, division)) == sorted(sizes)
    assert len(division[0]) == max(sizes)


def test_a_stage_without_blocks_is_refused():
    with pytest.raises(PerennialError, match="3 blocks cannot fill 4 pipeline stages"):
        divide_blocks(3, 4)


@pytest.mark.parametrize("num_stages", [2, 3, 5])
def test_stages_one_after_another_compute_what_the_whole_model_computes(num_stages):
    model, tokens = Chain(), torch.arange(6).view(2, 3)
    stages = assign_parts(model, PLAN, num_stages)
    activation = tokens
    for stage in range(num_stages):
        activation = cut(model, stages, (stage,))(activation, scale=1.5)
    assert torch.equal(activation, model(tokens, scale=1.5))
    assert not any(isinstance(module, Passthrough) for module in model.modules())


class Shifted(Chain):
    """Computes something between its parts, which every stage would repeat."""

    def forward(self, tokens):
        return super().forward(tokens) + 1.0


class Positioned(Chain):
    """Takes the shape of its input for granted."""

    def forward(self, tokens):
        batch, length = tokens.shape
        return super().forward(tokens).view(batch, length, 11)


@pytest.mark.parametrize("kind", [Shifted, Positioned])
def test_what_a_model_computes_between_its_parts_is_noticed(kind):
    model, tokens = kind().train(), torch.arange(6).view(2, 3)
    with pytest.raises(BadTaskError, match="differs from its 2 stages in turn"):
        require_chain(model, assign_parts(model, PLAN, 2), {"tokens": tokens})


def test_a_chain_of_parts_passes():
    model = Chain().train()
    model.head = nn.Sequential(nn.Dropout(0.5), model.head)
    require_chain(model, assign_parts(model, PLAN, 3), {"tokens": torch.arange(6)})
    assert model.training


def test_stages_divide_the_parameters_under_their_own_names():
    model = Chain()
    stages = assign_parts(model, PLAN, 3)
    held = [dict(cut(model, stages, (stage,)).named_parameters()) for stage in range(3)]
    assert sum(map(len, held)) == len(dict(model.named_parameters()))
    assert {name: id(p) for part in held for name, p in part.items()} == {
        name: id(p) for name, p in model.named_parameters()
    }
    assert set(held[0]) >= {"embedding.weight", "blocks.0.weight", "blocks.1.bias"}
    assert set(held[2]) >= {"blocks.4.weight", "norm.bias", "head.weight"}


def test_nested_parts_are_cut_too():
    model = nn.Sequential()
    model.add_module("body", Chain(2))
    plan = ParallelPlan(("body.embedding",), "body.blocks", ("body.norm", "body.head"))
    stages = assign_parts(model, plan, 2)
    tokens = torch.arange(3)
    halves = [cut(model, stages, (stage,)) for stage in range(2)]
    assert torch.equal(halves[1](halves[0](tokens)), model(tokens))


def test_hooks_of_one_stage_do_not_run_for_another():
    model = Chain()
    stages = assign_parts(model, PLAN, 2)
    first, last = (cut(model, stages, (stage,)) for stage in range(2))
    calls = []
    first.register_forward_pre_hook(lambda *_: calls.append("first"))
    last(torch.randn(2, 8))
    assert calls == []


def tied():
    model = Chain()
    model.head.weight = model.embedding.weight
    return model


def normalized():
    model = Chain()
    model.norm = nn.BatchNorm1d(8)
    return model


def with_a_parameter_of_its_own():
    model = Chain()
    model.scale = nn.Parameter(torch.ones(()))
    return model


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        (tied(), PerennialError, r"embedding\.weight and head\.weight are one tensor"),
        (normalized(), PerennialError, "batch normalisation"),
        (with_a_parameter_of_its_own(), BadTaskError, "scale does not belong to a pipeline stage"),
    ],
    ids=["tied", "batch norm", "own parameter"],
)
def test_a_model_that_cannot_be_cut_is_refused(model, error, message):
    with pytest.raises(error, match=message):
        assign_parts(model, PLAN, 2)
