"""Free outputs: the losses that are possible, whatever the model.

A free tensor replaces the model's output: a loss that no output reaches, no model reaches.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from torch import Tensor

from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.output_domain import FREE, OutputDomain, output_domain
from perennial.check_skeleton.subject import Subject, evaluated, mean_loss, rows_of
from perennial.check_skeleton.token_outputs import frequencies, is_per_token, right_tokens
from perennial.engine.task import LABEL, Batch, Task, inputs_of

PROBED_ROWS = 256
# Losses of densities fall without end where the deviation does: outputs then stay this near to the
# start, in units of it, which brings every mean to its label and the deviation near zero.
DENSITY_REACH = 6.0
# At a minimum gradients vanish; a density that narrows without end keeps half of them.
STILL_FALLING = 0.02
# Of an untrained model's loss. Constants of honest tasks keep a tenth of it and more.
LEFT_BY_CONSTANTS = 1e-3
KINK_STEPS = 100
IN_PLACE = "outputs in place of the model's"
Losses = Callable[[Tensor, Batch], Tensor]
"""A task's `losses` or `training_losses`."""


@dataclass(frozen=True)
class FreeOutputs:
    """The best outputs for one batch.

    Attributes:
        constant: The best output that is the same for every example, shape [1, …].
        ideal: The best output for each example, shape [B, …].
        constant_loss: Mean loss of `constant`.
        floor: Mean loss of `ideal`.
        model_loss: Mean loss of the untrained model's outputs.
    """

    constant: Tensor
    ideal: Tensor
    constant_loss: float
    floor: float
    model_loss: float

    @property
    def is_bound(self) -> bool:
        """Whether outputs that are all alike leave a loss.

        Where they leave none, the model's outputs are bound to its inputs in a way that free ones
        are not, such as differences from an input's own score: the two cannot be compared.
        """
        left = self.constant_loss - self.floor
        return left > LEFT_BY_CONSTANTS * (self.model_loss - self.floor)


@dataclass(frozen=True)
class _Minimum:
    """The minimum of a loss over the outputs of a domain."""

    outputs: Tensor
    loss: float
    is_falling: bool = False


def free_outputs(subject: Subject, output: Tensor, batch: Batch) -> FreeOutputs:
    """Minimise the loss over the outputs themselves.

    Args:
        subject: Defines the loss and the bounds of the model's outputs.
        output: The model's output for the batch, for its shape.
        batch: Holds the labels.
    """
    task = subject.task
    constant, constant_loss = best_constant(subject, output, batch)
    if is_per_token(output, batch[LABEL]):
        with made_up(IN_PLACE):
            ideal, floor = right_tokens(task, output, batch, subject.once(asked_domain))
    else:
        # Examples that are compared get no gradient where all outputs are alike.
        start = output if task.scored_together > 1 else constant.expand_as(output)
        ideal, floor = minimised(subject, task.losses, (start.clone(),), batch)
    with torch.no_grad():
        model_loss = float(mean_loss(task.losses(output, batch), batch))
    return FreeOutputs(constant, ideal, constant_loss, floor, model_loss)


def best_constant(subject: Subject, output: Tensor, batch: Batch) -> tuple[Tensor, float]:
    """Return the best output that is equal for all examples, shape [1, …], and its mean loss."""
    task = subject.task
    if is_per_token(output, batch[LABEL]):
        with made_up(IN_PLACE):
            constant = subject.once(asked_domain).outputs(frequencies(output, batch))
            return constant, float(mean_loss(constant_losses(task, constant, batch), batch))
    return minimised(subject, task.losses, _starts(output), batch)


def constant_losses(task: Task, constant: Tensor, batch: Batch) -> Tensor:
    """Return the loss of each example under one output for all, shape [N], computed in parts."""
    parts = []
    with torch.no_grad():
        for start in range(0, len(batch[LABEL]), task.scoring_rows):
            part = rows_of(batch, slice(start, start + task.scoring_rows))
            shape = (len(part[LABEL]), *constant.shape[1:])
            parts.append(task.losses(constant.expand(shape), part))
    return torch.cat(parts)


