"""Free outputs: the losses that are possible, whatever the model.

A free tensor replaces the model's output: a loss that no output reaches, no model reaches.

Some losses take only logarithms of probabilities, probabilities, rates, or deviations. A free
tensor in their place must keep the same bounds, or the loss rejects it, or falls without limit.

Outputs for every token hold millions of numbers, too many to be minimised one by one. But what
cross-entropy allows is known: the frequencies of the tokens are its best constant, and its ideal
puts one scale on every right token, whatever the label smoothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.minimum import FREE, ROUNDING, OutputDomain, find_minimum
from perennial.check_skeleton.models import (
    Losses,
    build_noisy_model,
    compute_mean_loss,
    evaluated,
    measure_loss,
    run_model,
    watch_modules,
)
from perennial.check_skeleton.subject import Subject, once, select_head, select_rows
from perennial.engine.task import LABEL, Batch, Task

PROBED_ROWS = 256
BELOW_ZERO = 1e-3
# Share of an untrained model's loss. Constants of honest tasks keep a tenth of it and more.
LEFT_BY_CONSTANTS = 1e-3
IN_PLACE = "outputs in place of the model's"
DOMAIN_ROWS = 32
# The last layer is scaled by this, with both signs: outputs that stay within bounds are bounded by
# a function behind it.
LOUDER = 1000.0
LARGEST_SCALE = 40.0  # the rest then has 1e-17 of the probability
# Krichevsky and Trofimov: half a count for every token costs least when the worst comes.
UNSEEN = 0.5


@dataclass(frozen=True)
class FreeOutputs:
    """The best outputs for one batch."""

    constant: Tensor  # the best output that is the same for every example, shape [1, …]
    ideal: Tensor  # the best output for each example, shape [B, …]
    constant_loss: float  # mean loss of `constant`
    floor: float  # mean loss of `ideal`
    model_loss: float  # mean loss of the untrained model's outputs

    @property
    def is_bound(self) -> bool:
        """Whether outputs that are all alike leave a loss.

        Where they leave none, the model's outputs are bound to its inputs in a way that free ones
        are not, such as differences from an input's own score: the two cannot be compared.
        """
        left = self.constant_loss - self.floor
        return left > LEFT_BY_CONSTANTS * (self.model_loss - self.floor)


def find_free_outputs(subject: Subject, output: Tensor, batch: Batch) -> FreeOutputs:
    """Minimise the loss over outputs of the same shape as the model's output for the batch."""
    task = subject.task
    constant, constant_loss = find_best_constant(subject, output, batch)
    if is_per_token(output, batch[LABEL]):
        with made_up(IN_PLACE):
            ideal, floor = find_right_tokens(task, output, batch, choose_domain(subject))
    else:
        # Examples that are compared get no gradient where all outputs are alike.
        start = output if task.scored_together > 1 else constant.expand_as(output)
        ideal, floor = minimise(subject, task.losses, (start.clone(),), batch)
    model_loss = measure_loss(task.losses, output, batch)
    return FreeOutputs(constant, ideal, constant_loss, floor, model_loss)


def find_best_constant(subject: Subject, output: Tensor, batch: Batch) -> tuple[Tensor, float]:
    """Return the best output that is equal for all examples, shape [1, …], and its mean loss."""
    task = subject.task
    if is_per_token(output, batch[LABEL]):
        # The logarithms of the tokens' shares, at every position.
        length, codes = output.shape[1:]
        labels = batch[LABEL].flatten().long()
        counts = torch.bincount(labels[(labels >= 0) & (labels < codes)], minlength=codes) + UNSEEN
        shares = (counts / counts.sum()).log().to(output.dtype).expand(1, length, codes)
        with made_up(IN_PLACE):
            constant = choose_domain(subject).outputs(shares)
            losses = compute_constant_losses(subject, constant, batch)
            return constant, float(compute_mean_loss(losses, batch))
    return minimise(subject, task.losses, make_starts(output), batch)


@once
def find_training_constant(subject: Subject) -> tuple[Tensor, float]:
    """Return the best constant output for the training sample, shape [1, …], and its mean loss."""
    return find_best_constant(subject, compute_output(subject, probe(subject)), subject.train)


