"""Scalar parameters: single numbers without dimensions, such as a temperature, beside shards.

`fully_shard` refuses them. Every process keeps them whole, and averages their gradients here.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import nn

from perennial.engine.config.training import TrainingSection
from perennial.engine.world.layout import Layout


def scalar_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters without dimensions."""
    return {parameter for parameter in model.parameters() if parameter.ndim == 0}


def unsharded(parameters: Sequence[nn.Parameter], training: TrainingSection) -> list[nn.Parameter]:
    """Return the parameters whose gradients nothing else averages."""
    is_sharded = training.strategy in ("fsdp", "hsdp")
    return [each for each in parameters if is_sharded and each.ndim == 0]


@torch.no_grad()
def average_gradients(parameters: Sequence[nn.Parameter], layout: Layout) -> None:
    """Average gradients over the processes with different tokens, as FSDP does; all call it.

    A parameter that no process has a gradient of keeps none: the optimizer leaves it alone.
    """
    if not parameters:
        return
    found = [torch.zeros_like(each) if each.grad is None else each.grad for each in parameters]
    has_gradient = torch.tensor([each.grad is not None for each in parameters])
    # In float64, where sums hardly depend on the order of the processes.
    sums = torch.stack([*found, *has_gradient.to(found[0])]).double()
    mesh = layout.dense["replicate", "shard"]
    for dimension, size in enumerate(mesh.shape):
        if size > 1:
            dist.all_reduce(sums, group=mesh.get_group(dimension))
    means, counts = (sums / mesh.size()).chunk(2)
    for parameter, mean, count in zip(parameters, means, counts, strict=True):
        # Reading a count would wait for a GPU: only where this process has no gradient.
        if parameter.grad is not None or count > 0:
            parameter.grad = mean.to(parameter.dtype)