def best_outputs(subject: Subject) -> FreeOutputs:
    """Return the free outputs for the probed examples."""
    return subject.once(_best_outputs)


def _best_outputs(subject: Subject) -> FreeOutputs:
    batch = probe(subject)
    return free_outputs(subject, output_of(subject, batch), batch)


def labels_off(subject: Subject, outputs: Tensor) -> float:
    """Return how far predictions of the probed examples are from the labels, in deviations."""
    labels = probe(subject)[LABEL].double()
    predicted = subject.task.predict(outputs).detach().double()
    return float((predicted - labels).square().mean().sqrt() / labels.std().clamp_min(1e-12))


def probe(subject: Subject) -> Batch:
    """Return examples with different inputs and alternating labels."""
    return subject.balanced(min(PROBED_ROWS, subject.task.scoring_rows))


def output_of(subject: Subject, batch: Batch) -> Tensor:
    """Return the untrained model's output in evaluation mode."""
    with torch.no_grad():
        output: Tensor = evaluated(subject.build_model())(**inputs_of(batch))
    return output


def minimised(
    subject: Subject, losses: Losses, starts: Sequence[Tensor], batch: Batch
) -> tuple[Tensor, float]:
    """Return the outputs, broadcast over the batch, of the smallest mean loss found, and that loss.

    Args:
        subject: Defines the bounds of the model's outputs.
        losses: The loss to minimise.
        starts: Where to begin; the later ones are tried where the first leads nowhere.
        batch: Holds the labels.
    """
    with made_up(IN_PLACE):
        best = _least(losses, starts, batch, subject.once(asked_domain))
    return best.outputs, best.loss


def asked_domain(subject: Subject) -> OutputDomain:
    """Return where to search: anywhere, unless the loss rejects or exploits impossible outputs.

    A loss of probabilities raises beyond 0 and 1, or falls without end where they need not sum to
    one. But a softmax in front of a loss that has its own must not hide behind its bounds.
    """
    domain = subject.once(output_domain)
    if domain.kind in ("free", "log_probabilities") or subject.task.scored_together > 1:
        return domain if domain.kind == "log_probabilities" else FREE
    batch = probe(subject)
    output = output_of(subject, batch)
    if is_per_token(output, batch[LABEL]):
        return _asked_of_tokens(subject, domain, output, batch)
    starts = _starts(output)
    pairs: list[tuple[_Minimum, _Minimum] | None] = []
    for each in (FREE, domain):
        try:
            constant = _least(subject.task.losses, starts, batch, each)
            start = constant.outputs.expand_as(output)
            pairs.append((constant, _least(subject.task.losses, (start,), batch, each)))
        except Exception:  # losses of probabilities reject all other numbers
            pairs.append(None)
    anywhere, within = pairs
    if anywhere is None or within is None:
        return domain if anywhere is None else FREE
    (constant, ideal), (own_constant, own_ideal) = anywhere, within
    room, own_room = (a.loss - b.loss for a, b in ((constant, ideal), (own_constant, own_ideal)))
    if not np.isfinite(own_room):
        return FREE
    if not np.isfinite(room) or ideal.loss < 0:
        return domain
    # Where one output suits all labels, the loss tells them apart only in its own domain.
    is_senseless = room <= 1e-3 * own_room and not domain.holds(ideal.outputs)
    is_stuck = own_ideal.loss < ideal.loss - 1e-3 * abs(ideal.loss) - 1e-9
    return domain if is_senseless or is_stuck else FREE


def _asked_of_tokens(
    subject: Subject, domain: OutputDomain, output: Tensor, batch: Batch
) -> OutputDomain:
    """Return the domain for per-token outputs: a loss of probabilities takes nothing else."""
    try:
        _, floor = right_tokens(subject.task, output, batch)
    except Exception:  # losses of probabilities reject all other numbers
        return domain
    return domain if not np.isfinite(floor) or floor < 0 else FREE


