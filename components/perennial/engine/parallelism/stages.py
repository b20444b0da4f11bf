"""Stages: assigns parts of a model to the processes of a pipeline.

A stage is the whole model in which the parts of all others pass their input on. It runs the model's
own `forward`, and its parameters keep the names that they have in the whole model.
"""

import copy
import inspect
from collections.abc import Collection, Mapping
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.task import ParallelPlan


class Passthrough(nn.Module):
    """Placeholder for a part of another stage: returns its input."""

    def forward(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """Return the first argument; what else the part is given does not matter."""
        return activation


def divide_blocks(num_blocks: int, num_stages: int) -> list[range]:
    """Return the blocks of each stage: contiguous, as equal as whole blocks allow.

    What is left over goes to the first stages: the last has the output layer to compute as well.

    Raises:
        PerennialError: a stage would have none.
    """
    if num_blocks < num_stages:
        raise PerennialError(
            f"the model's {num_blocks} blocks cannot fill {num_stages} pipeline stages",
            evidence="each process holds one stage, two under the schedule interleaved_1f1b",
            action=f"lower training.parallelism.pipeline, or build {num_stages} blocks or more",
        )
    edges = [-(-stage * num_blocks // num_stages) for stage in range(num_stages + 1)]
    return [range(start, stop) for start, stop in pairwise(edges)]


def assign_parts(model: nn.Module, plan: ParallelPlan, num_stages: int) -> dict[str, int]:
    """Return the stage of each part, by the part's name.

    Raises:
        PerennialError: the model cannot be cut into so many stages.
        BadTaskError: it cannot be cut at all.
    """
    count = len(list(model.get_submodule(plan.blocks).children()))
    stages = dict.fromkeys(plan.before, 0) | dict.fromkeys(plan.after, num_stages - 1)
    for stage, part in enumerate(divide_blocks(count, num_stages)):
        stages |= {f"{plan.blocks}.{index}": stage for index in part}
    _require_separable(model, stages)
    return stages


def cut(model: nn.Module, stages: Mapping[str, int], kept: Collection[int]) -> nn.Module:
    """Keep the parts of some stages of a model; the parts themselves are shared, not copied."""
    return _without(model, {name for name, stage in stages.items() if stage not in kept}, "")


@torch.no_grad()
def require_chain(
    model: nn.Module, stages: Mapping[str, int], inputs: Mapping[str, Tensor]
) -> None:
    """Check on an example that the stages in turn compute what the model computes.

    What `forward` does outside the parts, every stage does: it must not change the result.

    Raises:
        BadTaskError: they do not.
    """
    training, num_stages = model.training, max(stages.values()) + 1
    expected = model.eval()(**inputs)
    first = first_input(model)
    rest = {name: value for name, value in inputs.items() if name != first}
    activation, evidence = inputs[first], ""
    try:
        for stage in range(num_stages):
            activation = cut(model, stages, (stage,))(activation, **rest)
    except (RuntimeError, TypeError, ValueError) as error:  # what a wrong shape leads to
        evidence = f"stage {stage} failed: {error}"
    model.train(training)
    if not evidence and not torch.equal(activation, expected):
        evidence = "the same weights and inputs gave a different output"
    if evidence:
        raise BadTaskError(
            f"{type(model).__name__} differs from its {num_stages} stages in turn",
            evidence=evidence,
            action="let `forward` pass its first input through the parts of the task's plan, one "
            "after the other, and do everything else inside a part",
        )


def first_input(model: nn.Module) -> str:
    """Return the argument of `forward` in whose place the activation comes in later stages."""
    return next(iter(inspect.signature(model.forward).parameters))


def _without(module: nn.Module, absent: set[str], prefix: str) -> nn.Module:
    copied = copy.copy(module)
    for name, value in vars(module).items():
        # Hooks above all: those of one stage must not run for another.
        if isinstance(value, dict):
            vars(copied)[name] = value.copy()
    for name, child in module._modules.items():
        path = f"{prefix}{name}"
        if path in absent:
            copied._modules[name] = Passthrough()
        elif child is not None and any(part.startswith(f"{path}.") for part in absent):
            copied._modules[name] = _without(child, absent, f"{path}.")
    return copied


def _require_separable(model: nn.Module, stages: Mapping[str, int]) -> None:
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise PerennialError(
                "training.parallelism.pipeline cannot be combined with batch normalisation",
                evidence=f"{name} is a {type(module).__name__}: its statistics are those of a "
                "micro-batch, and a pipeline sets up its buffers with one that is not data",
                action="use layer or group normalisation, or strategy = 'fsdp' alone",
            )
    containers = [model.get_submodule(part.rpartition(".")[0]) for part in stages]
    for name, module in model.named_modules():
        if module in containers and next(module.buffers(recurse=False), None) is not None:
            raise BadTaskError(
                f"a buffer of {name or 'the model itself'} does not belong to a pipeline stage",
                action="give it a module of its own",
            )
    seen: dict[int, tuple[str, int]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners = [stage for part, stage in stages.items() if name.startswith(f"{part}.")]
        if not owners:
            raise BadTaskError(
                f"the parameter {name} does not belong to a pipeline stage",
                evidence=f"the plan's parts are: {', '.join(stages)}",
                action="name the module that holds it before or after the blocks in the task's "
                "plan; a parameter of the model itself needs a module of its own",
            )
        other, stage = seen.setdefault(id(parameter), (name, owners[0]))
        if stage != owners[0]:
            raise PerennialError(
                f"{other} and {name} are one tensor, which stages {stage} and {owners[0]} of the "
                "pipeline would both train",
                evidence="each process updates its own stage only",
                action="untie them in model.options, or set training.parallelism.pipeline = 1",
            )
