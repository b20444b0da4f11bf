"""The loss, examined apart from the model."""

import numpy as np
import torch
from torch import Tensor

from components.check_skeleton.free_outputs import best_outputs, output_of, probe
from components.check_skeleton.subject import Subject
from components.check_skeleton.verdict import Judge
from components.contracts.skeleton import CheckResult
from components.engine.task import LABEL

# Label smoothing of 0.1 keeps 15 to 29 % of the constant's loss for 1,000 to 2 classes; softmax or
# sigmoid applied twice keeps 45 to 75 % (both from their formulas). 40 lies between.
HIGHEST_FLOOR = 0.4
ZERO_LOSS = 0.05


def per_example_losses(subject: Subject) -> CheckResult:
    """Does the loss give one finite number per example, from that example alone?"""
    judge = Judge(
        "per_example_losses",
        expected="finite losses of shape [B], the same for a batch as for its halves",
        source="the engine averages over the global batch; accumulation is exact only then",
    )
    task, batch = subject.task, probe(subject)
    rows = len(batch[LABEL])
    output = output_of(subject, batch)
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
        return judge.failed(
            f"{int((~torch.isfinite(losses)).sum())} of {rows} initial losses are not finite",
            hint="look for log(0), division by zero and NaN inputs",
        )
    group = task.scored_together
    half = rows // 2 // group * group
    ends = slice(0, half), slice(half, rows)
    halves = [task.losses(output[e], {n: t[e] for n, t in batch.items()}) for e in ends]
    difference = float((torch.cat(halves) - losses).abs().max())
    if difference > 1e-5 * (1 + float(losses.abs().max())):
        return judge.failed(
            f"losses of a batch and of its halves differ by up to {difference:.3g}",
            hint="the loss mixes examples: look for batch means, sorting or a wrong dimension",
        )
    return judge.passed(f"shape [{rows}], mean {float(losses.mean()):.4g}")


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
    if free.constant_loss <= 0 or not np.isfinite(free.floor):
        return judge.failed(measured, hint="the loss is negative, zero or not finite everywhere")
    if share > HIGHEST_FLOOR:
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
    batch = probe(subject)
    away = free.constant - free.ideal
    length = away.flatten(1).norm(dim=1).clamp_min(1e-12)
    unit = away / length.reshape(-1, *[1] * (away.ndim - 1))
    # In units of the outputs: logits for classes, the labels' spread for regression.
    scale = float(length.square().mean().sqrt()) if subject.task.kind == "regression" else 1.0
    norms = {}
    for distance in (3.0, 10.0, 30.0):
        output = (free.constant + distance * scale * unit).requires_grad_()
        (gradient,) = torch.autograd.grad(subject.task.losses(output, batch).sum(), output)
        norms[distance] = gradient.flatten(1).norm(dim=1)
    silent = {distance: float((norm == 0).double().mean()) for distance, norm in norms.items()}
    shown = ", ".join(f"{share:.0%} at {distance:g}" for distance, share in silent.items())
    if max(silent.values()) > 0:
        return judge.failed(
            f"examples without gradient by distance from the label: {shown}",
            hint="the loss is clipped or saturates; use training.clipping instead",
        )
    if float(norms[30.0].median()) < 1e-3 * float(norms[3.0].median()):
        return judge.warned(
            f"the gradient falls from {float(norms[3.0].median()):.3g} to "
            f"{float(norms[30.0].median()):.3g} as outputs get worse",
            hint="the loss saturates: confident mistakes are hardly corrected",
        )
    return judge.passed("every example has a gradient at 3, 10 and 30 times the usual distance")
