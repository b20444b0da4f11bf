"""Sharded loading: a model to score, divided over processes; none of them ever holds all of it.

Parameters leave memory as soon as they are registered, while buffers keep their values, since no
checkpoint holds those that are derived. Each process then reads its own shard of each weight.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.weak import WeakIdKeyDictionary

from perennial.contracts.adapter import Adapter
from perennial.contracts.errors import ShardingError
from perennial.contracts.initial_model import InitialModel
from perennial.engine.adapters import (
    adapt_model,
    base_names,
    merge_layer,
    require_base,
    unmerged_adapter,
)
from perennial.engine.config.training import TrainingSection
from perennial.engine.export import (
    in_file_order,
    load_exported_task,
    open_tensors,
    weight_shards,
    weights_must_fit,
    write_tensors,
)
from perennial.engine.initial_weights import plan_copies
from perennial.engine.low_bits import LowBitLinear, quantize
from perennial.engine.optimization.parameters import local
from perennial.engine.parallelism.parallelize import scalar_parameters
from perennial.engine.task import Task
from perennial.engine.world.distributed import World


def build_sharded(task: Task, world: World) -> nn.Module:
    """Build the task's model with weights that are still to be loaded, in evaluation mode.

    Raises:
        ShardingError: the model cannot be built without its weights, or not be sharded.
    """
    return _shard(_build_on_meta(task), task, world)


@torch.no_grad()
def build_sharded_adapted(
    task: Task, initial: InitialModel | None, adapter: Adapter, world: World
) -> nn.Module:
    """Build what `build_adapted_model` does, each process its own shard of the base's weights.

    Raises:
        ShardingError: as `build_sharded`.
        DamagedModelError: the base is gone or altered.
        BadTaskError: the base does not fit the task's model.
    """
    require_base(adapter, initial)
    model = _build_on_meta(task)
    copies, _ = plan_copies(model, task, cast("InitialModel", initial))
    # Found now: the adapter puts `base_layer` into names, but keeps the modules.
    weights = model.state_dict(keep_vars=True)
    owners = {name: model.get_submodule(name.rpartition(".")[0]) for name in copies}
    with _parameters_on_meta():
        adapt_model(model, task, TrainingSection(adapter=adapter), initial)
    _shard(model, task, world)
    for name, copy in copies.items():
        # One weight at a time is there as a whole; its file is mapped, not read into memory.
        whole, owner = torch.empty_like(weights[name], device="cpu"), owners[name]
        copy(whole)
        leaf = name.rpartition(".")[2]
        if isinstance(owner, LowBitLinear) and leaf == "weight":
            codes, scales = quantize(whole, adapter.base_bits)
            _copy_own(owner.codes, codes)
            _copy_own(owner.scales, scales)
        else:
            _copy_own(getattr(owner, leaf), whole)
    return model


def _build_on_meta(task: Task) -> nn.Module:
    with _must_be_shardable(task), _parameters_on_meta():
        return task.build_model()


def _shard(model: nn.Module, task: Task, world: World) -> nn.Module:
    """Divide a model on the meta device, in place, and give each shard its memory."""
    with _must_be_shardable(task):
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
    return model.eval()


@contextmanager
def _must_be_shardable(task: Task) -> Iterator[None]:
    """Turn errors of building and sharding into one for people.

    Raises:
        ShardingError: the model cannot be built without its weights, or not be sharded.
    """
    try:
        yield
    except Exception as error:  # user code
        raise ShardingError(
            f"the model of {type(task).__name__} cannot be built in shards",
            evidence=f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}",
            action="let build_model compute nothing from values of weights, which are loaded "
            "later, and let blocks share none; or set scoring.shards = 1",
        ) from error


def load_sharded_model(folder: Path, world: World) -> tuple[Task, nn.Module]:
    """Load an exported model, whose weights were verified, each process its own shard.

    Raises:
        ShardingError: the model cannot be sharded.
        DamagedModelError: the base of an adapter is gone or altered.
        PerennialError: the weights do not fit the task's model.
    """
    challenger, task = load_exported_task(folder, verified=True)
    adapter = unmerged_adapter(challenger, folder)
    if adapter is None:
        model = build_sharded(task, world)
    else:
        model = build_sharded_adapted(task, challenger.base, adapter, world)
    base = base_names(model, adapter)
    state = {name: value for name, value in model.state_dict().items() if name not in base}
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


@torch.no_grad()
def merge_shards(layer: nn.Module) -> None:
    """Add the product of one of peft's layers to this process's rows; all ranks call it."""
    base = cast("Any", layer).get_base_layer()
    whole = {name: _whole(value) for name, value in layer.named_parameters()}
    with _reparametrize_module(layer, whole):
        merge_layer(layer)
        merged = base.weight
    _copy_own(base.weight, merged)


def write_gathered(
    model: nn.Module, folder: Path, world: World, left_out: Collection[str] = ()
) -> str:
    """Store a sharded model as `write_weights` does; return the SHA-256 on the first rank.

    All ranks call it. They gather one weight at a time, of which the first writes all.
    """
    state = {name: value for name, value in model.state_dict().items() if name not in left_out}
    layout = {name: (value.dtype, value.shape) for name, value in state.items()}

    def gather(name: str) -> Tensor:
        return _whole(state[name])

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


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def _copy_own(target: Tensor, whole: Tensor) -> None:
    """Copy this process's rows of a whole weight into its shard."""
    if not isinstance(target, DTensor):
        target.copy_(whole)
    elif rows := _own_rows(target):
        local(target).copy_(whole[rows])


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
