"""Search for the outputs of the smallest loss, among those that a model can have."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.nn import functional

from perennial.check_skeleton.models import Losses, compute_mean_loss, measure_loss
from perennial.check_skeleton.subject import Floats
from perennial.engine.task import LABEL, Batch

ROUNDING = 1e-4
INSIDE = 1e-6
# Losses of densities fall without end where the deviation does: outputs then stay this near to the
# start, in units of it, which brings every mean to its label and the deviation near zero.
DENSITY_REACH = 6.0
# At a minimum gradients vanish; a density that narrows without end keeps half of them.
STILL_FALLING = 0.02
KINK_STEPS = 100
# Times the first loss. A larger one would make the next step too small to change anything.
BEYOND = 2.0
# Maps for each pixel of a picture are not worth the ten times longer search.
MOST_NUMBERS = 10_000


@dataclass(frozen=True)
class OutputDomain:
    """The outputs that a model can have."""

    # Kind of the last function: probabilities and their logarithms are bounded together, other
    # outputs each by itself. Only held: free, but for columns that the weights do not reach.
    kind: Literal["free", "held", "probabilities", "log_probabilities", "bounded"] = "free"
    # Least value of each column of the last dimension, minus infinity where there is none.
    low: Tensor | None = None
    high: Tensor | None = None  # largest value of each column, infinity where there is none
    # Of probabilities and their logarithms: the leading columns that sum to one. The others, as the
    # mean and the deviation of a code, are free.
    columns: int = sys.maxsize

    @property
    def held(self) -> Tensor:
        """Return which columns of the last dimension the weights do not reach."""
        if self.low is None or self.high is None:
            return torch.zeros(1, dtype=torch.bool)
        return self.low == self.high

    def outputs(self, free: Tensor) -> Tensor:
        """Map any numbers to outputs that the model can have."""
        if self.kind in ("probabilities", "log_probabilities"):
            own, rest = free[..., : self.columns], free[..., self.columns :]
            is_log = self.kind == "log_probabilities"
            made = own.log_softmax(dim=-1) if is_log else own.softmax(dim=-1)
            return torch.cat([made, rest], dim=-1)
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
            own, rest = outputs[..., : self.columns], outputs[..., self.columns :]
            return torch.cat([own.clamp_min(INSIDE).log(), rest], dim=-1)
        if self.low is None or self.high is None:
            return outputs
        low, high, has_low, has_high = self._finite(outputs.dtype)
        chosen = torch.where(has_low, _inverse_softplus(outputs - low), outputs)
        below = -_inverse_softplus(high - outputs)
        chosen = torch.where(has_high & ~has_low, below, chosen)
        share = ((outputs - low) / (high - low).clamp_min(INSIDE)).clamp(1e-3, 1 - 1e-3)
        return torch.where(has_high & has_low, share.logit(), chosen)

    def _finite(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return bounds, zero where there is none, and whether there is; infinite ones make NaN."""
        none = torch.zeros(1)
        low, high = (none if each is None else each for each in (self.low, self.high))
        finite = [each.nan_to_num(0.0, 0.0, 0.0).to(dtype) for each in (low, high)]
        return finite[0], finite[1], low.isfinite(), high.isfinite()

    def holds(self, outputs: Tensor) -> bool:
        """Whether the model can have these outputs, up to rounding."""
        if self.kind in ("probabilities", "log_probabilities"):
            own = outputs[..., : self.columns]
            sums = (own.exp() if self.kind == "log_probabilities" else own).sum(dim=-1)
            return torch.allclose(sums, torch.ones_like(sums), atol=ROUNDING)
        if self.low is None or self.high is None:
            return True
        is_within = (outputs >= self.low - ROUNDING) & (outputs <= self.high + ROUNDING)
        return bool(is_within.all())


FREE = OutputDomain()


