"""Optimizer: builds the optimizer and sets its learning rate."""

import importlib
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from perennial.contracts.errors import PerennialError
from perennial.engine.config.optimization import (
    Adafactor,
    Adam,
    AdamW,
    AdamW8bit,
    Implementation,
    NAdam,
    Optimizer,
)
from perennial.engine.config.training import TrainingSection
from perennial.engine.optimization.adafactor import Adafactor as ShardedAdafactor
from perennial.engine.optimization.parameters import rate_factors, split_by_decay
from perennial.engine.optimization.schedule import learning_rate, momentum

logger = logging.getLogger(__name__)

Algorithm: TypeAlias = tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]
"""An optimizer's class and its arguments beside parameters and learning rate."""


def build_optimizer(
    model: nn.Module,
    training: TrainingSection,
    names: Collection[str] = (),
    find_blocks: Callable[[], Sequence[nn.Module]] = tuple,
) -> torch.optim.Optimizer:
    """Build the optimizer of a model that is already sharded.

    In a stage of a pipeline, `names` are those of the whole model. `find_blocks` is called for
    `layer_decay` only, because a task that wraps its model may have none.

    Raises:
        PerennialError: a pattern matches nothing, the task has no blocks for `layer_decay`, or a
            package is missing.
    """
    settings = training.optimizer
    blocks = find_blocks() if settings.layer_decay != 1.0 else ()
    if settings.layer_decay != 1.0 and not blocks:
        raise PerennialError(
            f"training.optimizer.layer_decay = {settings.layer_decay}, but the task names no "
            "blocks",
            evidence="the stages of a pipeline have none either",
            action="let the task's `blocks` return them, or use training.optimizer.rates",
        )
    kind, arguments = algorithm(
        settings, is_on_gpu=all(parameter.is_cuda for parameter in model.parameters())
    )
    rate = settings.peak_rate(training.global_batch_size)
    if rate != settings.learning_rate:
        logger.info(
            "learning_rate=%g: %g, tuned with batches of %d, times (%d / %d) ** %g",
            rate,
            settings.learning_rate,
            settings.reference_batch_size,
            training.global_batch_size,
            settings.reference_batch_size,
            settings.batch_exponent,
        )
    groups = parameter_groups(model, settings, names, blocks)
    if not groups:
        raise PerennialError(
            "this process has no parameter to train",
            evidence="training.frozen covers all parameters of the model, or of a pipeline's stage",
            action="train a parameter of each stage, or set parallelism.pipeline = 1",
        )
    optimizer = kind(groups, lr=rate, **arguments)
    # `lr` is the same for all groups so far: this applies the factor of each.
    set_learning_rate(optimizer, rate)
    return optimizer


def parameter_groups(
    model: nn.Module,
    settings: Optimizer,
    names: Collection[str] = (),
    blocks: Sequence[nn.Module] = (),
) -> list[dict[str, Any]]:
    """Group the parameters by weight decay, rate and mesh: operations on lists do not mix meshes.

    `rate_factor` of a group is the factor of its learning rate.
    """
    groups: dict[tuple[bool, DeviceMesh | None, float], list[nn.Parameter]] = {}
    factors = rate_factors(model, settings.rates, settings.layer_decay, names, blocks)
    decayed, exempt = split_by_decay(model, settings.no_decay, names)
    for parameters, decays in ((decayed, True), (exempt, False)):
        for parameter in parameters:
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            key = decays, mesh, factors.get(id(parameter), 1.0)
            groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": settings.weight_decay if decays else 0.0,
            "rate_factor": factor,
        }
        for (decays, _, factor), parameters in groups.items()
    ]


def algorithm(settings: Optimizer, *, is_on_gpu: bool) -> Algorithm:
    """Return the optimizer class and arguments of a section.

    Raises:
        PerennialError: it needs a package that is not installed.
    """
    if isinstance(settings, AdamW | Adam):
        kind = torch.optim.AdamW if isinstance(settings, AdamW) else torch.optim.Adam
        return kind, {"betas": settings.betas, **_kernels(settings.implementation, is_on_gpu)}
    if isinstance(settings, NAdam):
        return torch.optim.NAdam, {
            "betas": settings.betas,
            "decoupled_weight_decay": True,
            "foreach": True,
        }
    if isinstance(settings, Adafactor):
        return ShardedAdafactor, {"scale_by_parameter": settings.scale_by_parameter}
    if isinstance(settings, AdamW8bit):
        return adamw_8bit_type(is_on_gpu=is_on_gpu), {"betas": settings.betas}
    return torch.optim.SGD, {
        "momentum": settings.momentum,
        "nesterov": settings.nesterov,
        **_kernels(settings.implementation, is_on_gpu),
    }


def _kernels(implementation: Implementation, is_on_gpu: bool) -> dict[str, bool]:
    # Not fused on a CPU: vectors' tails are rounded differently there, so that `fsdp` differed from
    # `ddp`. `foreach` has to be named, as PyTorch's default on a CPU is a loop over parameters.
    fused = implementation == "fused" or (implementation == "auto" and is_on_gpu)
    return {"fused": fused, "foreach": not fused}


def follow_schedule(
    optimizer: torch.optim.Optimizer, training: TrainingSection, step: int
) -> float:
    """Prepare the update `step`, counted from 0, in all groups; returns its learning rate."""
    span, settings = training.stage_at(step), training.optimizer
    schedule = span.stage.schedule or training.schedule
    if span.stage.learning_rate is not None:
        settings = settings.model_copy(update={"learning_rate": span.stage.learning_rate})
    peak = settings.peak_rate(training.global_batch_size)
    rate = learning_rate(peak, schedule, step - span.start, span.stage.steps)
    set_learning_rate(optimizer, rate)
    beta = momentum(schedule, step - span.start, span.stage.steps)
    if beta is not None:
        for group in optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (beta, group["betas"][1])
            else:
                group["momentum"] = beta
    return rate


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use one learning rate for all groups, times the factor of each."""
    for group in optimizer.param_groups:
        own = rate * group.get("rate_factor", 1.0)
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(own)  # compiled into the update, which must not see a new object
        else:
            group["lr"] = own


def adamw_8bit_type(*, is_on_gpu: bool) -> type[torch.optim.Optimizer]:
    """Return the optimizer's class; on GPUs, its update is compiled for each shape of parameter.

    Raises:
        PerennialError: torchao is not installed, or does not fit the installed PyTorch.
    """
    try:
        # Loaded here alone: it takes seconds, and is not part of the trainer's own packages.
        module = importlib.import_module("torchao.optim")
    except ImportError as error:
        raise PerennialError(
            "training.optimizer.name = 'adamw8bit' needs torchao, which cannot be imported",
            evidence=str(error),
            action="run `pip install 'perennial[optimizers]'`, also in the trainer's image, or "
            "choose 'adamw' or 'adafactor'",
        ) from error
    kind: type[torch.optim.Optimizer] = module.AdamW8bit
    return kind if is_on_gpu else _not_compiled(kind)


def _not_compiled(kind: type[torch.optim.Optimizer]) -> type[torch.optim.Optimizer]:
    """Apply the same update as plain operations.

    Compiling takes a CPU about ten seconds per shape of parameter, and a C++ compiler, for nothing:
    8 bits serve GPUs that are short of memory.
    """

    def step(
        self: torch.optim.Optimizer, closure: Callable[[], float] | None = None
    ) -> float | None:
        with torch.compiler.set_stance("force_eager"):
            return kind.step(self, closure)

    return type("PlainAdamW8bit", (kind,), {"step": step})
