"""Normalization: sets over which examples batch normalisation computes statistics.

`local` is what PyTorch does: the rows of one process and forward pass. `sync` takes those of all
processes together, so that two compute what one would; PyTorch's own does it on GPUs only. `ghost`
takes fewer, in chunks of a fixed size, which keeps the noise that small batches train well with
when batches grow (Hoffer et al., 2017).

Both kinds have the names and shapes of the module that they replace, so weights and checkpoints are
those of the task's own model.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx, once_differentiable

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import GHOST_BATCH_SIZE, TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.world.distributed import World

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
BatchNorm: TypeAlias = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d


def normalized(model: nn.Module, training: TrainingSection, world: World) -> nn.Module:
    """Convert the model's batch normalisations to the contract's kind, before sharding.

    Raises:
        PerennialError: there is none to convert, or a process would have no rows to share.
    """
    kind = training.normalization.batch_norm
    if kind == "local":
        return model
    found = {name: each for name, each in model.named_modules() if isinstance(each, BATCH_NORMS)}
    if not found:
        raise PerennialError(
            f"training.normalization.batch_norm = {kind!r}, but the model has no batch "
            "normalisation",
            evidence=f"it has {', '.join(sorted({type(m).__name__ for m in model.modules()}))}",
            action="remove the section; other normalisations use one example at a time",
        )
    if kind == "sync":
        _require_rows_everywhere(training, world)
        layout = world.layout
        # Their sums, one after the other, cover all processes with different rows.
        groups = tuple(
            layout.mesh.get_group(name)
            for name in ("replicate", "shard", "context", "expert")
            if layout.size(name) > 1
        )
    for name, norm in found.items():
        changed = (
            SyncedBatchNorm(norm, groups)
            if kind == "sync"
            else GhostBatchNorm(norm, training.normalization.ghost_batch_size or GHOST_BATCH_SIZE)
        )
        if not name:
            return changed
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, changed)
    return model


class _Replacement(nn.BatchNorm1d):
    """Takes over another batch normalisation's tensors; for inputs of any dimension."""

    def __init__(self, norm: BatchNorm) -> None:
        super().__init__(
            norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats
        )
        self._parameters |= norm._parameters
        self._buffers |= norm._buffers
        self.train(norm.training)

    def _check_input_dim(self, input: Tensor) -> None:
        return


class GhostBatchNorm(_Replacement):
    """Batch normalisation chunk by chunk: as equal as whole rows allow, of `size` rows at most.

    The running statistics follow one chunk after the other.
    """

    def __init__(self, norm: BatchNorm, size: int) -> None:
        super().__init__(norm)
        self.size = size

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, …] → the same shape."""
        if not self.training:
            return super().forward(input)
        normalize = super().forward
        chunks = input.tensor_split(-(-len(input) // self.size))
        return torch.cat([normalize(chunk) for chunk in chunks])


class SyncedBatchNorm(_Replacement):
    """Batch normalisation over the rows of all processes, on CPUs as well as on GPUs.

    Each process counts with as many rows as it has.
    """

    def __init__(self, norm: BatchNorm, groups: Sequence[dist.ProcessGroup]) -> None:
        super().__init__(norm)
        self.groups = groups

    def forward(self, input: Tensor) -> Tensor:
        """[B, C, …] → the same shape."""
        if not self.training:
            return super().forward(input)
        mean, variance, count = _moments(input.detach(), self.groups)
        self._follow(mean, variance, count)
        scale = torch.rsqrt(variance + self.eps)
        # PyTorch leaves `apply` untyped.
        apply = cast("Callable[..., Tensor]", _Normalize.apply)
        normal = apply(input, (mean, scale, count), self.groups)
        if not self.affine:
            return normal
        return normal * _by_channel(self.weight, normal) + _by_channel(self.bias, normal)

    def _follow(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics; the variance there is that of the population."""
        if self.running_mean is None or self.running_var is None:
            return
        steps = cast("Tensor", self.num_batches_tracked).add_(1)
        momentum = 1.0 / float(steps) if self.momentum is None else self.momentum
        unbiased = variance * (count / (count - 1).clamp_min(1)).to(variance.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)


class _Normalize(torch.autograd.Function):
    """(x - mean) · scale, whose backward pass knows that mean and scale came of all x."""

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        x: Tensor,
        statistics: tuple[Tensor, Tensor, Tensor],
        groups: Sequence[dist.ProcessGroup],
    ) -> Tensor:
        mean, scale, count = statistics
        normal = (x.to(mean.dtype) - _by_channel(mean, x)) * _by_channel(scale, x)
        ctx.save_for_backward(normal, scale, count)
        cast("Any", ctx).groups = groups
        return normal.to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        normal, scale, count = cast("Any", ctx).saved_tensors
        gradient = gradients[0].to(normal.dtype)
        others = [dim for dim in range(normal.ndim) if dim != 1]
        # Every process's loss depends on every process's rows, so their gradients are summed.
        sums = torch.cat([gradient.sum(others), (gradient * normal).sum(others)]).double()
        _all_reduce(sums, cast("Any", ctx).groups)
        mean_gradient, mean_product = (sums / count).to(normal.dtype).chunk(2)
        centred = gradient - _by_channel(mean_gradient, normal)
        centred -= normal * _by_channel(mean_product, normal)
        return (centred * _by_channel(scale, normal)).to(gradients[0].dtype), None, None


def _moments(x: Tensor, groups: Sequence[dist.ProcessGroup]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean and variance of each channel over all processes, and how many values they are of.

    Each process takes its own in float32; what is combined are a few numbers in float64, whose
    cancellation is then far below the rounding of the inputs.
    """
    others = [dim for dim in range(x.ndim) if dim != 1]
    values = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    variance, mean = torch.var_mean(values, others, correction=0)
    own_mean, own_variance = mean.double(), variance.double()
    rows = own_mean.new_full((1,), x.numel() // x.shape[1])
    sums = torch.cat([rows, rows * own_mean, rows * (own_variance + own_mean.square())])
    _all_reduce(sums, groups)
    count = sums[0]
    first, second = (sums[1:] / count).chunk(2)
    spread = (second - first.square()).clamp_min(0.0)
    return first.to(mean.dtype), spread.to(mean.dtype), count


def _all_reduce(values: Tensor, groups: Sequence[dist.ProcessGroup]) -> None:
    for group in groups:
        dist.all_reduce(values, group=group)


def _by_channel(values: Tensor, like: Tensor) -> Tensor:
    """[C] in a shape that broadcasts over [B, C, …]."""
    return values.view(1, -1, *[1] * (like.ndim - 2))


def _require_rows_everywhere(training: TrainingSection, world: World) -> None:
    plan = BatchPlan(training.global_batch_size, training.micro_batch_size, world.data_size)
    shares = [plan.micro_batches(rank) for rank in range(world.data_size)]
    if any(part.start == part.stop for share in shares for part in share):
        raise PerennialError(
            'training.normalization.batch_norm = "sync" needs rows on every process in every '
            "forward pass",
            evidence=plan.describe(),
            action="make global_batch_size a multiple of processes times micro_batch_size",
        )
