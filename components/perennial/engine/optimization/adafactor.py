"""Adafactor: second moments kept as a row times a column, for weights sharded in any way.

PyTorch's own cannot update sharded weights. Here every rank works on its shards; what runs across
them (a column's mean square, the size of a parameter and of its update) is added up in three small
reductions per process group. These sums run in float64: rounded to float32 afterwards they are the
same however the weights are sharded.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Replicate
from torch.optim.optimizer import ParamsT

from perennial.engine.optimization.parameters import local

# The smallest size that a parameter is taken to have, so that one at zero can leave it
# (Shazeer & Stern 2018, section 8).
SMALLEST_SIZE = 1e-3
# The memory at step t is 1 - t ** this (section 7.2), and an update whose root mean square exceeds
# the threshold is scaled down to it (section 6).
SECOND_MOMENT_DECAY = -0.8
UPDATE_THRESHOLD = 1.0


class Adafactor(torch.optim.Optimizer):
    """The algorithm of `torch.optim.Adafactor`, of which it is a sharded equal.

    With `scale_by_parameter`, `lr` is a share of each parameter's root mean square.

    Matrices, and the last two dimensions of larger tensors, are factored; vectors are not. The
    update is computed in the gradients' memory, which hold no gradients afterwards.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-2,
        *,
        weight_decay: float = 0.0,
        scale_by_parameter: bool = True,
    ) -> None:
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "scale_by_parameter": scale_by_parameter,
        }
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # the base class has one overload for each
        """Update all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            factors = [
                _Factors.of(parameter, self.state[parameter])
                for parameter in group["params"]
                if parameter.grad is not None
            ]
            _update(factors, group)
        return loss


def _update(factors: "list[_Factors]", group: dict[str, Any]) -> None:
    # Each stage needs sums over all ranks from the one before: one reduction for all parameters.
    for one in factors:
        one.measure(is_sized=group["scale_by_parameter"])
    _add_up(part for one in factors for part in one.parts)
    for one in factors:
        one.remember()
    _add_up(part for one in factors for part in one.parts)
    for one in factors:
        one.normalize()
    _add_up(part for one in factors for part in one.parts)
    for one in factors:
        one.apply(group)


@dataclass
class _Part:
    """A sum of which each rank of some groups holds a part."""

    value: Tensor
    groups: tuple[dist.ProcessGroup, ...]


@dataclass
class _Factors:
    """One parameter on its way through an update; every stage leaves parts to be added up."""

    parameter: Tensor
    gradient: Tensor
    """This rank's part; becomes the update."""
    state: dict[str, Any]
    parts: tuple[_Part, ...] = ()
    square: _Part | None = None
    """Sum of squares of the parameter, where its size counts."""

    @classmethod
    def of(cls, parameter: Tensor, state: dict[str, Any]) -> "_Factors":
        if not state:
            # On the host, because `remember` reads it in every update.
            state["step"] = torch.zeros(())
            if parameter.ndim > 1:
                state["row"] = _zeros_reduced(parameter, -1)
                state["column"] = _zeros_reduced(parameter, -2)
            else:
                state["square"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        if gradient is None:
            raise ValueError("a parameter without gradient is not updated")
        return cls(parameter, local(gradient), state)

    def measure(self, *, is_sized: bool) -> None:
        """Sums of squares: of rows, of columns, and of the parameter."""
        parts = []
        if is_sized:
            self.square = self._part(_sum_of_squares(local(self.parameter)))
            parts.append(self.square)
        if self.parameter.ndim > 1:
            for dimension in (-1, -2):
                parts.append(self._part(_sum_of_squares(self.gradient, dimension), dimension))
        self.parts = tuple(parts)

    def remember(self) -> None:
        """Let the second moment forget, and take in the new squares."""
        self.state["step"] += 1
        weight = float(self.state["step"]) ** SECOND_MOMENT_DECAY
        sums = [part.value for part in self.parts if part is not self.square]
        self.parts = ()
        if self.parameter.ndim <= 1:
            squares = local(self.state["square"])
            squares.lerp_(self.gradient.square(), weight)
            return
        for name, total, dimension in zip(("row", "column"), sums, (-1, -2), strict=True):
            mean = total / self.parameter.shape[dimension]
            moment = local(self.state[name])
            moment.lerp_(mean.to(moment.dtype), weight)
        rows = local(self.state["row"]).sum(dim=-2, keepdim=True, dtype=torch.float64)
        self.parts = (self._part(rows, -2),)

    def normalize(self) -> None:
        """Divide the gradient by the root of the second moment."""
        epsilon = torch.finfo(self.parameter.dtype).eps
        if self.parameter.ndim > 1:
            mean = (self.parts[0].value / self.parameter.shape[-2]).to(self.gradient.dtype)
            estimate = local(self.state["row"]) * local(self.state["column"])
            estimate.div_(mean.clamp_(min=epsilon))
        else:
            estimate = local(self.state["square"]).clone()
        # The root is taken afterwards, hence the square of the smallest value.
        self.gradient.mul_(estimate.clamp_(min=epsilon * epsilon).rsqrt_())
        self.parts = (self._part(_sum_of_squares(self.gradient)),)

    def apply(self, group: dict[str, Any]) -> None:
        """Add the update, limited and scaled, to the parameter."""
        rate = float(group["lr"])
        mean_square = self.parts[0].value / self.parameter.numel()
        factor = -rate / (mean_square.sqrt() / UPDATE_THRESHOLD).clamp_(min=1.0)
        if self.square is not None:
            size = (self.square.value / self.parameter.numel()).sqrt()
            factor *= size.clamp_(min=SMALLEST_SIZE)
        weights = local(self.parameter)
        if group["weight_decay"]:
            weights.mul_(1.0 - rate * group["weight_decay"])
        weights.add_(self.gradient.mul_(factor.to(weights.dtype)))

    def _part(self, value: Tensor, dimension: int | None = None) -> _Part:
        return _Part(value, _sharding_groups(self.parameter, dimension))


def _sum_of_squares(tensor: Tensor, dimension: int | None = None) -> Tensor:
    """Add up squares in float64, without a copy of the tensor in it."""
    norm: Tensor = torch.linalg.vector_norm(
        tensor, dim=dimension, keepdim=dimension is not None, dtype=torch.float64
    )
    return norm.square()


def _zeros_reduced(parameter: Tensor, dimension: int) -> Tensor:
    """Zeros of the parameter's shape without one dimension's extent, sharded like the rest."""
    zeros = local(parameter).narrow(dimension, 0, 0).sum(dimension, keepdim=True)
    if not isinstance(parameter, DTensor):
        return zeros
    shape = list(parameter.shape)
    shape[dimension] = 1
    placements: Sequence[Placement] = [
        Replicate() if _shards(placement, parameter.ndim, dimension) else placement
        for placement in parameter.placements
    ]
    strides = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(
        zeros,
        parameter.device_mesh,
        placements,
        run_check=False,
        shape=torch.Size(shape),
        stride=strides,
    )


def _sharding_groups(parameter: Tensor, dimension: int | None) -> tuple[dist.ProcessGroup, ...]:
    """Return the groups over which a dimension, or any of them, is divided."""
    if not isinstance(parameter, DTensor):
        return ()
    return tuple(
        parameter.device_mesh.get_group(index)
        for index, placement in enumerate(parameter.placements)
        if _shards(placement, parameter.ndim, dimension)
    )


def _shards(placement: Placement, ndim: int, dimension: int | None) -> bool:
    # Sharding on top of tensor parallelism has a placement class of its own, not a Shard.
    cut = None if placement.is_replicate() else getattr(placement, "dim", None)
    return cut is not None and (dimension is None or cut % ndim == dimension % ndim)


def _add_up(parts: Iterable[_Part]) -> None:
    """Replace parts by their sums over the ranks: one reduction per process group."""
    by_group: dict[dist.ProcessGroup, list[Tensor]] = {}
    for part in parts:
        for group in part.groups:
            by_group.setdefault(group, []).append(part.value)
    for group, values in by_group.items():
        flat = torch.cat([value.flatten() for value in values])
        dist.all_reduce(flat, group=group)
        sums = torch.split(flat, [value.numel() for value in values])
        for value, total in zip(values, sums, strict=True):
            value.copy_(total.view_as(value))
