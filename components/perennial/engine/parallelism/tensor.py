"""Tensor parallelism: matrices divided over processes, which all compute on the same tokens."""

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.parallelism.plan import matching
from perennial.engine.task import ParallelPlan, TensorStyle

SEQUENCE = Shard(1)
Check: TypeAlias = Callable[[nn.Module, object, Tensor], None]


def share_matrices(
    model: nn.Module, plan: ParallelPlan, owner: str, mesh: DeviceMesh, *, sequence_parallel: bool
) -> None:
    """Divide the matrices that a plan names, in place; weights become DTensors.

    Raises:
        BadTaskError: the plan names missing modules or an unknown style.
    """
    tied = _tied_parameters(model)
    for pattern, style in plan.tensor.items():
        for name, module in matching(model, pattern, owner):
            how = _styles(sequence_parallel).get(style)
            if how is None:
                raise BadTaskError(
                    f"{owner}.parallel_plan gives {pattern!r} the style {style!r}",
                    action=f"choose one of {', '.join(_styles(sequence_parallel))}",
                )
            if style == "split" and sequence_parallel:
                module.register_forward_hook(_require_divisible(mesh.size()))
            if not isinstance(how, _AsItIs):
                # Every process has the same initial weights: none needs to be sent.
                parallelize_module(module, mesh, how, src_data_rank=None)
            if style == "vocabulary":
                module.register_forward_hook(_settle)
            _require_shared(name, module, style, owner)
    for first, *others in tied:
        parameter = first[0]._parameters[first[1]]
        for module, name in others:
            module._parameters[name] = parameter


class _AsItIs:
    """The style of modules that need nothing."""


def _styles(sequence_parallel: bool) -> dict[TensorStyle, ParallelStyle | _AsItIs]:
    whole = Replicate()
    stream = SEQUENCE if sequence_parallel else whole
    styles: dict[TensorStyle, ParallelStyle | _AsItIs] = {
        "columns": ColwiseParallel(),
        "rows": RowwiseParallel(output_layouts=stream),
        "vocabulary": RowwiseParallel(input_layouts=whole, output_layouts=whole),
        "logits": ColwiseParallel(input_layouts=stream, output_layouts=whole),
        # Gathered once for all columns inside, whose gradients are added up before they are sent.
        "whole": PrepareModuleInput(input_layouts=stream, desired_input_layouts=whole),
        "normalization": _AsItIs(),
        "split": _AsItIs(),
        "repeated": _AsItIs(),
    }
    if sequence_parallel:
        styles |= {
            "normalization": SequenceParallel(use_local_output=True),
            "split": PrepareModuleOutput(output_layouts=whole, desired_output_layouts=SEQUENCE),
            "repeated": PrepareModuleInputOutput(
                input_layouts=SEQUENCE,
                desired_input_layouts=whole,
                use_local_input=True,
                output_layouts=whole,
                desired_output_layouts=SEQUENCE,
            ),
        }
    return styles


def _settle(module: nn.Module, inputs: object, output: Tensor) -> Tensor:
    """Wait for a tensor that is still being received, before it enters a compiled block.

    PyTorch 2.13 otherwise silently loses its gradient.
    """
    return output.clone()


def _require_divisible(size: int) -> Check:
    def check(module: nn.Module, inputs: object, output: Tensor) -> None:
        length = output.shape[1]
        if length % size:
            raise PerennialError(
                f"the sequence length {length} is not divisible by {size} processes",
                evidence="training.parallelism.sequence_parallel divides the stream",
                action=f"pad or cut sequences to a multiple of {size}, or turn it off",
            )

    return check


def _require_shared(name: str, module: nn.Module, style: TensorStyle, owner: str) -> None:
    if style not in ("columns", "rows", "vocabulary", "logits"):
        return
    if not any(isinstance(weight, DTensor) for weight in module.parameters(recurse=False)):
        raise BadTaskError(
            f"{owner}.parallel_plan gives {name} the style {style!r}, but it has no matrix",
            evidence=f"it is a {type(module).__name__}",
            action="name the nn.Linear or nn.Embedding itself",
        )


def _tied_parameters(model: nn.Module) -> list[list[tuple[nn.Module, str]]]:
    """Find parameters that several modules share; dividing one gives it a new identity."""
    places: dict[int, list[tuple[nn.Module, str]]] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                places.setdefault(id(parameter), []).append((module, name))
    return [found for found in places.values() if len(found) > 1]
