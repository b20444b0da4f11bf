"""The loss, examined apart from the model."""

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import (
    FreeOutputs,
    Losses,
    asked_domain,
    best_outputs,
    free_outputs,
    labels_off,
    minimised,
    output_of,
    probe,
)
from perennial.check_skeleton.output_domain import OutputDomain, output_domain
from perennial.check_skeleton.subject import Subject, mean_loss, rows_of, stirred_model
from perennial.check_skeleton.token_outputs import is_per_token
from perennial.check_skeleton.verdict import Judge
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch, Task, inputs_of

# Label smoothing of 0.1 keeps 15 to 29 % of the constant's loss for 1,000 to 2 classes; softmax or
# sigmoid applied twice keeps 45 to 75 % (both from their formulas). 40 lies between.
HIGHEST_FLOOR = 0.4
ZERO_LOSS = 0.05
# Smoothing of 0.3 keeps 24 % of the loss with two classes, 12 % with ten; other labels keep all.
MISLED = 0.6
ROUNDING = 1e-5
AGREED = 0.1
FADED = 0.05
LATE = 5.0
NEAR, FAR = 3.0, 30.0


def per_example_losses(subject: Subject) -> CheckResult:
    """Does the loss give one finite number per example, from that example alone?"""
    judge = Judge(
        "per_example_losses",
        expected="finite losses of shape [B], the same for a batch as for its halves",
        source="the engine averages over the global batch; accumulation is exact only then",
    )
    task, batch = subject.task, probe(subject)
    rows = len(batch[LABEL])
    with torch.no_grad():
        output = stirred_model(subject)(**inputs_of(batch))
    if not isinstance(output, Tensor) or output.shape[:1] != (rows,):
        return judge.failed(
            f"the model returns {list(getattr(output, 'shape', ())) or type(output).__name__} for "
            f"{rows} examples",
            hint="return one tensor whose first dimension is the example",
        )
    losses = task.losses(output, batch)
    if losses.shape != (rows,):
        return judge.failed(
            f"losses have shape {list(losses.shape)} for {rows} examples",
            hint="use reduction='none' and keep one loss per example; the engine averages",
        )
    if not bool(torch.isfinite(losses).all()):
        # The noise on the weights may be too much for exponentials; the model itself counts.
        output = output_of(subject, batch)
        losses = task.losses(output, batch)
    if not bool(torch.isfinite(losses).all()):
        return judge.failed(
            f"{int((~torch.isfinite(losses)).sum())} of {rows} initial losses are not finite",
            hint="look for log(0), division by zero and NaN inputs",
        )
    return _judged_mixing(judge, subject, output, batch)


def _judged_mixing(judge: Judge, subject: Subject, output: Tensor, batch: Batch) -> CheckResult:
    """Losses of halves, of one group alone, and in reverse order must be those of the batch."""
    task, rows = subject.task, len(output)
    losses = task.losses(output, batch)
    group = task.scored_together
    half = rows // 2 // group * group
    ends = slice(0, half), slice(half, rows)
    halves = torch.cat([task.losses(output[e], rows_of(batch, e)) for e in ends])
    if difference := _difference(halves, losses):
        return judge.failed(
            f"losses of a batch and of its halves differ by up to {difference:.3g}",
            hint="the loss mixes examples: look for batch means, sorting or a wrong dimension"
            + ("; or it compares more of them than `scored_together` says" if group > 1 else ""),
        )
    first = slice(0, group)
    alone = task.losses(output[first], rows_of(batch, first))
    if difference := _difference(alone, losses[first]):
        return judge.failed(
            f"losses of the first {group} differ by up to {difference:.3g} without the rest",
            hint="the loss compares examples with each other: let `scored_together` say how many",
        )
    if difference := _order_matters(task.losses, output, batch, group):
        return judge.failed(
            f"losses differ by up to {difference:.3g} when the same examples come in reverse order",
            hint="each output is compared with another example's answer: look for a shift, an "
            "index that is off by one, answers off the diagonal, or examples left out",
        )
    return judge.passed(f"shape [{rows}], mean {float(losses.mean()):.4g}")


