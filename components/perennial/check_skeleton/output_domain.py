"""Output domain: which outputs a model can have, found by scaling its last layer up and down.

Some losses take only such outputs: logarithms of probabilities, probabilities, rates, deviations.
A free tensor in their place must keep the same bounds, or the loss rejects it, or falls without
limit.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from perennial.check_skeleton.subject import Subject, head_of, stirred_model
from perennial.engine.task import Batch, inputs_of

PROBED_ROWS = 32
# The last layer is scaled by this, with both signs: outputs that stay within bounds are bounded by
# a function behind it.
LOUDER = 1000.0
ROUNDING = 1e-4
INSIDE = 1e-6


@dataclass(frozen=True)
class OutputDomain:
    """The outputs that a model can have.

    Attributes:
        kind: Of the last function: probabilities and their logarithms are bounded together,
            other outputs each by itself.
        low: Least value of each column of the last dimension, minus infinity where there is none.
        high: Largest value of each column, infinity where there is none.
    """

    kind: Literal["free", "probabilities", "log_probabilities", "bounded"] = "free"
    low: Tensor | None = None
    high: Tensor | None = None

    def outputs(self, free: Tensor) -> Tensor:
        """Map any numbers to outputs that the model can have."""
        if self.kind == "log_probabilities":
            return free.log_softmax(dim=-1)
        if self.kind == "probabilities":
            return free.softmax(dim=-1)
        if self.low is None or self.high is None:
            return free
        low, high, has_low, has_high = self._finite(free.dtype)
        chosen = torch.where(has_low, low + functional.softplus(free), free)
        chosen = torch.where(has_high & ~has_low, high - functional.softplus(-free), chosen)
        within = low + (high - low) * free.sigmoid()
        return torch.where(has_high & has_low, within, chosen)

    def free(self, outputs: Tensor) -> Tensor:
        """Return numbers that `outputs` maps to these outputs, up to rounding."""
        if self.kind == "probabilities":
            return outputs.clamp_min(INSIDE).log()
        if self.low is None or self.high is None:
            return outputs
        low, high, has_low, has_high = self._finite(outputs.dtype)
        chosen = torch.where(has_low, _inverse_softplus(outputs - low), outputs)
        below = -_inverse_softplus(high - outputs)
        chosen = torch.where(has_high & ~has_low, below, chosen)
        share = ((outputs - low) / (high - low).clamp_min(INSIDE)).clamp(1e-3, 1 - 1e-3)
        return torch.where(has_high & has_low, share.logit(), chosen)

    def _finite(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Bounds, zero where there is none, and whether there is; infinite ones make NaN."""
        none = torch.zeros(1)
        low, high = (none if each is None else each for each in (self.low, self.high))
        finite = [each.nan_to_num(0.0, 0.0, 0.0).to(dtype) for each in (low, high)]
        return finite[0], finite[1], low.isfinite(), high.isfinite()

    def holds(self, outputs: Tensor) -> bool:
        """Whether the model can have these outputs, up to rounding."""
        if self.kind in ("probabilities", "log_probabilities"):
            sums = (outputs.exp() if self.kind == "log_probabilities" else outputs).sum(dim=-1)
            return torch.allclose(sums, torch.ones_like(sums), atol=ROUNDING)
        if self.low is None or self.high is None:
            return True
        is_within = (outputs >= self.low - ROUNDING) & (outputs <= self.high + ROUNDING)
        return bool(is_within.all())


FREE = OutputDomain()


def output_domain(subject: Subject) -> OutputDomain:
    """Return the bounds of the model's outputs; free where none are found."""
    together = subject.task.scored_together
    batch = head_of(subject.balanced(max(PROBED_ROWS, together)), max(PROBED_ROWS, together))
    pushed = pushed_outputs(subject, batch, (LOUDER, LOUDER**2))
    if pushed is None or not all(bool(torch.isfinite(each).any()) for each in pushed):
        return FREE
    outputs = torch.cat(pushed)
    if outputs.ndim > 1 and outputs.shape[-1] > 1 and not bool(outputs.isnan().any()):
        ones = torch.ones(outputs.shape[:-1])
        if torch.allclose(outputs.exp().sum(dim=-1), ones, atol=ROUNDING):
            return OutputDomain("log_probabilities")
        is_positive = bool((outputs >= 0).all())
        if is_positive and torch.allclose(outputs.sum(dim=-1), ones, atol=ROUNDING):
            return OutputDomain("probabilities")
    return _bounds_of([_columns(each) for each in pushed])