def compute_constant_losses(subject: Subject, constant: Tensor, batch: Batch) -> Tensor:
    """Return the loss of each example under one output for all, shape [N], computed in parts.

    Columns that the weights do not reach keep their values: the loss needs them, as the ids of
    rows that are not each other's negatives.
    """
    task, held, parts = subject.task, find_output_domain(subject).held, []
    model = evaluated(subject.build_model()) if bool(held.any()) else None
    with torch.no_grad():
        for start in range(0, len(batch[LABEL]), task.scoring_rows):
            part = select_rows(batch, slice(start, start + task.scoring_rows))
            output = constant.expand(len(part[LABEL]), *constant.shape[1:])
            if model is not None:
                output = torch.where(held, run_model(model, part), output)
            parts.append(task.losses(output, part))
    return torch.cat(parts)


def compute_zero_losses(subject: Subject, batch: Batch) -> Tensor:
    """Return the loss of each example under outputs of zeros, [N]."""
    zeros = choose_domain(subject).outputs(torch.zeros_like(find_training_constant(subject)[0]))
    return compute_constant_losses(subject, zeros, batch)


@once
def find_best_outputs(subject: Subject) -> FreeOutputs:
    """Return the free outputs for the probed examples."""
    batch = probe(subject)
    return find_free_outputs(subject, compute_output(subject, batch), batch)


def fill_unread_outputs(losses: Losses, ideal: Tensor, output: Tensor, batch: Batch) -> Tensor:
    """Return the best outputs, with the model's where the loss reads none.

    As beyond the end of a sound, where each is as good; but they are decoded with the others.
    """
    held = output.detach().clone().requires_grad_()
    total = losses(held, batch).sum()
    if not total.requires_grad:
        return ideal
    (gradient,) = torch.autograd.grad(total, held, materialize_grads=True)
    filled = torch.where(gradient == 0, output, ideal)
    with torch.no_grad():
        same = torch.allclose(losses(filled, batch), losses(ideal, batch))
    return filled if same else ideal


def is_density(subject: Subject, ideal: Tensor, batch: Batch) -> bool:
    """Whether the best outputs bring the loss of any example below zero, as densities alone do.

    The mean of densities of large amounts may be positive.
    """
    with torch.no_grad():
        return float(subject.task.losses(ideal, batch).min()) < -BELOW_ZERO


def measure_label_error(subject: Subject, outputs: Tensor) -> float:
    """Return how far predictions of the probed examples are from the labels, in deviations."""
    labels = probe(subject)[LABEL].double()
    predicted = subject.task.predict(outputs).detach().double()
    return float((predicted - labels).square().mean().sqrt() / labels.std().clamp_min(1e-12))


def probe(subject: Subject) -> Batch:
    """Return examples with different inputs and alternating labels."""
    return subject.balanced(min(PROBED_ROWS, subject.task.scoring_rows))


def compute_output(subject: Subject, batch: Batch) -> Tensor:
    """Return the untrained model's output in evaluation mode."""
    return run_model(evaluated(subject.build_model()), batch)


def minimise(
    subject: Subject, losses: Losses, starts: Sequence[Tensor], batch: Batch
) -> tuple[Tensor, float]:
    """Return the outputs, broadcast over the batch, of the smallest mean loss found, and that loss.

    Later starts are tried where the first leads nowhere. Columns that no weight reaches, such as a
    row's own scale that `predict` needs, keep their values: losses would fall without end if
    outputs could choose their unit.
    """
    with made_up(IN_PLACE):
        return _minimise_within(choose_domain(subject), subject, losses, starts, batch)


def _minimise_within(
    domain: OutputDomain,
    subject: Subject,
    losses: Losses,
    starts: Sequence[Tensor],
    batch: Batch,
) -> tuple[Tensor, float]:
    held = find_output_domain(subject).held
    if not bool(held.any()):
        return find_minimum(losses, starts, batch, domain)[:2]
    own = compute_output(subject, batch)

    def hold(output: Tensor, batch: Batch) -> Tensor:
        return losses(torch.where(held, own, output), batch)

    found, loss, _ = find_minimum(hold, starts, batch, domain)
    return torch.where(held, own, found) if len(found) == len(own) else found, loss


