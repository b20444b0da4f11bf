import pytest
import torch
from torch import nn

from perennial.engine.optimization.adafactor import Adafactor


def trained(build, steps=50, start=1.0):
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(13, 37), nn.Tanh(), nn.Conv1d(1, 3, 3), nn.Flatten(0))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(start)
    optimizer = build(model.parameters())
    for step in range(steps):
        x = torch.randn(1, 13, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(x).sub(1.0).square().mean().backward()
        optimizer.step()
    return list(model.parameters()), optimizer


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("start", [1.0, 0.0], ids=["started", "from zero"])
def test_it_equals_pytorchs(weight_decay, start):
    # PyTorch's own limits the rate to 1 / sqrt(step), which is larger in these few steps.
    ours, _ = trained(lambda p: Adafactor(p, 1e-2, weight_decay=weight_decay), start=start)
    theirs, _ = trained(
        lambda p: torch.optim.Adafactor(p, 1e-2, weight_decay=weight_decay), start=start
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "changes",
    [
        {"scale_by_parameter": False},
        {"weight_decay": 0.3},
    ],
)
def test_every_option_changes_the_result(changes):
    plain, _ = trained(lambda p: Adafactor(p, 0.5))
    other, _ = trained(lambda p: Adafactor(p, 0.5, **changes))
    assert any(not torch.equal(one, two) for one, two in zip(plain, other, strict=True))


def test_without_scale_and_limit_the_first_step_is_the_rate_in_the_gradients_direction():
    weight = nn.Parameter(torch.zeros(3))
    weight.grad = torch.tensor([2.0, -0.5, 0.1])
    Adafactor([weight], 0.25, scale_by_parameter=False).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([-0.25, 0.25, -0.25]))


def test_the_state_is_a_row_and_a_column():
    (matrix, *_), optimizer = trained(Adafactor)
    assert {name: value.numel() for name, value in optimizer.state[matrix].items()} == {
        "step": 1, "row": 37, "column": 13
    }  # fmt: skip


def test_its_state_can_be_saved_and_loaded_exactly():
    straight, _ = trained(Adafactor, steps=6)
    halfway, first = trained(Adafactor, steps=3)
    weights = [nn.Parameter(value.detach().clone()) for value in halfway]
    second = Adafactor(weights)
    second.load_state_dict(first.state_dict())
    model = nn.Sequential(nn.Linear(13, 37), nn.Tanh(), nn.Conv1d(1, 3, 3), nn.Flatten(0))
    names = [name for name, _ in model.named_parameters()]
    for step in range(3, 6):
        x = torch.randn(1, 13, generator=torch.Generator().manual_seed(step))
        second.zero_grad()
        output = torch.func.functional_call(model, dict(zip(names, weights, strict=True)), x)
        output.sub(1.0).square().mean().backward()
        second.step()
    for one, other in zip(straight, weights, strict=True):
        assert torch.equal(one, other)


def test_a_gradient_of_zero_moves_nothing():
    weight = nn.Parameter(torch.ones(2, 2))
    weight.grad = torch.zeros(2, 2)
    Adafactor([weight], 0.25).step()
    assert torch.equal(weight.detach(), torch.ones(2, 2))