def training_losses(subject: Subject) -> CheckResult:
    """Does what is minimised lead to what is measured?"""
    judge = Judge(
        "training_losses",
        expected=f"outputs that minimise `training_losses` keep less than {MISLED:.0%} of the best "
        "constant's loss, and teach every example",
        source="guides: wrong labels and clipped losses fail silently; checks and evaluation see "
        "`losses` only",
    )
    task, batch = subject.task, probe(subject)
    if type(task).training_losses is Task.training_losses:
        return judge.skipped("training minimises `losses` itself")
    with torch.no_grad():
        output = stirred_model(subject)(**inputs_of(batch))
    losses = task.training_losses(output, batch)
    if losses.shape != (len(batch[LABEL]),) or not bool(torch.isfinite(losses).all()):
        return judge.failed(
            f"training losses have shape {list(losses.shape)} for {len(batch[LABEL])} examples, or "
            "are not finite",
            hint="use reduction='none' and keep one loss per example; the engine averages",
        )
    draws = bool(_difference(task.training_losses(output, batch), losses))
    difference = _order_matters(task.training_losses, output, batch, group=1)
    if difference and not draws:
        return judge.failed(
            f"training losses differ by up to {difference:.3g} when the same examples come in "
            "reverse order",
            hint="each output is compared with another example's answer: look for a shift, an "
            "index that is off by one, answers off the diagonal, or examples left out",
        )
    if is_per_token(output, batch[LABEL]):
        return judge.passed(f"one per example, mean {float(losses.mean()):.4g}")
    return _judged_minimum(judge, subject, output, batch)


def _judged_minimum(judge: Judge, subject: Subject, output: Tensor, batch: Batch) -> CheckResult:
    """Where free outputs end that minimise the training's loss, by the loss that is measured."""
    task = subject.task
    free = free_outputs(subject, output, batch)
    # Examples that are compared get no gradient where all outputs are alike.
    start = output if task.scored_together > 1 else free.constant.expand_as(output)
    reached, least = minimised(subject, task.training_losses, (start.clone(),), batch)
    with torch.no_grad():
        loss = float(mean_loss(task.losses(reached, batch), batch))
    share = (loss - free.floor) / max(free.constant_loss - free.floor, 1e-12)
    most = free.constant_loss
    shown = f"at its minimum the loss is {loss:.4g}, of the best constant's {most:.4g}"
    if share > MISLED:
        return judge.failed(
            f"{shown}, where {free.floor:.4g} can be reached",
            hint="training_losses and losses disagree on the labels: their order, their shift, a "
            "wrong dimension, or labels that do not enter",
        )
    if task.scored_together > 1:
        return judge.passed(shown)
    if all(
        _leaves_silent(subject, free, batch, domain)
        for domain in (subject.once(asked_domain), subject.once(output_domain))
    ):
        return judge.failed(
            f"{shown}, but some badly wrong examples have no gradient",
            hint="the training loss is clipped or saturates; use training.clipping instead",
        )
    with torch.no_grad():
        most = float(mean_loss(task.training_losses(free.constant.expand_as(output), batch), batch))
    if least > HIGHEST_FLOOR * most:
        return judge.warned(
            f"{shown}, but the training's own loss falls from {most:.4g} to {least:.4g} only",
            hint="sigmoid or softmax is applied before a loss that applies it; right for label "
            "smoothing of more than 0.2",
        )
    return judge.passed(shown)


def _difference(first: Tensor, second: Tensor) -> float:
    """The largest difference, 0 where it is rounding."""
    largest = float((first - second).abs().max())
    return largest if largest > ROUNDING * (1 + float(second.abs().max())) else 0.0