@once
def choose_domain(subject: Subject) -> OutputDomain:
    """Return where to search: anywhere, unless the loss rejects or exploits impossible outputs.

    A loss of probabilities raises beyond 0 and 1, or falls without end where they need not sum to
    one. But a softmax in front of a loss that has its own must not hide behind its bounds.
    """
    domain = find_output_domain(subject)
    is_open = domain.kind in ("free", "held", "log_probabilities")
    if is_open or subject.task.scored_together > 1:
        return domain if is_open else FREE
    if domain.kind == "bounded" and _is_undefined_beyond(subject, domain):
        return domain
    batch = probe(subject)
    output = compute_output(subject, batch)
    if is_per_token(output, batch[LABEL]):
        try:
            _, floor = find_right_tokens(subject.task, output, batch)
        except Exception:  # losses of probabilities reject all other numbers
            return domain
        return domain if not np.isfinite(floor) or floor < 0 else FREE
    starts = make_starts(output)
    ideals, rooms = [], []
    for each in (FREE, domain):
        try:
            search = partial(_minimise_within, each, subject, subject.task.losses, batch=batch)
            constant, loss = search(starts)
            ideals.append(search((constant.expand_as(output),)))
        except Exception:  # losses of probabilities reject all other numbers
            return domain if each is FREE else FREE
        rooms.append(loss - ideals[-1][1])
    ((ideal, least), (_, own_least)), (room, own_room) = ideals, rooms
    is_unbounded = not np.isfinite(room) or least < 0
    # Where one output suits all labels, the loss tells them apart only in its own domain.
    is_senseless = room <= 1e-3 * own_room and not domain.holds(ideal)
    is_stuck = own_least < least - 1e-3 * abs(least) - 1e-9
    is_needed = is_unbounded or is_senseless or is_stuck
    return domain if np.isfinite(own_room) and is_needed else FREE


def _is_undefined_beyond(subject: Subject, domain: OutputDomain) -> bool:
    """Whether some loss is not a number beyond the bounds, as of a variance below zero."""
    batch = probe(subject)
    beyond = compute_output(subject, batch)
    for bound in (domain.low, domain.high):
        if bound is not None:
            beyond = torch.where(bound.isfinite(), 2 * bound - beyond, beyond)
    try:
        with torch.no_grad():
            return bool(subject.task.losses(beyond, batch).isnan().any())
    except Exception:  # as losses of probabilities do; the search finds that out
        return False


def make_starts(output: Tensor) -> tuple[Tensor, Tensor]:
    """Return the constants, [1, …], that a search for the best one begins with."""
    return torch.zeros_like(output[:1]), output.mean(dim=0, keepdim=True)


def reach_loss_by_steps(
    subject: Subject, start: Tensor, batch: Batch, steps: int, rate: float
) -> float:
    """Return the least mean loss that Adam reaches in so many steps on the outputs themselves."""
    domain, least = choose_domain(subject), np.inf
    values = domain.free(start.detach()).clone().requires_grad_()
    optimizer = torch.optim.Adam([values], lr=rate)
    for _ in range(steps):
        loss = compute_mean_loss(subject.task.losses(domain.outputs(values), batch), batch)
        least = min(least, float(loss.detach()))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return float(least)


@once
def find_output_domain(subject: Subject) -> OutputDomain:
    """Return the bounds of the model's outputs; free where none are found.

    Of those that the loss rejects beyond 0 and 1, as of means of probabilities, these.
    """
    found = _find_reached_domain(subject)
    if found.kind not in ("free", "bounded") or not _is_of_shares(subject):
        return found
    output = compute_output(subject, probe(subject))
    ones = torch.ones(1 if output.ndim == 1 else output.shape[-1])
    return OutputDomain("bounded", 0 * ones, ones)


def _is_of_shares(subject: Subject) -> bool:
    """Whether the loss takes the model's outputs, all between 0 and 1, and no others."""
    batch = probe(subject)
    output = compute_output(subject, batch)
    if not output.is_floating_point() or output.min() < 0 or output.max() > 1:
        return False
    for beyond in (output - 1.5, output + 1.5):
        try:
            subject.task.losses(beyond, batch)
        except Exception:  # as binary cross-entropy of probabilities does
            continue
        return False
    return True


