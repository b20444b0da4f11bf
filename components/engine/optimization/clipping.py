"""Clipping: the length of the whole gradient, and gradients scaled down to a limit, on shards."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from components.engine.parallelism.layout import Layout


def local_squared_norm(parameters: Iterable[nn.Parameter], layout: Layout) -> Tensor:
    """This rank's part of the squared length of the whole gradient; the parts' sum is the whole.

    The sum runs in float64: rounded to float32 afterwards, it is the same number however the
    gradient is sharded. What several ranks hold is counted by the first of them.
    """
    gradients = [
        local for gradient, local in _local_gradients(parameters) if layout.counts(gradient)
    ]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float64)
    return torch.stack(norms).square().sum()


def scale_gradients(parameters: Iterable[nn.Parameter], factor: Tensor) -> None:
    """Multiply all gradients, in place."""
    torch._foreach_mul_([local for _, local in _local_gradients(parameters)], factor)


@torch.no_grad()
def _local_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[tuple[Tensor, Tensor]]:
    for parameter in parameters:
        if isinstance(parameter.grad, DTensor):
            yield parameter.grad, parameter.grad.to_local()
        elif parameter.grad is not None:
            yield parameter.grad, parameter.grad