def _starts(output: Tensor) -> tuple[Tensor, Tensor]:
    return torch.zeros_like(output[:1]), output.mean(dim=0, keepdim=True)


def _least(
    losses: Losses, starts: Sequence[Tensor], batch: Batch, domain: OutputDomain
) -> _Minimum:
    best = _descended(losses, starts[0], batch, domain)
    for start in starts[1:]:
        with torch.no_grad():
            here = float(mean_loss(losses(_broadcast(start, batch), batch), batch))
        # A start without gradient, as a rate of zero, leads nowhere.
        if not best.loss <= here:
            other = _descended(losses, start, batch, domain)
            best = min(best, other, key=lambda each: np.nan_to_num(each.loss, nan=np.inf))
    if best.is_falling and best.loss < 0:
        best = _descended(losses, starts[-1], batch, domain, DENSITY_REACH)
    return best


def _descended(
    losses: Losses, start: Tensor, batch: Batch, domain: OutputDomain, reach: float = np.inf
) -> _Minimum:
    free = domain.free(start)
    middle = free.double().flatten().numpy()
    most = reach * np.maximum(np.abs(middle), 1.0)
    scale = [0.0]

    def objective(values: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        here = torch.from_numpy(values).to(start.dtype).reshape(start.shape).requires_grad_()
        outputs = _broadcast(domain.outputs(here), batch)
        loss = mean_loss(losses(outputs, batch), batch)
        (gradient,) = torch.autograd.grad(loss, here)
        scale.append(float(gradient.abs().max()))
        return float(loss.detach()), gradient.double().flatten().numpy()

    found = minimize(
        objective, middle, jac=True, method="L-BFGS-B",
        bounds=None if np.isinf(reach) else list(zip(middle - most, middle + most, strict=True)),
        options={"maxiter": 100 if np.isinf(reach) else 1000, "maxfun": 10_000, "ftol": 0.0,
                 "gtol": 1e-9},
    )  # fmt: skip
    values = torch.from_numpy(found.x).to(start.dtype).reshape(start.shape)
    left = float(np.abs(found.jac).max())
    is_falling = left > STILL_FALLING * scale[1]
    if is_falling and np.isinf(reach) and found.fun >= 0:
        values, found.fun = _down_to_kinks(losses, values, float(found.fun), batch, domain)
    return _Minimum(domain.outputs(values), float(found.fun), is_falling)


def _down_to_kinks(
    losses: Losses, values: Tensor, least: float, batch: Batch, domain: OutputDomain
) -> tuple[Tensor, float]:
    """Continue where a loss has kinks, as quantile and absolute losses have: line searches stop.

    Rprop takes each output's own step by the sign of its gradient, and halves it where that turns.
    """
    best, here = values, values.clone().requires_grad_()
    spread = float(values.std(correction=0).clamp_min(1e-2))
    optimizer = torch.optim.Rprop([here], lr=spread / 10)
    for _ in range(KINK_STEPS):
        loss = mean_loss(losses(_broadcast(domain.outputs(here), batch), batch), batch)
        if float(loss.detach()) < least:
            best, least = here.detach().clone(), float(loss.detach())
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return best, least


def stepped(subject: Subject, start: Tensor, batch: Batch, steps: int, rate: float) -> float:
    """Return the least mean loss that Adam reaches in so many steps on the outputs themselves."""
    domain, least = subject.once(asked_domain), np.inf
    values = domain.free(start.detach()).clone().requires_grad_()
    optimizer = torch.optim.Adam([values], lr=rate)
    for _ in range(steps):
        loss = mean_loss(subject.task.losses(domain.outputs(values), batch), batch)
        least = min(least, float(loss.detach()))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return float(least)


def _broadcast(outputs: Tensor, batch: Batch) -> Tensor:
    return outputs.expand(len(batch[LABEL]), *outputs.shape[1:])
