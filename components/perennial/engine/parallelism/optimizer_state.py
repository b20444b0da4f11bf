"""ZeRO stage 1: each process keeps the optimizer state of some weights, updates and sends them."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.world.distributed import World


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
