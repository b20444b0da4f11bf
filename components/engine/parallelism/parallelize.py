"""Parallelize: an initial model → sharded, replicated or alone, exactly as asked for."""

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from components.contracts.errors import PerennialError
from components.engine.config import TrainingSection
from components.engine.distributed import World
from components.engine.parallelism.config import Strategy
from components.engine.precision import fsdp_policy
from components.engine.task import Batch, Task


def parallelize(model: nn.Module, task: Task, training: TrainingSection, world: World) -> nn.Module:
    """The model as the strategy wants it; every rank passes the same initial model.

    Raises:
        PerennialError: the strategy cannot run in this world.
    """
    if training.strategy == "single" and world.size != 1:
        raise PerennialError(
            f"training.strategy = 'single' was started with {world.size} processes",
            action="set resources.num_processes = 1, or strategy = 'fsdp' or 'ddp'",
        )
    model = model.to(world.device)
    if training.strategy in ("fsdp", "hsdp"):
        policy = fsdp_policy(training)
        mesh = world.layout.mesh if training.strategy == "hsdp" else world.layout.mesh["shard"]
        if training.precision != "fp32":
            # Batch normalisation keeps its running statistics in float32 and refuses a mixture.
            normalization = fsdp_policy(training, is_normalization=True)
            for module in model.modules():
                if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                    fully_shard(module, mesh=mesh, mp_policy=normalization)
        for block in task.blocks(model):
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    elif training.strategy == "ddp":
        # Buffers are synchronised by `synchronize_buffers`, the same way for every strategy.
        model = DistributedDataParallel(model, broadcast_buffers=False)
    require_strategy(model, training.strategy)
    return model


def require_strategy(model: nn.Module, strategy: Strategy) -> None:
    """Check that what runs is what was asked for.

    Raises:
        PerennialError: it is not.
    """
    sharded = {isinstance(parameter, DTensor) for parameter in model.parameters()}
    replicated = isinstance(model, DistributedDataParallel)
    found: Strategy = "ddp" if replicated else "fsdp" if sharded == {True} else "single"
    asked = "fsdp" if strategy == "hsdp" else strategy
    if found != asked or len(sharded) > 1:
        raise PerennialError(
            f"training.strategy = {strategy!r} was asked for, but the model runs as {found!r}",
            evidence=f"sharded parameters: {sorted(sharded)}",
            action="the task must not wrap or shard its model itself",
        )


def settle_buckets(model: nn.Module, inputs: Batch) -> None:
    """Let DDP arrange its buckets before the first update; other strategies need nothing.

    DDP arranges them anew after the first backward pass of a process, and with three or more
    ranks the arrangement decides the order of summation: without this, the first update of a
    resumed training would be rounded in another way than in one that was never interrupted.

    Args:
        model: Parallelized.
        inputs: Any inputs of the model, on its device.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    buffers = [buffer.clone() for buffer in model.buffers()]
    torch.autograd.backward(model(**inputs).float().sum())
    model.zero_grad(set_to_none=True)
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)


def set_gradient_sync(model: nn.Module, *, enabled: bool) -> None:
    """Whether the next backward pass reduces gradients over the ranks; off while accumulating."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
    elif isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = enabled


def free_gathered_parameters(model: nn.Module) -> None:
    """Return to shards after forward passes that no backward pass followed."""
    if isinstance(model, FSDPModule):
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