def _order_matters(losses: Losses, output: Tensor, batch: Batch, group: int) -> float:
    """How much losses depend on the order of examples; reversing keeps whole groups together."""
    rows = max(len(output) // group, 1) * group
    batch, output = rows_of(batch, slice(rows)), output[:rows]
    back = torch.arange(len(output)).flip(0)
    return _difference(losses(output[back], rows_of(batch, back))[back], losses(output, batch))


def loss_floor(subject: Subject) -> CheckResult:
    """Can the loss reach zero at all, whatever the model?"""
    judge = Judge(
        "loss_floor",
        expected=f"free outputs bring the loss below {ZERO_LOSS:.0%} of the best constant's",
        source="guides: overfit to zero loss; thresholds from the formulas of label smoothing and "
        "of softmax applied twice",
    )
    free = best_outputs(subject)
    share = free.floor / max(free.constant_loss, 1e-12)
    measured = f"floor {free.floor:.4g} of {free.constant_loss:.4g} ({share:.0%})"
    if not np.isfinite(free.floor) or free.constant_loss == 0:
        return judge.failed(measured, hint="the loss is zero or not finite, whatever the output")
    if free.constant_loss < 0 or free.floor < 0:
        shown = f"floor {free.floor:.4g}, best constant {free.constant_loss:.4g}"
        if subject.task.kind == "regression" and labels_off(subject, free.ideal) < AGREED:
            return judge.passed(f"{shown}: below zero, and least where the labels are predicted")
        return judge.warned(
            shown,
            hint="is a sign wrong? Right for log-densities and for Poisson losses without their "
            "constant; add it, so that zero is the best",
        )
    if share > HIGHEST_FLOOR and not _is_inner(subject, free):
        return judge.failed(
            measured,
            hint="no output fits the labels: sigmoid or softmax is applied before a loss that "
            "applies it, labels do not enter, or the loss is clipped",
        )
    if share > ZERO_LOSS:
        return judge.warned(
            measured,
            hint="the loss has a floor; right for label smoothing, wrong for a clipped loss",
        )
    return judge.passed(measured)


def loss_not_clipped(subject: Subject) -> CheckResult:
    """Do badly wrong examples still teach?"""
    judge = Judge(
        "loss_not_clipped",
        expected="a gradient for every example, however wrong its output",
        source="guides: clipping the loss instead of the gradient ignores outliers",
    )
    free = best_outputs(subject)
    domain = subject.once(asked_domain)
    norms, most = _gradients(subject, subject.task.losses, free, probe(subject), domain)
    silent = {distance: float((norm == 0).double().mean()) for distance, norm in norms.items()}
    shown = ", ".join(f"{share:.0%} at {distance:g}" for distance, share in silent.items())
    near = max(share for distance, share in silent.items() if distance < FAR)
    if near > 0 or (silent.get(FAR, 0.0) > 0 and not _ends_late(norms, most, free)):
        return judge.failed(
            f"examples without gradient by distance from the label: {shown}",
            hint="the loss is clipped or saturates; use training.clipping instead",
        )
    if FAR in norms and float(norms[FAR].median()) < 1e-3 * float(norms[NEAR].median()):
        return judge.warned(
            f"the gradient falls from {float(norms[NEAR].median()):.3g} to "
            f"{float(norms[FAR].median()):.3g} as outputs get worse",
            hint="the loss saturates: confident mistakes are hardly corrected",
        )
    return judge.passed("every example has a gradient at 3, 10 and 30 times the usual distance")


def _leaves_silent(subject: Subject, free: FreeOutputs, batch: Batch, domain: OutputDomain) -> bool:
    """Whether the training's loss has no gradient for some badly wrong outputs of a domain."""
    norms, _ = _gradients(subject, subject.task.training_losses, free, batch, domain)
    return any(bool((norm == 0).any()) for distance, norm in norms.items() if distance < FAR)


def _gradients(
    subject: Subject, losses: Losses, free: FreeOutputs, batch: Batch, domain: OutputDomain
) -> tuple[dict[float, Tensor], float]:
    """Distance from the best constant, away from the label → norm of each example's gradient.

    With it, the mean loss at the largest distance.

    Where the model's outputs are bounded, distances are those before the function that does it,
    and the largest is left out: such functions are flat there in any case.
    """
    is_bounded = domain.kind not in ("free", "log_probabilities")
    constant, ideal = domain.free(free.constant), domain.free(free.ideal)
    away = constant - ideal
    length = away.reshape(len(away), -1).norm(dim=1)
    # Examples whose label is the best constant lie nowhere off it.
    apart = length > 1e-3 * float(length.max())
    unit = away / length.clamp_min(1e-12).reshape(-1, *[1] * (away.ndim - 1))
    # In units of the outputs: logits for classes, the labels' spread for regression.
    is_number = subject.task.kind == "regression" and not is_bounded
    scale = float(length.square().mean().sqrt()) if is_number else 1.0
    norms, most = {}, 0.0
    for distance in (NEAR, 10.0) if is_bounded else (NEAR, 10.0, FAR):
        moved = (constant + distance * scale * unit).detach().requires_grad_()
        found = losses(domain.outputs(moved), batch)
        (gradient,) = torch.autograd.grad(found.sum(), moved)
        norms[distance] = gradient.reshape(len(gradient), -1).norm(dim=1)[apart]
        most = float(found.detach()[apart].mean())
    return norms, most


def _ends_late(norms: dict[float, Tensor], most: float, free: FreeOutputs) -> bool:
    """Whether gradients end where numbers do: logarithms cut at 1e-7, squares of probabilities.

    Those cost many times the best constant by then, these have hardly any gradient before.
    """
    fades = float(norms[10.0].median()) < FADED * float(norms[NEAR].median())
    return fades or most > LATE * free.constant_loss


def _is_inner(subject: Subject, free: FreeOutputs) -> bool:
    """Whether the loss rises beyond its minimum, as with smoothed labels.

    Behind a second sigmoid or a clip it stays as it is, however far outputs go.
    """
    domain = subject.once(asked_domain)
    constant, ideal = domain.free(free.constant), domain.free(free.ideal)
    beyond = domain.outputs(constant + 3.0 * (ideal - constant))
    batch = probe(subject)
    loss = float(mean_loss(subject.task.losses(beyond, batch), batch))
    return loss > free.floor + 0.05 * (free.constant_loss - free.floor)
