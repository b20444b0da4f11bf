from dataclasses import dataclass

import pytest
import torch
from torch import nn

from components.engine.optimization.clipping import local_squared_norm, scale_gradients


@dataclass
class Place:
    """A layout of which this rank is, or is not, the first."""

    is_first: bool = True

    def counts(self, gradient):
        return self.is_first


@pytest.mark.parametrize("max_norm", [0.5, 1e3])
def test_clipping_equals_pytorchs(max_norm):
    ours, theirs = nn.Linear(7, 5), nn.Linear(7, 5)
    for index, (one, other) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
        one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(index))
        other.grad = one.grad.clone()
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm)
    norm = local_squared_norm(ours.parameters(), Place()).sqrt()
    scale_gradients(ours.parameters(), torch.clamp(max_norm / (norm.float() + 1e-6), max=1.0))
    assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_replicated_gradients_are_counted_once():
    layer = nn.Linear(2, 2)
    layer.weight.grad, layer.bias.grad = torch.ones(2, 2), torch.ones(2)
    assert float(local_squared_norm(layer.parameters(), Place())) == pytest.approx(6.0)
    assert float(local_squared_norm(layer.parameters(), Place(is_first=False))) == 0.0
