import pytest
import torch
from torch import nn

from perennial.engine.optimization import update_ratio
from perennial.engine.optimization.update_ratio import UpdateRatio
from perennial.engine.world.distributed import World

ALONE = World(rank=0, local_rank=0, size=1, device=torch.device("cpu"))


def test_it_is_the_length_of_the_update_over_that_of_the_weights():
    parameters = [nn.Parameter(torch.full((3, 4), 2.0)), nn.Parameter(torch.full((4,), 2.0))]
    ratio = UpdateRatio(parameters, ALONE, is_replicated=False)
    ratio.remember()
    with torch.no_grad():
        for parameter in parameters:
            parameter.mul_(1.01)
    assert ratio.measure() == pytest.approx(0.01, rel=1e-4)


def test_complex_weights_have_a_length():
    weights = nn.Parameter(torch.full((3, 4), 2 + 2j))
    ratio = UpdateRatio([weights], ALONE, is_replicated=False)
    ratio.remember()
    with torch.no_grad():
        weights.mul_(1.01)
    assert ratio.measure() == pytest.approx(0.01, rel=1e-4)


def test_an_update_that_was_left_out_moved_nothing():
    assert UpdateRatio([nn.Parameter(torch.ones(3))], ALONE, is_replicated=False).measure() == 0.0


def test_large_models_are_sampled(monkeypatch):
    monkeypatch.setattr(update_ratio, "MAX_WEIGHTS", 20)
    parameters = [nn.Parameter(torch.ones(10)) for _ in range(9)]
    ratio = UpdateRatio(parameters, ALONE, is_replicated=False)
    ratio.remember()
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(0.5)
    assert ratio.measure() == pytest.approx(0.5)
    assert sum(value.numel() for value in ratio._parameters) <= 20


def test_complex_weights_are_measured_by_both_parts():
    parameter = nn.Parameter(torch.full((5,), 3 + 4j))
    ratio = UpdateRatio([parameter], ALONE, is_replicated=False)
    ratio.remember()
    with torch.no_grad():
        parameter.mul_(1.01)
    assert ratio.measure() == pytest.approx(0.01, rel=1e-4)
