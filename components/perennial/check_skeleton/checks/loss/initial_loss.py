"""Check the loss before the first update: `initial_loss` and `initial_bias`."""

import math

import numpy as np

from perennial.check_skeleton.config import INITIAL_LOSS_TOLERANCE
from perennial.check_skeleton.free_outputs import (
    compute_output,
    is_per_token,
    probe,
    training_constant,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, select_head
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.task import LABEL, WEIGHT, inputs_of

# With an initial loss 1.5 times the best constant's, the first updates only learn the label's
# mean. Zero logits at 10 % positives are above it (0.69 against 0.33), at 30 % (0.61) below.
COSTLY_START = 1.5
NOISE_ERRORS = 3.0
# Deviation of outputs over examples: logits 2 nats apart raise the initial loss by ln 2 / 5.
WILD_OUTPUTS = 2.0
# Standardised inputs lie within a few deviations, raw pixels and amounts do not.
LARGE_INPUTS = 100.0
SAME_NUMBER = 0.05


@check(
    "initial_loss",
    expects=lambda subject: (
        f"expected_initial_loss() ± {INITIAL_LOSS_TOLERANCE:.0%} ± {NOISE_ERRORS:g} standard errors"
    ),
    source="guides: verify the loss at initialisation, ln C for C classes",
)
def check_initial_loss(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the initial loss matches theory."""
    theory = subject.task.expected_initial_loss()
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
    # If losses go below zero, theory may be close to zero: compare with their spread instead.
    size = max(abs(theory), float(losses.std())) if losses.min() < 0 else abs(theory)
    if abs(measured - theory) > INITIAL_LOSS_TOLERANCE * size + NOISE_ERRORS * error:
        return judge.failed(
            shown, hint=_explain(subject, measured, theory), initial_loss=measured, theory=theory
        )
    return judge.passed(shown, initial_loss=measured, theory=theory)


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
    constant, best = _find_constant(subject)
    measured = score_in_parts(subject.task, subject.build_model(), subject.train).mean_loss()
    shown = f"{measured:.4g}, best constant {best:.4g}"
    if best <= 0:
        return judge.skipped(
            "the loss goes below zero, so it cannot be compared with the best constant"
        )
    if not measured <= COSTLY_START * best:
        return judge.warned(
            shown,
            hint=f"initialise the last layer's bias to {constant} and its weights small, and set "
            "expected_initial_loss to match",
            bias=constant,
            best_constant=best,
        )
    return judge.passed(shown, bias=constant, best_constant=best)


def _explain(subject: Subject, measured: float, theory: float) -> str:
    """Return the most likely cause of the initial loss."""
    constant, best = _find_constant(subject)
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
    if cause := _explain_number(subject, measured, theory):
        return f"{cause}{fact}"
    if abs(measured - best) <= abs(theory - best):
        return (
            "expected_initial_loss does not fit these labels and this loss: check its number of "
            f"classes, its prior and the terms of the loss{fact}"
        )
    return (
        f"check the model's number of classes, the label's encoding and the last layer's bias{fact}"
    )


def _explain_number(subject: Subject, measured: float, theory: float) -> str:
    """Explain a loss that is another dimension's logarithm, or a multiple of theory."""
    sizes = compute_output(subject, select_head(subject.train, 2)).shape[1:]
    for dimension, size in enumerate(sizes[:-1], start=1):
        if size > 1 and math.isclose(measured, math.log(size), rel_tol=SAME_NUMBER):
            return f"this is ln {size}: does a softmax run over dimension {dimension}?"
    tokens = float(subject.train[WEIGHT].mean()) if WEIGHT in subject.train else 1.0
    if tokens > 1 and math.isclose(measured, theory * tokens, rel_tol=4 * SAME_NUMBER):
        return f"this is {tokens:.3g} times theory, the mean weight: is it a sum, not a mean?"
    return ""


def _find_constant(subject: Subject) -> tuple[list[float], float]:
    """Return the best constant output for the sampled rows, and its loss."""
    constant, loss = training_constant(subject)
    return [round(value, 4) for value in constant.flatten().tolist()[:16]], loss
