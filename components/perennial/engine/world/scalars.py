"""Scalars: the few numbers that every update measures, stored where reading them is cheap.

On a CPU they are Python's own, whose arithmetic takes a hundredth of a tensor's. On a GPU they stay
there, for reading one waits for all the work before it.
"""

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

Scalar: TypeAlias = Tensor | float


def scalar(value: Tensor) -> Scalar:
    """Convert a tensor of one number to a scalar, in float64, detached."""
    return value.item() if value.device.type == "cpu" else value.detach().double()


def vector(values: Sequence[Scalar], device: torch.device) -> Tensor:
    """Stack scalars into one tensor on a device, in float64."""
    if device.type == "cpu":
        return torch.tensor(values, dtype=torch.float64)
    # Python's own are filled in there: a copy from the host would wait.
    return torch.stack(
        [
            each.double()
            if isinstance(each, Tensor)
            else torch.full((), each, dtype=torch.float64, device=device)
            for each in values
        ]
    )


def unpacked(values: Tensor) -> list[Scalar]:
    """Split a tensor of a few numbers into scalars."""
    return values.tolist() if values.device.type == "cpu" else list(values.double().unbind())


def read(values: Sequence[Scalar]) -> list[float]:
    """Convert scalars to Python's numbers; waits for their device once."""
    if values and isinstance(values[0], Tensor):
        return torch.stack([torch.as_tensor(each) for each in values]).tolist()
    return [float(each) for each in values]
