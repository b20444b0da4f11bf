"""Update ratio: length of an update relative to the length of the weights."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from perennial.engine.optimization.parameters import as_real, local
from perennial.engine.world.distributed import World

# Weights per rank that are looked at: copying more would cost memory, and the ratio of millions
# of weights is that of all.
MAX_WEIGHTS = 4_000_000


class UpdateRatio:
    """Measures single updates, on a fixed part of the weights."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], world: World, *, is_replicated: bool
    ) -> None:
        self._world = world
        self._is_replicated = is_replicated
        self._parameters = _evenly_spread(parameters)
        self._before: list[Tensor] = []

    @torch.no_grad()
    def remember(self) -> None:
        """Copy the weights, right before an update that is to be measured."""
        self._before = [weights.clone() for weights in self._local()]

    @torch.no_grad()
    def measure(self) -> float:
        """Return length of the update / length of the weights before, right after the update."""
        before, self._before = self._before, []
        if not before:
            squares = torch.zeros(2, dtype=torch.float64, device=self._world.device)
        else:
            moved = torch._foreach_sub(self._local(), before)
            squares = torch.stack([_squares(moved), _squares(before)])
        if not self._is_replicated:
            squares = self._world.sum(squares)
        update, weights = squares.sqrt().tolist()
        return update / weights if weights else 0.0

    def _local(self) -> list[Tensor]:
        return [as_real(local(parameter.detach())) for parameter in self._parameters]


def _evenly_spread(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Choose all parameters, or every n-th where all are too many; none that alone is too large."""
    sizes = [local(parameter.detach()).numel() for parameter in parameters]
    stride = max(1, -(-sum(sizes) // MAX_WEIGHTS))
    spread = list(zip(parameters, sizes, strict=True))[::stride]
    return [parameter for parameter, size in spread if size <= MAX_WEIGHTS]


def _squares(tensors: Sequence[Tensor]) -> Tensor:
    norms = torch._foreach_norm(list(tensors), 2, dtype=torch.float64)
    return torch.stack(norms).square().sum()