def pushed_outputs(
    subject: Subject, batch: Batch, factors: tuple[float, ...] = (LOUDER,)
) -> list[Tensor] | None:
    """Return outputs as they are, then with the last layer scaled by each factor, both signs.

    A column that the last layer does not change, as that of another head, is turned up by the last
    one that does. None if no layer is found that changes any.
    """
    model = stirred_model(subject)
    before = _of(model, batch)
    pushed = [before, *(torch.cat([before, before]) for _ in factors)]
    for layer in reversed(_layers_in_order(model, batch)):
        untouched = _is_untouched(before, pushed[1])
        if not bool(untouched.any()):
            break
        turned = _turned_up(model, layer, batch, factors)
        pushed[1:] = [
            torch.where(untouched, own, each) for own, each in zip(turned, pushed[1:], strict=True)
        ]
    return None if bool(_is_untouched(before, pushed[1]).all()) else pushed


def _turned_up(
    model: nn.Module, layer: nn.Module, batch: Batch, factors: tuple[float, ...]
) -> list[Tensor]:
    """Return outputs under each factor on the layer's weights, then under its negative.

    The layer is restored.
    """
    kept = [parameter.detach().clone() for parameter in layer.parameters()]
    turned = []
    with torch.no_grad():
        for factor in factors:
            both = []
            for sign in (factor, -factor):
                for parameter, own in zip(layer.parameters(), kept, strict=True):
                    parameter.copy_(sign * own)
                both.append(_of(model, batch))
            turned.append(torch.cat(both))
        for parameter, own in zip(layer.parameters(), kept, strict=True):
            parameter.copy_(own)
    return turned


def _is_untouched(before: Tensor, turned: Tensor) -> Tensor:
    """Return which columns of the last dimension did not change; one value for outputs [B]."""
    same = turned == torch.cat([before, before])
    return same.all() if before.ndim == 1 else same.flatten(0, -2).all(dim=0)


def _bounds_of(pushed: list[Tensor]) -> OutputDomain:
    """Return the bounds that each column [rows, columns] keeps under every factor."""
    before, some, more = pushed
    low = _kept(some.amin(dim=0), more.amin(dim=0), -torch.inf)
    high = _kept(some.amax(dim=0), more.amax(dim=0), torch.inf)
    is_unknown = ((high - low).abs() < ROUNDING) | _is_untouched(before, some)
    low = torch.where(is_unknown, -torch.inf, low)
    high = torch.where(is_unknown, torch.inf, high)
    if not bool((low.isfinite() | high.isfinite()).any()):
        return FREE
    return OutputDomain("bounded", low, high)


def _kept(some: Tensor, more: Tensor, otherwise: float) -> Tensor:
    is_same = torch.isclose(some, more, rtol=1e-3, atol=ROUNDING) & more.isfinite()
    return torch.where(is_same, more, otherwise)


def _columns(outputs: Tensor) -> Tensor:
    return outputs.reshape(-1, 1) if outputs.ndim == 1 else outputs.reshape(-1, outputs.shape[-1])


def _inverse_softplus(values: Tensor) -> Tensor:
    values = values.clamp_min(INSIDE)
    return values + (-(-values).expm1()).log()


def _layers_in_order(model: nn.Module, batch: Batch) -> list[nn.Module]:
    """Modules without submodules that have parameters, in the order of the forward pass."""
    order: list[nn.Module] = []
    hooks = [
        module.register_forward_hook(lambda module, args, output: order.append(module))
        for module in model.modules()
        if not list(module.children()) and list(module.parameters())
    ]
    _of(model, batch)
    for hook in hooks:
        hook.remove()
    return list(dict.fromkeys(order))


def _of(model: nn.Module, batch: Batch) -> Tensor:
    with torch.no_grad():
        output: Tensor = model(**inputs_of(batch))
    return output
