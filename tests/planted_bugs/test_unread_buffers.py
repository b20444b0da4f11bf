"""Buffers that a module makes and its forward forgets."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, stack_module_state, vmap

from mixed_numbers import Numbers, subject_of
from other_styles import numbers_table, table_of
from perennial.check_skeleton.checks.model.gradients import check_parameter_gradients

X, SCORE = numbers_table()
WIDTH = X.shape[1]


class Scaled(nn.Module):
    """A scale that is applied or not."""

    def __init__(self, applied):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Tanh())
        self.head, self.applied = nn.Linear(8, 1), applied
        self.register_buffer("scale", torch.linspace(0.5, 2.0, WIDTH))

    def forward(self, x):
        return self.head(self.body(x * self.scale if self.applied else x))[:, 0]


class Masked(nn.Module):
    """A mask within a layer of one's own, used as a list of tensors or not at all."""

    def __init__(self, applied):
        super().__init__()
        self.layer, self.head = Connected(applied), nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.layer(x).tanh())[:, 0]


class Connected(nn.Linear):
    def __init__(self, applied):
        super().__init__(WIDTH, WIDTH)
        self.applied = applied
        self.register_buffer("mask", torch.ones(WIDTH, WIDTH).tril())

    def forward(self, x):
        weight = torch.stack([self.weight, self.mask]).prod(dim=0) if self.applied else self.weight
        return nn.functional.linear(x, weight, self.bias)


class Counted(nn.Module):
    """A number of passes that training alone counts, and one that only tells the device."""

    def __init__(self, applied):
        super().__init__()
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("passes", torch.zeros(()))
        self.register_buffer("here", torch.empty(0), persistent=False)

    def forward(self, x):
        if self.training:
            self.passes += 1
        return self.head(x.to(self.here.device))[:, 0]


class Reversal(torch.autograd.Function):
    """Passes numbers on, and scales their gradient."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x + 0.0

    @staticmethod
    def backward(ctx, gradient):
        return -gradient * ctx.saved_tensors[0], None


class Reversed(nn.Module):
    """A strength that the backward pass alone reads."""

    def __init__(self, applied):
        super().__init__()
        self.head = nn.Linear(WIDTH, 1)
        self.register_buffer("strength", torch.tensor(0.3))

    def forward(self, x):
        return Reversal.apply(self.head(x), self.strength)[:, 0]


class Members(nn.Module):
    """Copies of a member with a buffer, called together by their stacked state."""

    def __init__(self, applied):
        super().__init__()
        members = [Scaled(applied=True).eval() for _ in range(3)]
        for member in members:
            member.body[1] = nn.Identity()
        state, self.state = stack_module_state(members)
        self.named = nn.ParameterDict({key.replace(".", "_"): v for key, v in state.items()})
        self.names, self.member = list(state), members[0].requires_grad_(requires_grad=False)

    def parameters(self, recurse=True):
        return self.named.parameters()

    def named_parameters(self, *args, **given):
        return self.named.named_parameters(prefix="named")

    def forward(self, x):
        weights = {name: self.named[name.replace(".", "_")] for name in self.names}
        one = lambda own, state: functional_call(self.member, (own, state), (x,))  # noqa: E731
        return vmap(one)(weights, self.state).mean(dim=0)


def examine(build, applied, folder):
    class Own(Numbers):
        def build_model(self):
            return build(applied)

    return check_parameter_gradients(subject_of(Own, table_of(X, SCORE), folder))


@pytest.mark.parametrize(("build", "name"), [(Scaled, "scale"), (Masked, "layer.mask")])
def test_a_buffer_that_is_not_read_warns(build, name, tmp_path):
    found = examine(build, False, tmp_path)
    assert (found.outcome, found.measured) == ("warned", f"buffers that nothing reads: {name}")


@pytest.mark.parametrize(
    "build", [Scaled, Masked, Counted, Reversed, Members], ids=lambda each: each.__doc__
)
def test_buffers_that_are_read_pass(build, tmp_path):
    found = examine(build, True, tmp_path)
    assert found.outcome == "passed", found.measured
