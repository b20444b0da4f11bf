"""Optimizer: which algorithm updates which parameters, and which of them decay?"""

import torch
from torch import nn

from components.engine.config import TrainingSection
from components.engine.optimization.config import AdamW


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
