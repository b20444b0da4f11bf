"""Parallelize: an initial model → sharded, replicated or alone, exactly as asked for.

Under ZeRO stage 1 each process keeps the optimizer state of some weights, updates and sends them.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, Placement
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.parallelism.activations import compile_blocks, save_memory
from perennial.engine.parallelism.context import share_sequences
from perennial.engine.parallelism.experts import share_experts
from perennial.engine.parallelism.pipeline import Pipeline
from perennial.engine.parallelism.plan import checked_plan
from perennial.engine.parallelism.tensor import share_matrices
from perennial.engine.precision import computation, fsdp_policy
from perennial.engine.task import Batch, Task, to_device
from perennial.engine.world.distributed import World
from perennial.engine.world.layout import Layout

logger = logging.getLogger(__name__)


def parallelize(
    model: nn.Module,
    task: Task,
    training: TrainingSection,
    world: World,
    inputs: Batch | None = None,
) -> nn.Module:
    """Lay out the model as the contract specifies; every rank passes the same initial model.

    By `inputs`, any inputs of the model, DDP learns whether some parameters get no gradient;
    without them, it expects one for each.

    What is sharded never lies on a device as a whole: matrices and experts are divided one by one
    and `fully_shard` moves one module after the other. The host holds a whole model per process
    until then.

    Raises:
        PerennialError: the strategy cannot run in this world.
    """
    if training.strategy == "single" and world.size != 1:
        raise PerennialError(
            f"training.strategy = 'single' was started with {world.size} processes",
            action="set resources.num_processes = 1, or strategy = 'fsdp' or 'ddp'",
        )
    is_sharded = training.strategy in ("fsdp", "hsdp")
    if not is_sharded:
        model = model.to(world.device)
    experts = share_model(model, task, training, world.layout)
    # Before compiling, so that the compiler sees the recomputation; sharding comes last, because
    # FSDP shards what tensor parallelism has divided.
    save_memory(model, task, training, world.device)
    if training.compile:
        compile_blocks(model, task)
    if is_sharded:
        require_contiguous(model)
        shard(model, task.blocks(model), experts, training, world)
    elif training.strategy == "ddp":
        is_idle = inputs is not None and has_idle_parameters(model, task, inputs, training, world)
        # `synchronize_buffers` serves every strategy. Looking for parameters without a gradient
        # takes a while in every update.
        model = DistributedDataParallel(
            model, forward_sync_buffers=False, find_unused_parameters=is_idle
        )
    require_strategy(model, training)
    return model


def share_model(
    model: nn.Module, task: Task, training: TrainingSection, layout: Layout
) -> list[nn.Module]:
    """Divide matrices, sequences and experts by the task's plan, in place.

    Returns:
        The modules whose experts are divided: they are sharded over fewer processes.

    Raises:
        PerennialError: the plan lacks what is asked for, or does not fit the model.
    """
    degrees, owner = training.parallelism, type(task).__name__
    plan = checked_plan(task.parallel_plan(), owner, degrees)
    if plan is None:
        return []
    if degrees.tensor > 1:
        mesh = layout.dense["tensor"]
        share_matrices(model, plan, owner, mesh, sequence_parallel=degrees.sequence_parallel)
    if degrees.context > 1:
        share_sequences(model, plan, owner, layout.mesh["context"])
    if degrees.expert > 1:
        return share_experts(model, plan, owner, layout.sparse["expert"])
    return []


def shard(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    experts: Sequence[nn.Module],
    training: TrainingSection,
    world: World,
) -> None:
    """Shard weights, gradients and optimizer state, module by module, in place.

    Blocks that the model, which may be a stage, does not have are left alone.

    Each `fully_shard` brings its own module's parameters and buffers to the device and leaves
    shards behind; the last one, of the model, does so with all that no other was given.
    """
    is_replicated, layout = training.strategy == "hsdp", world.layout
    dimensions = ("replicate", "shard") if is_replicated else ("shard",)
    # FSDP refuses parameters without dimensions; `average_gradients` reduces their gradients.
    scalars = scalar_parameters(model)
    offload = parameter_offload(training, world.device)
    # The default of stage 3 keeps the weights of the root: the backward pass begins with them.
    reshard = False if training.parallelism.zero_stage == 2 else None

    def apply(module: nn.Module, mesh: DeviceMesh, *, is_normalization: bool = False) -> None:
        policy = fsdp_policy(training, is_normalization=is_normalization)
        fully_shard(
            module,
            mesh=mesh,
            mp_policy=policy,
            offload_policy=offload,
            reshard_after_forward=reshard,
            ignored_params=scalars,
        )

    present = set(model.modules())
    if training.precision != "fp32":
        # Batch normalisation keeps its running statistics in float32 and refuses a mixture.
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                apply(module, layout.dense[dimensions], is_normalization=True)
    for module in experts:
        if module in present:
            apply(module, layout.sparse[dimensions])
    for block in blocks:
        if block in present:
            apply(block, layout.dense[dimensions])
    apply(model, layout.dense[dimensions])
    if not training.memory.parameter_offload:  # on the host, with the shards of the others
        for parameter in scalars:
            parameter.data = parameter.data.to(world.device)


def parameter_offload(training: TrainingSection, device: torch.device) -> OffloadPolicy:
    """Choose where shards, gradients and optimizer state lie between their uses."""
    if not training.memory.parameter_offload:
        return OffloadPolicy()
    if device.type == "cpu":
        logger.warning(
            "training.memory.parameter_offload changes nothing on a CPU: weights and optimizer "
            "state are in the host's memory already"
        )
    # Only copies to a GPU gain by pinned memory, and only a GPU's driver can pin it.
    return CPUOffloadPolicy(pin_memory=device.type == "cuda")


def require_contiguous(model: nn.Module) -> None:
    """Check that every parameter lies in memory as FSDP can cut it.

    Raises:
        PerennialError: one does not; channels-last convolutions are why.
    """
    other = [name for name, each in model.named_parameters() if not each.is_contiguous()]
    if other:
        raise PerennialError(
            "FSDP cannot shard weights in another memory format",
            evidence=f"{len(other)} parameters, {other[0]} among them, are not contiguous",
            action='set training.strategy = "ddp" or "single", or leave channels_last out of '
            "model.options",
        )


def require_strategy(model: nn.Module, training: TrainingSection) -> None:
    """Check that what runs is what was asked for.

    Raises:
        PerennialError: it is not.
    """
    scalars = scalar_parameters(model)
    placements = [_placements(each) for each in model.parameters() if each not in scalars]
    if isinstance(model, DistributedDataParallel):
        found = "ddp"
    elif not any(placements):
        found = "single"
    elif all("shard" in where for where in placements):
        found = "hsdp" if all("replicate" in where for where in placements) else "fsdp"
    else:
        found = "a mixture"
    divided = {
        name for where in placements for name, place in where.items() if not place.is_replicate()
    }
    degrees = training.parallelism
    missing = [
        name for name in ("tensor", "expert") if getattr(degrees, name) > 1 and name not in divided
    ]
    if found != training.strategy or missing:
        raise PerennialError(
            f"training.strategy = {training.strategy!r} was asked for, but the model runs as "
            f"{found!r}" + "".join(f", without {name} parallelism" for name in missing),
            evidence=f"{sum(map(bool, placements))} of {len(placements)} parameters are sharded",
            action="the task must not wrap or shard its model itself",
        )


def _placements(parameter: nn.Parameter) -> dict[str, Placement]:
    if not isinstance(parameter, DTensor):
        return {}
    names = parameter.device_mesh.mesh_dim_names or ()
    return dict(zip(names, parameter.placements, strict=True))


def warm_up_buckets(
    model: nn.Module, inputs: Batch, training: TrainingSection, device: torch.device
) -> None:
    """Let DDP arrange its buckets before the first update; other strategies need nothing.

    DDP arranges them again after the first backward pass of a process, and with three or more ranks
    the arrangement decides the order of summation: without this, the first update of a resumed
    training would be rounded in another way than in one that was never interrupted. The order in
    which gradients come is what they are arranged by, so a few rows suffice, computed in the
    training's own types.
    """
    if not isinstance(model, DistributedDataParallel):
        return
    with _trial_output(model, inputs, training, device) as output:
        torch.autograd.backward(output.float().sum())
        model.zero_grad(set_to_none=True)


def has_idle_parameters(
    model: nn.Module, task: Task, inputs: Batch, training: TrainingSection, world: World
) -> bool:
    """Whether a parameter has no part in the output, on any rank: it gets no gradient.

    As in the last of a row of equal blocks that hand on two results, of which nobody takes one.
    """
    with _trial_output(model, inputs, training, world.device) as output:
        auxiliary = task.auxiliary_losses(model)
        ends = [output] if auxiliary is None else [output, auxiliary]
        reached = {id(leaf) for end in ends for leaf in find_leaves(end)}
    idle = [
        name
        for name, each in model.named_parameters()
        if each.requires_grad and id(each) not in reached
    ]
    if idle:
        logger.info("idle_parameters=%d: %s", len(idle), ", ".join(idle[:8]))
    # The ranks may have taken different ways through the model, and DDP must do the same on all.
    return bool(world.sum(torch.tensor(len(idle))) > 0)


def find_leaves(tensor: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that a backward pass from this one gives gradients to."""
    seen, waiting = set(), [tensor.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            yield node.variable
        waiting += [parent for parent, _ in node.next_functions]


@contextmanager
def _trial_output(
    model: nn.Module, inputs: Batch, training: TrainingSection, device: torch.device
) -> Iterator[Tensor]:
    """Yield the output of a forward pass that leaves no trace in running statistics."""
    # Random numbers that are drawn here need no restoring: each update sets its own seed.
    buffers = [buffer.clone() for buffer in model.buffers()]
    with computation(training, device):
        output = model(**to_device(inputs, device))
    yield output
    for buffer, before in zip(model.buffers(), buffers, strict=True):
        buffer.copy_(before)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model as the task made it."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def set_gradient_sync(model: nn.Module, *, enabled: bool) -> None:
    """Whether the next backward pass reduces gradients over the ranks; off while accumulating."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
    elif isinstance(model, DistributedDataParallel):
        model.require_backward_grad_sync = enabled


def free_gathered_parameters(model: nn.Module) -> None:
    """Return to shards after forward passes that no backward pass followed."""
    for root in model.stages if isinstance(model, Pipeline) else (model,):
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def scalar_parameters(model: nn.Module) -> set[nn.Parameter]:
    """Return the parameters without dimensions."""
    return {parameter for parameter in model.parameters() if parameter.ndim == 0}


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


def share_optimizer_state(optimizer: Optimizer, training: TrainingSection, world: World) -> None:
    """Divide the state over all processes, if the contract asks for it, in place.

    Every element is updated as it would be without; checkpoints hold the whole state.

    Raises:
        PerennialError: there are fewer weights than processes.
    """
    if training.strategy != "ddp" or training.parallelism.zero_stage != 1:
        return
    parameters = [weight for group in optimizer.param_groups for weight in group["params"]]
    if len(parameters) < world.size:
        raise PerennialError(
            f"training.parallelism.zero_stage = 1 cannot divide {len(parameters)} weights over "
            f"{world.size} processes",
            evidence="each process keeps the state of at least one",
            action="remove it: the state of so small a model fits everywhere",
        )
    owned = divide_evenly(parameters, world.size)
    mine = set(map(id, owned[world.rank]))

    def leave_others(_: Optimizer, args: object, kwargs: object) -> None:
        for weight in parameters:
            # An optimizer skips weights without gradient and makes no state for them.
            if id(weight) not in mine:
                weight.grad = None

    def send(_: Optimizer, args: object, kwargs: object) -> None:
        for owner, weights in enumerate(owned):
            _broadcast(weights, owner)

    optimizer.register_step_pre_hook(leave_others)
    optimizer.register_step_post_hook(send)


def divide_evenly(parameters: list[nn.Parameter], parts: int) -> list[list[nn.Parameter]]:
    """Divide weights by size: the largest first, each to the part with least."""
    divided: list[list[nn.Parameter]] = [[] for _ in range(parts)]
    sizes = [0] * parts
    for weight in sorted(parameters, key=torch.numel, reverse=True):
        # Of equal ones, the part with fewest weights: none may stay without.
        least = min(range(parts), key=lambda part: (sizes[part], len(divided[part])))
        divided[least].append(weight)
        sizes[least] += weight.numel()
    return divided


def with_absent_states(
    states: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the states of weights by name; those that another process has are empty."""
    return {name: {} for group in groups for name in group["params"]} | dict(states)


@torch.no_grad()
def _broadcast(weights: list[nn.Parameter], owner: int) -> None:
    """Broadcast tensors in one message."""
    flat = torch.cat([weight.flatten() for weight in weights])
    dist.broadcast(flat, src=owner)
    start = 0
    for weight in weights:
        stop = start + weight.numel()
        weight.copy_(flat[start:stop].view_as(weight))
        start = stop
