import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from perennial.contracts.errors import PerennialError
from perennial.engine.optimization.parameters import named_weights, split_by_decay


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.position = nn.Parameter(torch.zeros(6, 4))
        self.linear = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)


def names_of(model, parameters):
    chosen = {id(parameter) for parameter in parameters}
    return {name for name, value in model.named_parameters() if id(value) in chosen}


def test_only_matrices_decay():
    model = Small()
    decayed, exempt = split_by_decay(model)
    assert names_of(model, decayed) == {"linear.weight", "position"}
    assert names_of(model, exempt) == {
        "embedding.weight", "linear.bias", "norm.weight", "norm.bias"
    }  # fmt: skip


def test_further_parameters_are_exempt_by_pattern():
    model = Small()
    decayed, exempt = split_by_decay(model, ["pos*", "*.bias"])
    assert names_of(model, decayed) == {"linear.weight"}
    assert "position" in names_of(model, exempt)


def test_a_pattern_without_a_match_is_an_error():
    with pytest.raises(
        PerennialError, match=r"'Linear\.\*' matches no parameter.*\n.*linear\.weight"
    ):
        split_by_decay(Small(), ["position", "Linear.*"])


def test_names_do_not_depend_on_wrapping():
    plain, wrapped = Small(), Small()
    wrapped.linear = checkpoint_wrapper(wrapped.linear)
    assert "linear.weight" not in dict(wrapped.named_parameters()), "the wrapper shows elsewhere"
    assert list(named_weights(wrapped)) == list(named_weights(plain))


def test_a_tied_weight_has_both_names():
    model = Small()
    model.tied = nn.Linear(4, 5, bias=False)
    model.tied.weight = model.embedding.weight
    names = named_weights(model)
    assert names["tied.weight"] is names["embedding.weight"]
    assert id(model.tied.weight) in {id(value) for value in split_by_decay(model)[1]}
