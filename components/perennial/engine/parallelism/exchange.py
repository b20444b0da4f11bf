"""Exchange: tensors sent between processes in the forward pass, their gradients sent back."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Hook = TypeVar("Hook", bound=Callable[..., object])


class _Exchanging(Protocol):
    sent: Sequence[int]
    received: Sequence[int]
    group: dist.ProcessGroup


class _Averaging(Protocol):
    group: dist.ProcessGroup


class _Scaling(Protocol):
    factor: float


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Exchanging,
        tensor: Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        group: dist.ProcessGroup,
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return _all_to_all(tensor, sent, received, group)

    @staticmethod
    def backward(ctx: _Exchanging, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradient, ctx.received, ctx.sent, ctx.group), None, None, None


class _Mean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Averaging, tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _mean(tensor, group)

    @staticmethod
    def backward(ctx: _Averaging, gradient: Tensor) -> tuple[Tensor, None]:
        # Each process adds its own losses' gradients: their sum, by the factor of the mean.
        return _mean(gradient, ctx.group), None


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Scaling, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: _Scaling, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


def all_to_all(
    rows: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """Send rows to each process; return those for this one, in the order of the processes.

    Args:
        rows: For the first process of the group, for the second, and so on.
        sent: How many for each.
        received: How many each has for this process.
        group: All of its processes call it together.
    """
    apply: Callable[..., Tensor] = _AllToAll.apply
    return apply(rows, sent, received, group)


def mean_over(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Average element-wise over a group; gradients reach every process's tensor."""
    apply: Callable[..., Tensor] = _Mean.apply
    return apply(tensor, group)


def with_scaled_gradient(tensor: Tensor, factor: float) -> Tensor:
    """Return the tensor as it is; its gradient is multiplied on the way back."""
    apply: Callable[..., Tensor] = _Scaled.apply
    return apply(tensor, factor)


def uncompiled(hook: Hook) -> Hook:
    """Exclude a hook from compilation, because it communicates."""
    disable: Callable[[Hook], Hook] = torch.compiler.disable
    return disable(hook)


def _all_to_all(
    tensor: Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    output = tensor.new_empty((sum(received), *tensor.shape[1:]))
    dist.all_to_all_single(output, tensor.contiguous(), [*received], [*sent], group=group)
    return output


def _mean(tensor: Tensor, group: dist.ProcessGroup) -> Tensor:
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total / dist.get_world_size(group)
