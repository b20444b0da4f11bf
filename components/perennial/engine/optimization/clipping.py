"""Clipping: the length of the whole gradient, and gradients cut down to a limit, on shards."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from perennial.engine.config.optimization import (
    AdaptiveClipping,
    Clipping,
    NormClipping,
    ValueClipping,
)
from perennial.engine.optimization.parameters import as_real, local
from perennial.engine.world.distributed import Scalar, scalar
from perennial.engine.world.layout import Layout


class Clipper:
    """Clips by the contract's method, and counts clipped updates, without a sync."""

    def __init__(self, settings: Clipping, norms: Sequence[float], device: torch.device) -> None:
        self._settings = settings
        self._excess: Scalar = 0.0
        window = settings.window if isinstance(settings, AdaptiveClipping) else 0
        kept = list(norms)[-window:] if window else []
        # The newest norm takes the place of the oldest.
        self._norms = torch.zeros(window, dtype=torch.float64, device=device)
        self._norms[: len(kept)] = torch.tensor(kept, dtype=torch.float64, device=device)
        self._observed = len(kept)

    def local_excess(self, parameters: Iterable[nn.Parameter], scale: float) -> Scalar:
        """Return 1 if any of this rank's elements is over the limit per value; to be added up."""
        if not isinstance(self._settings, ValueClipping):
            return 0.0
        gradients = [part for _, part in local_gradients(parameters) if part.numel()]
        if not gradients:
            return 0.0
        largest = torch.stack(torch._foreach_norm(gradients, float("inf"))).max()
        return scalar(largest > self._settings.max_value * scale) * 1.0

    def observe_clipping(self, ranks: Scalar) -> None:
        """Note on how many ranks an element is over the limit per value."""
        self._excess = ranks

    def clip(self, parameters: Sequence[nn.Parameter], norm: Scalar, scale: float) -> Scalar:
        """Undo the loss scale, and clip; returns 1 if anything was over the limit, else 0.

        Args:
            parameters: With gradients.
            norm: The length of the whole gradient, without the loss scale.
            scale: The loss scale that the gradients still contain.
        """
        limit = self._norm_limit(norm)
        if limit is not None:
            # One pass over the gradients for both. The 1e-6 is that of clip_grad_norm_ in PyTorch,
            # which one process must equal bit for bit.
            scale_gradients(parameters, _at_most_one(limit / (norm + 1e-6)) / scale)
            return (norm > limit) * 1.0
        scale_gradients(parameters, 1.0 / scale)
        if isinstance(self._settings, ValueClipping):
            gradients = [part for _, part in local_gradients(parameters)]
            torch._foreach_clamp_max_(gradients, self._settings.max_value)
            torch._foreach_clamp_min_(gradients, -self._settings.max_value)
            return (self._excess > 0) * 1.0
        return 0.0

    def observed(self) -> tuple[float, ...]:
        """Return the norms that the adaptive limit looks at, oldest first: its whole state."""
        window = len(self._norms)
        if self._observed <= window:
            return tuple(self._norms[: self._observed].tolist())
        return tuple(self._norms.roll(-(self._observed % window)).tolist())

    def _norm_limit(self, norm: Scalar) -> Scalar | None:
        if isinstance(self._settings, NormClipping):
            return self._settings.max_norm
        if not isinstance(self._settings, AdaptiveClipping):
            return None
        # With the newest among them, as in AutoClip (Seetharaman et al. 2020, arXiv:2007.14469):
        # the first update has a limit too, its own length.
        self._norms[self._observed % len(self._norms)] = norm
        self._observed += 1
        seen = self._norms[: min(self._observed, len(self._norms))]
        return scalar(torch.quantile(seen, self._settings.percentile / 100.0))


def _at_most_one(factor: Scalar) -> Scalar:
    return factor.clamp(max=1.0) if isinstance(factor, Tensor) else min(factor, 1.0)


def local_squared_norm(parameters: Iterable[nn.Parameter], layout: Layout | None) -> Tensor:
    """Return this rank's part of the squared norm of the whole gradient, to be added up.

    With a layout, what several ranks hold is counted by the first of them.

    The sum runs in float64: rounded to float32 afterwards, it is the same number however the
    gradient is sharded.
    """
    gradients = [
        part
        for gradient, part in local_gradients(parameters)
        if layout is None or layout.counts(gradient)
    ]
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    # Not PyTorch's clip_grad_norm_, which takes 3 to 4 times as long on sharded gradients and
    # refuses those of different meshes.
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float64)
    return torch.stack(norms).square().sum()


def scale_gradients(parameters: Iterable[nn.Parameter], factor: Scalar) -> None:
    """Multiply all gradients, in place."""
    if factor == 1.0 and not isinstance(factor, Tensor):
        return
    gradients = [part for _, part in local_gradients(parameters)]
    if gradients and isinstance(factor, Tensor):
        factor = factor.to(gradients[0])  # offloaded, they are on the host, and the norm is not
    torch._foreach_mul_(gradients, factor)


def local_gradients(parameters: Iterable[nn.Parameter]) -> list[tuple[Tensor, Tensor]]:
    """Return every gradient and this rank's part of it; of complex numbers, both parts of each."""
    gradients = [parameter.grad for parameter in parameters]
    with torch.no_grad():
        return [(each, as_real(local(each))) for each in gradients if each is not None]
