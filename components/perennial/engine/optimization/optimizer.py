"""Optimizer: builds the optimizer and sets its learning rate."""

import logging
from collections.abc import Callable, Collection
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

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
from perennial.engine.optimization.eight_bit import adamw_8bit_type
from perennial.engine.optimization.parameters import split_by_decay
from perennial.engine.optimization.schedule import learning_rate, momentum

logger = logging.getLogger(__name__)

Algorithm: TypeAlias = tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]
"""An optimizer's class and its arguments beside parameters and learning rate."""


def build_optimizer(
    model: nn.Module, training: TrainingSection, names: Collection[str] = ()
) -> torch.optim.Optimizer:
    """Build the optimizer of a model that is already sharded.

    Args:
        model: Its parameters are updated.
        training: Optimizer and batch size.
        names: Names of the whole model's parameters where `model` is a stage of a pipeline.

    Raises:
        PerennialError: a pattern in `no_decay` matches nothing, or a package is missing.
    """
    settings = training.optimizer
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
    return kind(parameter_groups(model, settings, names), lr=rate, **arguments)


def parameter_groups(
    model: nn.Module, settings: Optimizer, names: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Group the parameters by weight decay and mesh: operations on lists do not mix meshes."""
    groups: dict[tuple[bool, DeviceMesh | None], list[nn.Parameter]] = {}
    decayed, exempt = split_by_decay(model, settings.no_decay, names)
    for parameters, decays in ((decayed, True), (exempt, False)):
        for parameter in parameters:
            mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
            groups.setdefault((decays, mesh), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": settings.weight_decay if decays else 0.0}
        for (decays, _), parameters in groups.items()
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
            "momentum_decay": settings.momentum_decay,
            "decoupled_weight_decay": True,
            "foreach": True,
        }
    if isinstance(settings, Adafactor):
        return ShardedAdafactor, {
            "second_moment_decay": settings.second_moment_decay,
            "update_threshold": settings.update_threshold,
            "relative_step": settings.relative_step,
            "scale_by_parameter": settings.scale_by_parameter,
        }
    if isinstance(settings, AdamW8bit):
        return adamw_8bit_type(is_on_gpu=is_on_gpu), {"betas": settings.betas}
    return torch.optim.SGD, {
        "momentum": settings.momentum,
        "nesterov": settings.nesterov,
        **_kernels(settings.implementation, is_on_gpu),
    }


def _kernels(implementation: Implementation, is_on_gpu: bool) -> dict[str, bool]:
    fused = implementation == "fused" or (implementation == "auto" and is_on_gpu)
    return {"fused": fused, "foreach": not fused}


def follow_schedule(
    optimizer: torch.optim.Optimizer, training: TrainingSection, step: int
) -> float:
    """Prepare the update `step`, counted from 0, in all groups; returns its learning rate."""
    peak = training.optimizer.peak_rate(training.global_batch_size)
    rate = learning_rate(peak, training.schedule, step, training.length_at(step))
    set_learning_rate(optimizer, rate)
    beta = momentum(training.schedule, step, training.length_at(step))
    if beta is not None:
        for group in optimizer.param_groups:
            if "betas" in group:
                group["betas"] = (beta, group["betas"][1])
            else:
                group["momentum"] = beta
    return rate


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use one learning rate for all groups."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)  # compiled into the update, which must not see a new object
        else:
            group["lr"] = rate