def _find_reached_domain(subject: Subject) -> OutputDomain:
    """Return the bounds that outputs keep when the last layers are turned up."""
    together = subject.task.scored_together
    batch = select_head(subject.balanced(max(DOMAIN_ROWS, together)), max(DOMAIN_ROWS, together))
    pushed = push_outputs(subject, batch, (LOUDER, LOUDER**2))
    if pushed is None or not all(bool(torch.isfinite(each).any()) for each in pushed):
        return FREE
    # Without the loudest, whose logarithms of a million are rounded to a hundredth.
    outputs = torch.cat(pushed[:-1])
    if outputs.ndim > 1 and outputs.shape[-1] > 1 and not bool(outputs.isnan().any()):
        if columns := _count_normalised(outputs.exp()):
            return OutputDomain("log_probabilities", columns=columns)
        if columns := _count_normalised(outputs):
            return OutputDomain("probabilities", columns=columns)
    width = 1 if outputs.ndim == 1 else outputs.shape[-1]
    return _find_bounds([each.reshape(-1, width) for each in pushed])


def _count_normalised(outputs: Tensor) -> int:
    """Return how many leading columns, the most, are positive and sum to one in every row."""
    ones = ((outputs.cumsum(dim=-1) - 1).abs() <= ROUNDING) & (outputs.cummin(dim=-1).values >= 0)
    counts = ones.flatten(0, -2).all(dim=0).nonzero().flatten() + 1
    return int(counts.max()) if len(counts) and int(counts.max()) > 1 else 0


def push_outputs(
    subject: Subject, batch: Batch, factors: tuple[float, ...] = (LOUDER,)
) -> list[Tensor] | None:
    """Return outputs as they are, then with the last layer scaled by each factor, both signs.

    A column that the last layer does not change, as that of another head, is turned up by the last
    one that does. None if no layer is found that changes any.
    """
    model = build_noisy_model(subject)
    before = run_model(model, batch)
    pushed = [before, *(torch.cat([before, before]) for _ in factors)]
    for layer in reversed(_layers_in_order(model, batch)):
        untouched = _is_untouched(before, pushed[1])
        if not bool(untouched.any()):
            break
        turned = _turn_up(model, layer, batch, factors)
        pushed[1:] = [
            torch.where(untouched, own, each) for own, each in zip(turned, pushed[1:], strict=True)
        ]
    return None if bool(_is_untouched(before, pushed[1]).all()) else pushed


def _turn_up(
    model: nn.Module, layer: nn.Module, batch: Batch, factors: tuple[float, ...]
) -> list[Tensor]:
    """Return outputs under each factor on the layer's weights, which are restored, both signs."""
    parameters = list(layer.parameters(recurse=False))
    kept = [parameter.detach().clone() for parameter in parameters]
    turned = []
    with torch.no_grad():
        for factor in factors:
            both = []
            for sign in (factor, -factor):
                for parameter, own in zip(parameters, kept, strict=True):
                    parameter.copy_(sign * own)
                both.append(run_model(model, batch))
            turned.append(torch.cat(both))
        for parameter, own in zip(parameters, kept, strict=True):
            parameter.copy_(own)
    return turned


def _is_untouched(before: Tensor, turned: Tensor) -> Tensor:
    """Return which columns of the last dimension did not change; one value for outputs [B]."""
    same = turned == torch.cat([before, before])
    return same.all() if before.ndim == 1 else same.flatten(0, -2).all(dim=0)