def find_minimum(
    losses: Losses, starts: Sequence[Tensor], batch: Batch, domain: OutputDomain
) -> tuple[Tensor, float, bool]:
    """Return the best outputs, their mean loss, and whether it is still falling."""
    best = _descend(losses, starts[0], batch, domain)
    for start in starts[1:]:
        # A start without gradient, as a rate of zero, leads nowhere.
        if not best[1] <= measure_loss(losses, _broadcast(start, batch), batch):
            other = _descend(losses, start, batch, domain)
            best = min(best, other, key=lambda each: np.nan_to_num(each[1], nan=np.inf))
    if best[2] and best[1] < 0:
        best = _descend(losses, starts[-1], batch, domain, DENSITY_REACH)
    return best


def _descend(
    losses: Losses, start: Tensor, batch: Batch, domain: OutputDomain, reach: float = np.inf
) -> tuple[Tensor, float, bool]:
    middle = domain.free(start).double().flatten().numpy()
    # Means in hundreds beside a spread near 1 are searched for with steps of their own sizes.
    unit = np.maximum(np.abs(middle), 1.0)

    def evaluate(values: Floats) -> tuple[float, Floats]:
        here = torch.from_numpy(unit * values).to(start.dtype).reshape(start.shape)
        here.requires_grad_()
        outputs = _broadcast(domain.outputs(here), batch)
        loss = compute_mean_loss(losses(outputs, batch), batch)
        (gradient,) = torch.autograd.grad(loss, here)
        return float(loss.detach()), unit * gradient.double().flatten().numpy()

    first, steepest = evaluate(middle / unit)

    def objective(values: Floats) -> tuple[float, Floats]:
        loss, slope = evaluate(values)
        if np.isnan(loss) and not np.isnan(first):
            # As of a variance below zero: the search steps back.
            return max(1.0, BEYOND * abs(first)), np.zeros_like(values)
        return loss, slope

    ends = None if np.isinf(reach) else [(each - reach, each + reach) for each in middle / unit]
    search = partial(minimize, objective, jac=True, method="L-BFGS-B", bounds=ends)
    limits = {"maxfun": 10_000, "ftol": 0.0, "gtol": 1e-9}
    found = search(middle / unit, options={"maxiter": 100 if ends is None else 1000, **limits})
    least = STILL_FALLING * float(np.abs(steepest).max())
    is_small = ends is None and middle.size <= MOST_NUMBERS
    if is_small and found.fun >= 0 and np.abs(found.jac).max() > least:
        found = search(found.x, options={"maxiter": 1000, **limits})
    values = torch.from_numpy(unit * found.x).to(start.dtype).reshape(start.shape)
    is_falling = float(np.abs(found.jac).max()) > least
    if is_falling and ends is None and found.fun >= 0:
        values, found.fun = _descend_to_kinks(losses, values, float(found.fun), batch, domain)
    return domain.outputs(values), float(found.fun), is_falling


def _descend_to_kinks(
    losses: Losses, values: Tensor, least: float, batch: Batch, domain: OutputDomain
) -> tuple[Tensor, float]:
    """Continue where a loss has kinks, as quantile and absolute losses have: line searches stop.

    Rprop takes each output's own step by the sign of its gradient, and halves it where that turns.
    """
    best, here = values, values.clone().requires_grad_()
    spread = float(values.std(correction=0).clamp_min(1e-2))
    optimizer = torch.optim.Rprop([here], lr=spread / 10)
    for _ in range(KINK_STEPS):
        loss = compute_mean_loss(losses(_broadcast(domain.outputs(here), batch), batch), batch)
        if float(loss.detach()) < least:
            best, least = here.detach().clone(), float(loss.detach())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return best, least


def _broadcast(outputs: Tensor, batch: Batch) -> Tensor:
    return outputs.expand(len(batch[LABEL]), *outputs.shape[1:])


def _inverse_softplus(values: Tensor) -> Tensor:
    values = values.clamp_min(INSIDE)
    return values + (-(-values).expm1()).log()
