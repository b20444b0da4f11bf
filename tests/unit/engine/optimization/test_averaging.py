import pytest
import torch
from torch import nn

from perennial.contracts.errors import PerennialError
from perennial.engine.config.optimization import Averaging
from perennial.engine.optimization.averaging import AveragedWeights, averages_to_load


def layer():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2).requires_grad_(False))


def drift(model, steps, averaged):
    """Every update adds 1 to every trainable weight."""
    with torch.no_grad():
        for step in range(steps):
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(1.0)
            averaged.update(step)


@pytest.mark.parametrize(
    ("settings", "decays"),
    [
        (Averaging(decay=0.5, warm_up=False), [0.5, 0.5, 0.5, 0.5]),
        (Averaging(decay=0.25, warm_up=True), [1 / 10, 2 / 11, 3 / 12, 0.25]),
    ],
)
def test_it_is_the_moving_average(settings, decays):
    model = layer()
    start = model[0].weight.detach().clone()
    averaged = AveragedWeights(model, settings)
    drift(model, 4, averaged)
    expected, value = 0.0, 0.0
    for decay in decays:
        value += 1.0
        expected = decay * expected + (1 - decay) * value
    torch.testing.assert_close(averaged.state_dict()["0.weight"], start + expected)


def test_swapping_gives_the_average_and_then_the_very_same_bits_back():
    model = layer()
    averaged = AveragedWeights(model, Averaging())
    drift(model, 3, averaged)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    averages = {name: value.clone() for name, value in averaged.state_dict().items()}
    storages = [parameter.data_ptr() for parameter in model.parameters()]

    def failing_evaluation():
        with averaged.swapped():
            for name, value in averages.items():
                assert torch.equal(model.state_dict()[name], value)
                assert not torch.equal(weights[name], value)
            raise KeyError("evaluation failed")

    with pytest.raises(KeyError):
        failing_evaluation()
    assert all(torch.equal(model.state_dict()[name], value) for name, value in weights.items())
    assert all(torch.equal(averaged.state_dict()[name], value) for name, value in averages.items())
    assert storages == [parameter.data_ptr() for parameter in model.parameters()]


def test_it_holds_trainable_weights_alone_and_tied_ones_once():
    model = layer()
    model.append(nn.Linear(3, 2, bias=False))
    model[3].weight = model[0].weight
    averaged = AveragedWeights(model, Averaging())
    names = averaged.state_dict()
    assert set(names) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight"}
    drift(model, 2, averaged)
    assert names["3.weight"] is names["0.weight"]


def test_loading_in_place_restores_it():
    first, second = (AveragedWeights(layer(), Averaging()) for _ in range(2))
    with torch.no_grad():
        for name, value in first.state_dict().items():
            value.normal_()
            second.state_dict()[name].copy_(value)
    assert all(
        torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items()
    )


def test_a_checkpoint_without_averages_is_an_error():
    with pytest.raises(PerennialError, match="no averaged weights"):
        averages_to_load(layer().state_dict(), set())
