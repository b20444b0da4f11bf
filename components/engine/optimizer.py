"""Optimizer: parameter groups, the gradient's norm and clipping, on shards."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from components.engine.config import AdamW, TrainingSection


def build_optimizer(model: nn.Module, training: TrainingSection) -> torch.optim.Optimizer:
    """The optimizer over a model that is already sharded."""
    settings = training.optimizer
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in zip(
            split_by_decay(model), (settings.weight_decay, 0.0), strict=True
        )
        if parameters
    ]
    rate = settings.learning_rate
    if isinstance(settings, AdamW):
        # On a CPU the fused kernel rounds differently at the ends of its vectors, so that the
        # weights would depend on how they are sharded; it saves 0.2 ms a step there.
        fused = all(parameter.is_cuda for parameter in model.parameters())
        return torch.optim.AdamW(
            groups, lr=rate, betas=settings.betas, fused=fused, foreach=not fused
        )
    return torch.optim.SGD(
        groups, lr=rate, momentum=settings.momentum, nesterov=settings.momentum > 0, foreach=True
    )


def split_by_decay(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Trainable parameters with weight decay (matrices) and without (biases, norms, embeddings)."""
    embedded = {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    }
    decayed: list[nn.Parameter] = []
    exempt: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            matrix = parameter.ndim >= 2 and id(parameter) not in embedded
            (decayed if matrix else exempt).append(parameter)
    return decayed, exempt


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use one learning rate for all groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def local_squared_norm(parameters: Iterable[nn.Parameter], *, is_first_rank: bool) -> Tensor:
    """This rank's part of the squared length of the whole gradient; the parts' sum is the whole.

    The sum runs in float64: rounded to float32 afterwards, it is the same number however the
    gradient is sharded. Replicated gradients are counted on the first rank alone.
    """
    gradients = [
        gradient
        for gradient, is_sharded in _local_gradients(parameters)
        if is_sharded or is_first_rank
    ]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float64)
    return torch.stack(norms).square().sum()


def clip_gradients(
    parameters: Iterable[nn.Parameter], norm: Tensor, max_norm: float | None
) -> None:
    """Scale all gradients so that their common norm, given here, becomes at most `max_norm`."""
    if max_norm is None:
        return
    factor = torch.clamp(max_norm / (norm.float() + 1e-6), max=1.0)
    torch._foreach_mul_([gradient for gradient, _ in _local_gradients(parameters)], factor)


@torch.no_grad()
def _local_gradients(parameters: Iterable[nn.Parameter]) -> Iterator[tuple[Tensor, bool]]:
    for parameter in parameters:
        if isinstance(parameter.grad, DTensor):
            yield parameter.grad.to_local(), True
        elif parameter.grad is not None:
            yield parameter.grad, False
