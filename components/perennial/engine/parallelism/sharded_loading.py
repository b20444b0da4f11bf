"""Sharded loading: a model to score, divided over processes; none of them ever holds all of it.

Parameters leave memory as soon as they are registered, while buffers keep their values, since no
checkpoint holds those that are derived. Each process then reads its own shard of each weight.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils.weak import WeakIdKeyDictionary

from perennial.contracts.errors import ShardingError
from perennial.engine.export import (
    in_file_order,
    load_exported_task,
    open_tensors,
    weight_shards,
    weights_must_fit,
    write_tensors,
)
from perennial.engine.optimization.parameters import local
from perennial.engine.parallelism.parallelize import scalar_parameters
from perennial.engine.task import Task
from perennial.engine.world.distributed import World


def build_sharded(task: Task, world: World) -> nn.Module:
    """Build the task's model with weights that are still to be loaded, in evaluation mode.

    Raises:
        ShardingError: the model cannot be built without its weights, or not be sharded.
    """
    try:
        with _parameters_on_meta():
            model = task.build_model()
        mesh = init_device_mesh(world.device.type, (world.size,))
        scalars = scalar_parameters(model)
        # Also the root is resharded: by default its weights stay gathered for a backward pass,
        # which never comes.
        for module in (*task.blocks(model), model):
            fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=scalars)
        for module in model.modules():
            for name in module._non_persistent_buffers_set:
                if (buffer := module._buffers[name]) is not None and buffer.is_meta:
                    raise ValueError(f"the buffer {name} is computed from weights")
        for parameter in scalars:
            parameter.data = parameter.data.to(world.device)
        _materialize(model, world.device)
        # What the first forward pass would begin with: it refuses weights that blocks share.
        cast("FSDPModule", model)._get_fsdp_state()._lazy_init()
    except Exception as error:  # user code
        raise ShardingError(
            f"the model of {type(task).__name__} cannot be built in shards",
            evidence=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            action="let build_model compute nothing from values of weights, which are loaded "
            "later, and let blocks share none; or set scoring.shards = 1",
        ) from error
    return model.eval()


def load_sharded_model(folder: Path, world: World) -> tuple[Task, nn.Module]:
    """Load an exported model, whose weights were verified, each process its own shard.

    Raises:
        ShardingError: the model cannot be sharded.
        PerennialError: the weights do not fit the task's model.
    """
    challenger, task = load_exported_task(folder, verified=True)
    model = build_sharded(task, world)
    state = model.state_dict()
    names: set[str] = set()
    with weights_must_fit(folder, challenger), torch.no_grad():
        for path in weight_shards(folder):
            with open_tensors(path) as file:
                for name in file.keys() & state.keys():
                    target, stored = state[name], file.get_slice(name)
                    if stored.get_shape() != list(target.shape):
                        raise RuntimeError(f"{name} has the shape {stored.get_shape()}")
                    if not isinstance(target, DTensor):
                        target.copy_(file.get_tensor(name))
                    elif rows := _own_rows(target):
                        local(target).copy_(stored[rows])
                names |= set(file.keys())
        if differing := names ^ set(state):
            raise RuntimeError(f"names differ: {sorted(differing)[:5]}")
    return task, model


def write_gathered(model: nn.Module, folder: Path, world: World) -> str:
    """Store a sharded model as `write_weights` does; return the SHA-256 on the first rank.

    All ranks call it. They gather one weight at a time, of which the first writes all.
    """
    state = model.state_dict()
    layout = {name: (value.dtype, value.shape) for name, value in state.items()}

    def gather(name: str) -> Tensor:
        value = state[name]
        return value.full_tensor() if isinstance(value, DTensor) else value

    if world.is_first:
        return write_tensors(layout, gather, folder)
    # In the order of the first rank, because each `gather` is a collective.
    for name in in_file_order(layout):
        gather(name)
    return ""


def _materialize(model: nn.Module, device: torch.device) -> None:
    made: dict[Tensor, Tensor] = {}  # a tied weight gets its memory once

    def materialized(tensor: Tensor) -> Tensor:
        if tensor.is_meta and tensor not in made:
            made[tensor] = torch.empty_like(tensor, device=device)
        return made.get(tensor, tensor)

    model._apply(materialized)  # type: ignore[no-untyped-call]  # torch


def _own_rows(weight: DTensor) -> slice | None:
    """Return which rows of the whole weight this process holds; None if it has none."""
    (rows, *_), (start, *_) = compute_local_shape_and_global_offset(
        weight.shape, weight.device_mesh, weight.placements
    )
    return slice(start, start + rows) if weight.to_local().numel() else None


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Move each parameter to the meta device when it is registered; tied ones stay one."""
    moved = WeakIdKeyDictionary()

    def move(module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter:
        # Scalars are not sharded: they may stay.
        if parameter.is_meta or parameter.ndim == 0:
            return parameter
        if parameter not in moved:
            data = parameter.detach().to("meta")
            moved[parameter] = nn.Parameter(data, requires_grad=parameter.requires_grad)
        meta: nn.Parameter = moved[parameter]
        return meta

    handle = register_module_parameter_registration_hook(cast("Callable[..., None]", move))
    try:
        yield
    finally:
        handle.remove()
