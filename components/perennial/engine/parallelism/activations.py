"""Activations: checkpoints or offloads what blocks keep for the backward pass."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import Task

Forward: TypeAlias = Callable[..., object]
Contexts: TypeAlias = tuple[AbstractContextManager[Any], AbstractContextManager[Any]]

aten = torch.ops.aten
# Where the time of a forward pass goes: computing these again would cost what `full` costs.
MATRIX_PRODUCTS = frozenset(
    {
        aten.mm.default,
        aten.addmm.default,
        aten.bmm.default,
        aten.baddbmm.default,
        aten.convolution.default,
        aten._grouped_mm.default,
    }
)
ATTENTION = frozenset(
    {
        aten._scaled_dot_product_flash_attention.default,
        aten._scaled_dot_product_efficient_attention.default,
        aten._scaled_dot_product_cudnn_attention.default,
        aten._scaled_dot_product_flash_attention_for_cpu.default,
    }
)


def save_memory(
    model: nn.Module, task: Task, training: TrainingSection, device: torch.device
) -> None:
    """Apply activation checkpointing and offloading to a model that is not sharded yet.

    The forward passes are replaced in place: names, and so checkpoints, stay as they are.

    Raises:
        BadTaskError: blocks are to be checkpointed and the task names none.
        PerennialError: activations cannot be offloaded from where the model will compute.
    """
    memory = training.memory
    if memory.activation_checkpointing != "none":
        blocks = task.blocks(model)
        if not blocks:
            raise BadTaskError(
                f"training.memory.activation_checkpointing works per block, and "
                f"{type(task).__name__}.blocks returns none",
                action="return the model's repeated modules from `blocks`, in forward order, or "
                "set activation_checkpointing = 'none'",
            )
        is_selective = memory.activation_checkpointing == "selective"
        for block in blocks:
            forward = _checkpointed(block, is_selective=is_selective, compiled=training.compile)
            block.forward = forward
    if memory.activation_offload:
        if device.type != "cuda":
            raise PerennialError(
                "training.memory.activation_offload = true, but this process runs on the "
                f"{device.type.upper()}",
                evidence="activations are in the host's memory already",
                action="remove it; activation_checkpointing saves memory on every device",
            )
        model.forward = _offloaded(model.forward)


def compile_blocks(model: nn.Module, task: Task) -> None:
    """Compile each block of a model that is not sharded yet; without blocks, the whole model."""
    for module in task.blocks(model) or (model,):
        module.compile()


def selective_policy(
    context: SelectiveCheckpointContext, operation: object, *args: object, **kwargs: object
) -> CheckpointPolicy:
    """Keep the results of matrix products and of attention; compute the cheap rest again."""
    if operation in MATRIX_PRODUCTS:
        return CheckpointPolicy.MUST_SAVE
    # Attention that draws random numbers must draw them again, or what is drawn after it in the
    # block would differ between the forward pass and its repetition.
    if (
        isinstance(operation, OpOverload)
        and operation in ATTENTION
        and _dropout(operation, args, kwargs) == 0.0
    ):
        return CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.PREFER_RECOMPUTE


def offload_activations() -> saved_tensors_hooks:
    """Keep tensors saved for the backward pass in pinned host memory.

    Weights stay where they are: `torch.autograd.graph.save_on_cpu` would copy them as well.
    """
    return saved_tensors_hooks(_to_host, _from_host)


def _checkpointed(block: nn.Module, *, is_selective: bool, compiled: bool) -> Forward:
    forward = block.forward
    # The compiler repeats no side effects, and takes no contexts but its own.
    keeps_buffers = not compiled and any(True for _ in block.buffers())
    contexts = partial(_contexts, block if keeps_buffers else None, is_selective)
    options: dict[str, Any] = {"context_fn": contexts} if is_selective or keeps_buffers else {}

    def checkpointed(*args: object, **kwargs: object) -> object:
        if not torch.is_grad_enabled():
            return forward(*args, **kwargs)
        call = partial(forward, **kwargs)
        return checkpoint(call, *args, use_reentrant=False, **options)

    return checkpointed


def _contexts(block: nn.Module | None, is_selective: bool) -> Contexts:
    """Return the contexts of the forward pass and of its recomputation."""
    if not is_selective:
        return nullcontext(), _buffers_kept(block)
    keeping, reading = create_selective_checkpoint_contexts(  # type: ignore[no-untyped-call]  # torch
        selective_policy
    )
    # The compiler accepts these two as they are, and nothing around them.
    return keeping, reading if block is None else _buffers_kept(block, reading)


@contextmanager
def _buffers_kept(
    block: nn.Module | None, inner: AbstractContextManager[Any] | None = None
) -> Iterator[None]:
    """Update running statistics once per update, not again in the recomputation."""
    buffers = [] if block is None else list(block.buffers())
    before = [buffer.clone() for buffer in buffers]
    try:
        with inner or nullcontext():
            yield
    finally:  # the repetition ends early, by an exception, once it has what was asked for
        for buffer, value in zip(buffers, before, strict=True):
            buffer.copy_(value)


def _dropout(operation: OpOverload, args: Sequence[object], kwargs: dict[str, object]) -> object:
    if "dropout_p" in kwargs:
        return kwargs["dropout_p"]
    names = [argument.name for argument in operation._schema.arguments]
    place = names.index("dropout_p")
    return args[place] if place < len(args) else 0.0


def _offloaded(forward: Forward) -> Forward:
    def offloaded(*args: object, **kwargs: object) -> object:
        with offload_activations():
            return forward(*args, **kwargs)

    return offloaded


def _to_host(saved: Tensor) -> tuple[torch.device, Tensor]:
    origin = saved if saved._base is None else saved._base
    if isinstance(origin, nn.Parameter):
        return saved.device, saved
    host = torch.empty(
        saved.size(), dtype=saved.dtype, layout=saved.layout, pin_memory=saved.is_cuda
    )
    return saved.device, host.copy_(saved)


def _from_host(packed: tuple[torch.device, Tensor]) -> Tensor:
    device, tensor = packed
    return tensor.to(device, non_blocking=tensor.is_pinned())
