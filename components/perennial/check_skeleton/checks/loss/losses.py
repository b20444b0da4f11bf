"""Check losses: of single examples, their floor, clipping, class weights, first values."""

import math

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.checks.loss.broadcasting import find_shared_output
from perennial.check_skeleton.checks.loss.densities import DENSITY, is_log_density
from perennial.check_skeleton.checks.loss.position_axes import find_normalised_positions
from perennial.check_skeleton.checks.loss.unbounded import judge_negative
from perennial.check_skeleton.config import INITIAL_LOSS_TOLERANCE
from perennial.check_skeleton.free_outputs import (
    PROBED_ROWS,
    FreeOutputs,
    choose_domain,
    compute_constant_losses,
    compute_output,
    compute_zero_losses,
    find_best_outputs,
    find_training_constant,
    is_per_token,
    make_starts,
    measure_label_error,
    minimise,
    probe,
)
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.minimum import OutputDomain
from perennial.check_skeleton.models import (
    Losses,
    build_noisy_model,
    compute_mean_loss,
    is_own_loss,
    measure_loss,
    run_model,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, select_head, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.task import LABEL, WEIGHT, Batch, inputs_of

ONE_EACH = "use reduction='none' and keep one loss per example; the engine averages"
SHIFTED = (
    "each output is compared with another example's label: look for a shift, an index that is off "
    "by one, labels off the diagonal, or examples left out"
)
OF_TRAINING = (
    "needs_whole_batch concerns training: compare the batch in training_losses, and measure single "
    "examples, or groups of scored_together, in losses"
)
# Label smoothing of 0.1 leaves 15 to 29 % of the constant's loss for 1,000 to 2 classes; softmax
# or sigmoid applied twice leaves 45 to 75 % (both from their formulas). 40 lies between.
HIGHEST_FLOOR = 0.4
ZERO_LOSS = 0.05
# A parabola rises by 1% of the constant's loss where outputs go a tenth of the way to it.
BESIDE = 0.1
RISE_BESIDE = 1e-3
ROUNDING = 1e-5
AGREED = 0.1
FADED = 0.05
LATE = 5.0
NEAR, FAR = 3.0, 30.0

# With an initial loss 1.5 times the best constant's, the first updates only learn the label's
# mean. Zero logits at 10 % positives are above it (0.69 against 0.33), at 30 % (0.61) below.
COSTLY_START = 1.5
# Of a loss of distances or amounts, whose first value no theory gives: healthy denoisers and
# triplets begin at 1.5 and 1.8 times the loss of zeros.
DERIVED_TOLERANCE = 1.0
NOISE_ERRORS = 3.0
DRAWS = 3  # of initial weights
# Deviation of outputs over examples: logits 2 nats apart raise the initial loss by ln 2 / 5.
WILD_OUTPUTS = 2.0
# Standardised inputs lie within a few deviations, raw pixels and amounts do not.
LARGE_INPUTS = 100.0
SAME_NUMBER = 0.05
SHOWN_NUMBERS = 16


@check(
    "per_example_losses",
    expects="finite losses of shape [B], the same for a batch as for its halves",
    source="the engine averages over the global batch; gradient accumulation relies on it",
)
def check_per_example_losses(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the loss gives one finite number per example, from that example alone."""
    task, batch = subject.task, probe(subject)
    rows = len(batch[LABEL])
    output = run_model(build_noisy_model(subject), batch)
    if not isinstance(output, Tensor) or output.shape[:1] != (rows,):
        return judge.failed(
            f"the model returns {list(getattr(output, 'shape', ())) or type(output).__name__} for "
            f"{rows} examples",
            hint="return one tensor whose first dimension is the example",
        )
    losses = task.losses(output, batch)
    if losses.shape != (rows,):
        return judge.failed(
            f"losses have shape {list(losses.shape)} for {rows} examples", hint=ONE_EACH
        )
    if not bool(torch.isfinite(losses).all()):
        # The noise on the weights may overflow exponentials; what matters is the model itself.
        output = compute_output(subject, batch)
        losses = task.losses(output, batch)
    if not bool(torch.isfinite(losses).all()):
        return judge.failed(
            f"{int((~torch.isfinite(losses)).sum())} of {rows} initial losses are not finite",
            hint="look for log(0), division by zero and NaN inputs",
        )
    return _judge_mixing(judge, subject, output, batch)


def _judge_mixing(judge: Judge, subject: Subject, output: Tensor, batch: Batch) -> CheckResult:
    """Check that losses of halves, of one group and in reverse order equal the batch's."""
    task, rows = subject.task, len(output)
    losses = task.losses(output, batch)
    group = task.scored_together
    half = rows // 2 // group * group
    ends = slice(0, half), slice(half, rows)
    halves = torch.cat([task.losses(output[e], select_rows(batch, e)) for e in ends])
    if difference := measure_difference(halves, losses):
        return judge.failed(
            f"losses of a batch and of its halves differ by up to {difference:.3g}",
            hint="the loss mixes examples: look for batch means, sorting or a wrong dimension"
            + ("; or it compares more than `scored_together` examples" if group > 1 else "")
            + (f"; {OF_TRAINING}" if task.needs_whole_batch else ""),
        )
    alone = task.losses(output[:group], select_head(batch, group))
    if difference := measure_difference(alone, losses[:group]):
        return judge.failed(
            f"losses of the first {group} examples differ by up to {difference:.3g} without the "
            "rest",
            hint="the loss compares examples with each other: set `scored_together` to their "
            "number",
        )
    if difference := measure_order_effect(task.losses, output, batch, group):
        return judge.failed(
            f"losses differ by up to {difference:.3g} when the same examples come in reverse order",
            hint=SHIFTED,
        )
    if (axis := find_normalised_positions(subject, task.losses)) is not None:
        return judge.failed(
            f"a constant added along axis {axis} of outputs {list(output.shape)} changes no loss; "
            "one added to all classes of a position does",
            hint="the softmax runs over positions: let it run over the axis of the classes, 1 of "
            "[B, C, H, W] and the last of [B, T, C]",
        )
    if shared := find_shared_output(subject, task.losses):
        return judge.failed(
            f"one output is compared with {shared.count} labels of different means: "
            f"{list(shared.output)} with {list(shared.labels)}",
            hint="the shapes are broadcast: let the model return one output for each label; where "
            "all labels measure the same thing, average them in encode",
        )
    return judge.passed(f"shape [{rows}], mean {float(losses.mean()):.4g}")


def measure_difference(first: Tensor, second: Tensor) -> float:
    """Return the largest difference; 0 if it is rounding."""
    largest = float((first - second).abs().max())
    return largest if largest > ROUNDING * (1 + float(second.abs().max())) else 0.0


def measure_order_effect(losses: Losses, output: Tensor, batch: Batch, group: int) -> float:
    """Return how much losses depend on the examples' order; groups stay together."""
    rows = max(len(output) // group, 1) * group
    batch, output = select_rows(batch, slice(rows)), output[:rows]
    back = torch.arange(len(output)).flip(0)
    return measure_difference(
        losses(output[back], select_rows(batch, back))[back], losses(output, batch)
    )


@check(
    "loss_floor",
    expects=f"the best outputs have a loss below {ZERO_LOSS:.0%} of the best constant's",
    source="guides: overfit to zero loss; thresholds from the formulas of label smoothing and "
    "of softmax applied twice",
    needs_labels=True,
)
def check_loss_floor(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the loss can reach zero, whatever the model."""
    free = find_best_outputs(subject)
    share = free.floor / max(free.constant_loss, 1e-12)
    measured = f"floor {free.floor:.4g} of {free.constant_loss:.4g} ({share:.0%})"
    if not np.isfinite(free.floor) or free.constant_loss == 0:
        return judge.failed(measured, hint="the loss is zero or not finite, whatever the output")
    is_number = subject.task.kind == "regression"
    is_at_labels = is_number and measure_label_error(subject, free.ideal) < AGREED
    if min(free.constant_loss, free.floor) < -ROUNDING:
        shown = f"floor {free.floor:.4g}, best constant {free.constant_loss:.4g}"
        return judge_negative(judge, subject, shown, is_at_labels=is_at_labels)
    if share > HIGHEST_FLOOR and not _is_inner(subject, free):
        return judge.failed(
            measured,
            hint="no output fits the labels: sigmoid or softmax is applied before a loss that "
            "applies it, labels are not used, or the loss is clipped",
        )
    # No rate makes a count certain: of few claims, a Poisson loss keeps half of the constant's.
    if share <= ZERO_LOSS:
        return judge.passed(measured)
    if is_at_labels and _rises_nearby(subject, free):
        measured += ", minimal where the labels are predicted"
    elif is_log_density(subject):
        measured += f"; {DENSITY}"
    else:
        return judge.warned(
            measured,
            hint="the loss has a floor; correct for label smoothing, wrong for a clipped loss",
        )
    return judge.passed(measured)


@check(
    "loss_not_clipped",
    expects="a gradient for every example, however wrong its output",
    source="guides: clipping the loss instead of the gradient ignores outliers",
    needs_labels=True,
)
def check_loss_not_clipped(subject: Subject, judge: Judge) -> CheckResult:
    """Check that badly wrong examples still have a gradient."""
    free = find_best_outputs(subject)
    domain = choose_domain(subject)
    norms, found = measure_gradients(subject, subject.task.losses, free, probe(subject), domain)
    most = float(found[max(found)].mean())
    silent = {distance: float((norm == 0).double().mean()) for distance, norm in norms.items()}
    shown = ", ".join(f"{share:.0%} at {distance:g}" for distance, share in silent.items())
    # Outputs that the model cannot make, such as thresholds out of order, may have a probability of
    # 0 at once: a logarithm that is clipped there costs many times the best constant, too.
    near = max(
        float(((norm == 0) & (found[distance] <= LATE * free.constant_loss)).double().mean())
        for distance, norm in norms.items()
        if distance < FAR
    )
    # Logarithms clipped at 1e-7 cost many times the best constant by then; squared probabilities
    # have hardly any gradient before.
    is_faded = float(norms[10.0].median()) < FADED * float(norms[NEAR].median())
    is_late = is_faded or most > LATE * free.constant_loss
    if near > 0 or (silent.get(FAR, 0.0) > 0 and not is_late):
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
    if any(silent.values()):
        return judge.passed(f"examples without gradient, at losses that no clip keeps low: {shown}")
    return judge.passed("every example has a gradient at 3, 10 and 30 times the usual distance")


def measure_gradients(
    subject: Subject, losses: Losses, free: FreeOutputs, batch: Batch, domain: OutputDomain
) -> tuple[dict[float, Tensor], dict[float, Tensor]]:
    """Measure gradients of outputs moved away from their labels.

    If the model's outputs are bounded, distances apply before the bounding function, and the
    largest is left out: such functions are flat there anyway.

    Returns:
        Distance from the best constant → norm of each example's gradient; and → its loss.
    """
    is_bounded = domain.kind not in ("free", "held", "log_probabilities")
    constant, ideal = domain.free(free.constant), domain.free(free.ideal)
    away = constant - ideal
    length = away.reshape(len(away), -1).norm(dim=1)
    # For examples whose label is the best constant there is no direction away from it.
    apart = length > 1e-3 * float(length.max())
    unit = away / length.clamp_min(1e-12).reshape(-1, *[1] * (away.ndim - 1))
    # In units of the outputs: logits for classes, the labels' spread for regression.
    is_number = subject.task.kind == "regression" and not is_bounded
    scale = float(length.square().mean().sqrt()) if is_number else 1.0
    norms, lost = {}, {}
    for distance in (NEAR, 10.0) if is_bounded else (NEAR, 10.0, FAR):
        moved = (constant + distance * scale * unit).detach().requires_grad_()
        found = losses(domain.outputs(moved), batch)
        (gradient,) = torch.autograd.grad(found.sum(), moved)
        norms[distance] = gradient.reshape(len(gradient), -1).norm(dim=1)[apart]
        lost[distance] = found.detach()[apart]
    return norms, lost


def _is_inner(subject: Subject, free: FreeOutputs) -> bool:
    """Whether the loss rises beyond its minimum, as with smoothed labels.

    After a second sigmoid or a clip it stays constant, however far outputs go.
    """
    domain = choose_domain(subject)
    constant, ideal = domain.free(free.constant), domain.free(free.ideal)
    beyond = domain.outputs(constant + 3.0 * (ideal - constant))
    batch = probe(subject)
    with torch.no_grad():
        rise = subject.task.losses(beyond, batch) - subject.task.losses(free.ideal, batch)
    # So far out, a likelihood of counts may take infinity from infinity.
    is_number = ~rise.isnan()
    risen = float(compute_mean_loss(rise[is_number], select_rows(batch, is_number)))
    return risen > 0.05 * (free.constant_loss - free.floor)


def _rises_nearby(subject: Subject, free: FreeOutputs) -> bool:
    """Whether the loss rises right beside its minimum; a clipped one is flat there."""
    domain, batch = choose_domain(subject), probe(subject)
    constant, ideal = domain.free(free.constant), domain.free(free.ideal)
    beside = domain.outputs(ideal + BESIDE * (constant - ideal))
    with torch.no_grad():
        rise = measure_loss(subject.task.losses, beside, batch) - free.floor
    return rise > RISE_BESIDE * (free.constant_loss - free.floor)


@check(
    "initial_loss",
    expects=lambda subject: (
        f"expected_initial_loss() ± {INITIAL_LOSS_TOLERANCE:.0%} ± {NOISE_ERRORS:g} standard errors"
        "; without one, at most the loss of an output of zeros, or of the mean output of classes "
        f"within {WILD_OUTPUTS:g} of it, with the same tolerance for classes and "
        f"{DERIVED_TOLERANCE:.0%} for others"
    ),
    source="guides: verify the loss at initialisation, ln C for C classes",
)
def check_initial_loss(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the initial loss matches theory, from one of some initial weights."""
    if subject.task.expected_initial_loss() is None and _is_linear(subject):
        return judge.skipped(
            "the loss is linear in the output: it has no value of its own to begin at"
        )
    # A layer over values that rise and fall together starts wildly from one draw in ten.
    first = _judge_initial_loss(judge, subject)
    if first.outcome == "passed" or "initial_loss" not in first.evidence:
        return first
    others = (_judge_initial_loss(judge, subject.reseeded(each)) for each in range(1, DRAWS))
    return next((each for each in others if each.outcome == "passed"), first)


def _judge_initial_loss(judge: Judge, subject: Subject) -> CheckResult:
    """Judge the loss of the initial weights that the subject's seed draws."""
    declared = subject.task.expected_initial_loss()
    theory = _derive_initial_loss(subject) if declared is None else declared
    scored = score_in_parts(subject.task, subject.build_model(), subject.train)
    losses = scored.losses
    if not math.isfinite(theory) or not np.isfinite(losses).all():
        return judge.failed(
            f"measured {losses.mean():.4g}, theory {theory:.4g}",
            hint="both must be finite: look for log(0), division by zero and NaN inputs",
        )
    measured = scored.mean_loss()
    error = float(losses.std(ddof=1) / math.sqrt(len(losses)))
    shown = f"{measured:.4g} ± {error:.2g}, theory {theory:.4g}"
    if declared is not None and subject.task.kind == "regression":
        # The split's loss may consist of a few large labels, which a sample often lacks.
        of_sample = theory * subject.label_spread
        if abs(measured - of_sample) < abs(measured - theory):
            shown += f", of the sampled labels {of_sample:.4g}"
            theory = of_sample
    # If losses go below zero, theory may be close to zero: compare with their spread instead.
    size = max(abs(theory), float(losses.std())) if losses.min() < 0 else abs(theory)
    # A model may start with knowledge, such as the last value: only declared theory bounds below.
    off = measured - theory if declared is None else abs(measured - theory)
    # Distances and amounts have no ln C: random outputs lose more than zeros without any fault.
    is_vague = declared is None and subject.task.kind in ("regression", "statistic")
    tolerance = DERIVED_TOLERANCE if is_vague else INITIAL_LOSS_TOLERANCE
    if off > tolerance * size + NOISE_ERRORS * error:
        return judge.failed(
            shown, hint=_explain(subject, measured, theory), initial_loss=measured, theory=theory
        )
    return judge.passed(shown, initial_loss=measured, theory=theory)


def _is_linear(subject: Subject) -> bool:
    """Whether the loss has one gradient everywhere, as of a likelihood that the model returns."""
    if choose_domain(subject).kind != "free":
        return False
    batch = probe(subject)
    output, gradients = compute_output(subject, batch), []
    for factor in (1.0, -3.0):
        free = (factor * output).requires_grad_()
        (gradient,) = torch.autograd.grad(subject.task.losses(free, batch).sum(), free)
        gradients.append(gradient)
    return bool((gradients[0] != 0).any()) and torch.equal(*gradients)


def _derive_initial_loss(subject: Subject) -> float:
    """Return the mean loss of an output of zeros or of the best constant, whichever is larger.

    Or that of the mean output of classes where it is near zero, as drawn weights leave it: a few
    updates move it, and `initial_bias` judges it.
    """
    _, best = find_training_constant(subject)
    with made_up("an output of zeros"):
        losses = compute_zero_losses(subject, subject.train)
    uninformed = float(compute_mean_loss(losses, subject.train))
    theory = max(best, uninformed) if math.isfinite(uninformed) else best
    if subject.task.kind in ("binary", "multiclass"):
        middle = compute_output(subject, probe(subject)).mean(dim=0, keepdim=True)
        losses = compute_constant_losses(subject, middle, subject.train)
        offset = float(compute_mean_loss(losses, subject.train))
        if float(middle.abs().max()) <= WILD_OUTPUTS and math.isfinite(offset):
            theory = max(theory, offset)
    return theory


@check(
    "initial_bias",
    expects=f"initial loss below {COSTLY_START:g} times the best constant's",
    source="guides: initialise the final bias to the label's mean or prior",
    severity="warn",
)
def check_initial_bias(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the initial output matches the label's prior."""
    if is_per_token(
        compute_output(subject, select_head(subject.train, 2)), subject.train[LABEL][:2]
    ):
        return judge.skipped("models of tokens usually have no bias in their last layer")
    output, best = find_training_constant(subject)
    constant = _list_biases(output)
    measured = score_in_parts(subject.task, subject.build_model(), subject.train).mean_loss()
    shown = f"{measured:.4g}, best constant {best:.4g}"
    if best <= 0:
        return judge.skipped(
            "the loss goes below zero, so it cannot be compared with the best constant"
        )
    if not measured <= COSTLY_START * best and not _starts_well_as_trained(subject):
        return judge.warned(
            shown,
            hint=f"initialise the last layer's bias to {constant} and its weights small, and set "
            "expected_initial_loss to match",
            bias=constant,
            best_constant=best,
        )
    return judge.passed(shown, bias=constant, best_constant=best)


def _list_biases(constant: Tensor) -> list[float]:
    """Return the first numbers of a constant output; of a map [1, …, H, W] its mean."""
    is_map = constant.ndim > 2 and constant.numel() > SHOWN_NUMBERS
    values = constant.mean(dim=(-2, -1)) if is_map else constant
    return [round(value, 4) for value in values.flatten().tolist()[:SHOWN_NUMBERS]]


def _starts_well_as_trained(subject: Subject) -> bool:
    """Whether the initial output suits the loss that is minimised, as with weights of classes."""
    if not is_own_loss(subject.task) or subject.task.scored_together > 1:
        return False
    losses, every = subject.task.training_losses, -(-subject.num_rows() // PROBED_ROWS)
    batch = select_rows(subject.train, slice(None, None, every))
    output = compute_output(subject, batch)
    try:
        _, best = minimise(subject, losses, make_starts(output), batch)
        start = measure_loss(losses, output, batch)
    except Exception:  # a loss of mixed or noisy rows need not take these
        return False
    return 0 < start <= COSTLY_START * best


def _explain(subject: Subject, measured: float, theory: float) -> str:
    """Return the most likely cause of the initial loss."""
    output, best = find_training_constant(subject)
    constant = _list_biases(output)
    fact = f"; the best constant is {constant} with loss {best:.4g}"
    batch = probe(subject)
    spread = float(compute_output(subject, batch).std(dim=0).max())
    if spread > WILD_OUTPUTS and measured > theory:
        inputs = [t for t in inputs_of(batch).values() if t.is_floating_point()]
        largest = max((float(each.abs().max()) for each in inputs), default=0.0)
        if largest > LARGE_INPUTS:
            return (
                f"the inputs are not normalised: values up to {largest:.3g} reach the model{fact}"
            )
        return (
            f"the last layer's initial weights are too large: outputs vary by {spread:.3g} between "
            f"examples before training{fact}"
        )
    # Another dimension's logarithm, or a multiple of theory.
    for dimension, size in enumerate(output.shape[1:-1], start=1):
        if size > 1 and math.isclose(measured, math.log(size), rel_tol=SAME_NUMBER):
            return f"this is ln {size}: does a softmax run over dimension {dimension}?{fact}"
    tokens = float(subject.train[WEIGHT].mean()) if WEIGHT in subject.train else 1.0
    if tokens > 1 and math.isclose(measured, theory * tokens, rel_tol=4 * SAME_NUMBER):
        return f"this is {tokens:.3g} times theory, the mean weight: is it a sum, not a mean?{fact}"
    if abs(measured - best) <= abs(theory - best):
        return (
            "expected_initial_loss does not fit these labels and this loss: check its number of "
            f"classes, its prior and the terms of the loss{fact}"
        )
    return (
        f"check the model's number of classes, the label's encoding and the last layer's bias{fact}"
    )