def _find_bounds(pushed: list[Tensor]) -> OutputDomain:
    """Return the bounds that each column [rows, columns] keeps under every factor.

    A column that no weight reaches has both bounds at its mean.
    """
    before, some, more = pushed
    low = _kept(some.amin(dim=0), more.amin(dim=0), -torch.inf)
    high = _kept(some.amax(dim=0), more.amax(dim=0), torch.inf)
    is_untouched = _is_untouched(before, some)
    is_unknown = ((high - low).abs() < ROUNDING) | is_untouched
    low = torch.where(is_unknown, -torch.inf, low)
    # Sums of positive parts fall below zero under no sign, and need not come near it.
    is_positive = torch.cat([some, more]).amin(dim=0) >= 0
    low = torch.where(is_positive & low.isinf() & ~is_unknown, 0.0, low)
    high = torch.where(is_unknown, torch.inf, high)
    is_bounded = bool((low.isfinite() | high.isfinite()).any())
    is_held = is_untouched & (before.std(dim=0, correction=0) > ROUNDING)
    if not is_bounded and not bool(is_held.any()):
        return FREE
    low, high = (torch.where(is_held, before.mean(dim=0), each) for each in (low, high))
    return OutputDomain("bounded" if is_bounded else "held", low, high)


def _kept(some: Tensor, more: Tensor, otherwise: float) -> Tensor:
    is_same = torch.isclose(some, more, rtol=1e-3, atol=ROUNDING) & more.isfinite()
    return torch.where(is_same, more, otherwise)


def _layers_in_order(model: nn.Module, batch: Batch) -> list[nn.Module]:
    """Modules with parameters of their own, in the order of the forward pass; layers come last.

    A learned scale belongs to the model itself, which ends after its last layer, as does a token
    before its first one.
    """
    order: list[nn.Module] = []
    with watch_modules(model, lambda name, module, *_: order.append(module)):
        run_model(model, batch)
    owners = [each for each in dict.fromkeys(order) if list(each.parameters(recurse=False))]
    return sorted(owners, key=lambda each: not list(each.children()))


def has_row_per_label(output: Tensor, labels: Tensor) -> bool:
    """Whether an output [B, T, V] has a row of numbers for each of the labels [B, T]."""
    return labels.ndim == 2 and output.ndim == 3 and labels.shape == output.shape[:2]


def is_per_token(output: Tensor, labels: Tensor) -> bool:
    """Whether an output [B, T, V] scores the V codes of which labels [B, T] name one.

    Quantiles, or a mean and a deviation, of the numbers of a forecast have the same form.
    """
    is_code = not labels.is_floating_point() and labels.dtype != torch.bool
    return has_row_per_label(output, labels) and is_code and int(labels.max()) < output.shape[-1]


def find_right_tokens(
    task: Task, output: Tensor, batch: Batch, domain: OutputDomain = FREE
) -> tuple[Tensor, float]:
    """Return the best output that scores the right token and all others equally, with its loss."""
    labels = find_wanted_tokens(task, output, batch)
    is_code = ((labels >= 0) & (labels < output.shape[-1])).unsqueeze(-1)
    codes = labels.clamp(0, output.shape[-1] - 1).unsqueeze(-1)
    right = torch.zeros_like(output).scatter_(-1, codes, is_code.to(output.dtype))

    def loss(scale: float) -> float:
        return measure_loss(task.losses, domain.outputs(right * scale), batch)

    found = minimize_scalar(loss, bounds=(0.0, LARGEST_SCALE), method="bounded")
    scale = min((float(found.x), LARGEST_SCALE), key=loss)
    return domain.outputs(right * scale), loss(scale)


def find_wanted_tokens(task: Task, output: Tensor, batch: Batch) -> Tensor:
    """Return the target code of the loss at each position, [B, T]; negative where there is none.

    Taken from its gradient, so that labels may be shifted in `encode` or in `losses`.
    Where the loss is flat around zero, as a clipped one is, the labels themselves.
    """
    free = torch.zeros_like(output, requires_grad=True)
    losses = task.losses(free, batch)
    if not losses.requires_grad:
        return batch[LABEL].long()
    (gradient,) = torch.autograd.grad(losses.sum(), free)
    is_wanted = (gradient != 0).any(dim=2)
    if not bool(is_wanted.any()):
        return batch[LABEL].long()
    return torch.where(is_wanted, gradient.argmin(dim=2), -1)


def find_counted_tokens(task: Task, output: Tensor, batch: Batch) -> Tensor | None:
    """Return whether each position gets a gradient, [B, T]; None if outputs are not scores."""
    if not is_per_token(output, batch[LABEL]):
        return None
    output = output.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(task.losses(output, batch).sum(), output)
    return (gradient != 0).any(dim=2)
