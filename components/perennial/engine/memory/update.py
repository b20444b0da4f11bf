"""Update memory: an optimizer's state, and its temporary memory during a step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from perennial.engine.config.optimization import Adam, AdamW, AdamW8bit, Optimizer, Sgd
from perennial.engine.memory.live import LiveMemory
from perennial.engine.optimization.optimizer import algorithm

# torchao keeps one float32 scale for each block of so many 8-bit values; smaller tensors, and those
# that blocks do not fill, stay in float32.
BLOCK_SIZE = 256
SMALLEST_QUANTISED = 4096


@dataclass(frozen=True)
class UpdateMemory:
    """The bytes of an update.

    Attributes:
        state: Kept from step to step.
        temporary: Beside it, at the worst moment of a step.
    """

    state: int
    temporary: int

    @classmethod
    def of(cls, groups: Sequence[dict[str, Any]], settings: Optimizer, *, is_on_gpu: bool) -> Self:
        """Measure two steps on tensors that have shapes and no values: nothing is computed."""
        if isinstance(settings, AdamW8bit):
            return cls(*_of_8_bit([value for group in groups for value in group["params"]]))
        is_fused = _is_fused(settings, is_on_gpu=is_on_gpu)
        if is_fused:  # kernels that exist for real devices only; they keep the same state
            settings = settings.model_copy(update={"implementation": "foreach"})
        kind, arguments = algorithm(settings, is_on_gpu=False)
        values = [_without_values(group) for group in groups]
        optimizer = kind(values, **{"lr": settings.learning_rate, **arguments})
        optimizer.step()
        state = _state_bytes(optimizer)
        with LiveMemory(torch.device("meta"), []) as memory:
            optimizer.step()
        return cls(state, 0 if is_fused else memory.peak)


def _is_fused(settings: Optimizer, *, is_on_gpu: bool) -> bool:
    if isinstance(settings, AdamW | Adam):
        is_chosen = settings.implementation == "auto" and is_on_gpu
        return is_chosen or settings.implementation == "fused"
    return isinstance(settings, Sgd) and settings.implementation == "fused"


def _without_values(group: dict[str, Any]) -> dict[str, Any]:
    parameters = [
        nn.Parameter(torch.empty_like(parameter, device="meta")) for parameter in group["params"]
    ]
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    return {**group, "params": parameters}


def _state_bytes(optimizer: torch.optim.Optimizer) -> int:
    return sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if isinstance(value, Tensor)
    )


def _of_8_bit(parameters: Sequence[Tensor]) -> tuple[int, int]:
    """Its kernel is compiled, which needs values; one tensor's moments at a time are float32."""
    state = largest = 0
    for parameter in parameters:
        count = parameter.numel()
        largest = max(largest, count)
        is_quantised = count >= SMALLEST_QUANTISED and count % BLOCK_SIZE == 0
        state += 2 * (count + count // BLOCK_SIZE * 4 if is_quantised else 4 * count)
    return state, 2 * 4 * largest
