"""The loss before the first update, against theory and against the best constant."""

import math

import numpy as np

from perennial.check_skeleton.free_outputs import best_constant, output_of, probe
from perennial.check_skeleton.subject import Subject, head_of
from perennial.check_skeleton.token_outputs import is_per_token
from perennial.check_skeleton.verdict import Judge
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.task import LABEL, WEIGHT, inputs_of

# A start that costs half as much again as the best constant spends its first updates on the
# label's mean: zero logits at 10 % positives do (0.69 against 0.33), at 30 % (0.61) they do not.
COSTLY_START = 1.5
NOISE_ERRORS = 3.0
# Deviation of outputs over examples: logits of 2 nats apart cost a fifth of ln 2 before learning.
WILD_OUTPUTS = 2.0
# Standardised inputs keep within a few deviations, raw pixels and amounts do not.
LARGE_INPUTS = 100.0
SAME_NUMBER = 0.05


def initial_loss(subject: Subject) -> CheckResult:
    """Is the first loss what theory says?"""
    tolerance = subject.settings.initial_loss_tolerance
    judge = Judge(
        "initial_loss",
        expected=f"expected_initial_loss() ± {tolerance:.0%} ± {NOISE_ERRORS:g} standard errors",
        source="guides: verify the loss at initialisation, ln C for C classes",
    )
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
    # Of losses that go below zero, theory may be next to nothing: their spread is the measure.
    size = max(abs(theory), float(losses.std())) if losses.min() < 0 else abs(theory)
    if abs(measured - theory) > tolerance * size + NOISE_ERRORS * error:
        return judge.failed(
            shown, hint=_cause(subject, measured, theory), initial_loss=measured, theory=theory
        )
    return judge.passed(shown, initial_loss=measured, theory=theory)


def initial_bias(subject: Subject) -> CheckResult:
    """Does the output start at the label's prior?"""
    judge = Judge(
        "initial_bias",
        expected=f"first loss below {COSTLY_START:g} times the best constant's",
        source="guides: initialise the final bias to the label's mean or prior",
    )
    if is_per_token(output_of(subject, head_of(subject.train, 2)), subject.train[LABEL][:2]):
        return judge.skipped("models of tokens have no bias in their last layer, by custom")
    constant, best = _constant(subject)
    measured = score_in_parts(subject.task, subject.build_model(), subject.train).mean_loss()
    shown = f"{measured:.4g}, best constant {best:.4g}"
    if best <= 0:
        return judge.skipped("the loss goes below zero, so its best constant is no measure")
    if not measured <= COSTLY_START * best:
        return judge.warned(
            shown,
            hint=f"initialise the last layer's bias to {constant} and its weights small, and set "
            "expected_initial_loss to match",
            bias=constant,
            best_constant=best,
        )
    return judge.passed(shown, bias=constant, best_constant=best)


def _cause(subject: Subject, measured: float, theory: float) -> str:
    """What most likely moved the first loss."""
    constant, best = _constant(subject)
    fact = f"; the best constant is {constant} with loss {best:.4g}"
    batch = probe(subject)
    spread = float(output_of(subject, batch).std(dim=0).max())
    if spread > WILD_OUTPUTS and measured > theory:
        inputs = [t for t in inputs_of(batch).values() if t.is_floating_point()]
        largest = max((float(each.abs().max()) for each in inputs), default=0.0)
        if largest > LARGE_INPUTS:
            return (
                f"the inputs are not normalised: values up to {largest:.3g} reach the model{fact}"
            )
        return (
            f"the last layer starts too large: outputs vary by {spread:.3g} between examples, and "
            f"nothing is learned yet{fact}"
        )
    if told := _told_by_the_number(subject, measured, theory):
        return f"{told}{fact}"
    if abs(measured - best) <= abs(theory - best):
        return (
            "expected_initial_loss does not belong to these labels and this loss: check its number "
            f"of classes, its prior and what the loss adds up{fact}"
        )
    return (
        "check the number of classes that the model scores, the label's encoding and the last "
        f"layer's bias{fact}"
    )


def _told_by_the_number(subject: Subject, measured: float, theory: float) -> str:
    """What a loss gives away that is another dimension's logarithm, or so many times theory."""
    sizes = output_of(subject, head_of(subject.train, 2)).shape[1:]
    for dimension, size in enumerate(sizes[:-1], start=1):
        if size > 1 and math.isclose(measured, math.log(size), rel_tol=SAME_NUMBER):
            return f"this is ln {size}: does a softmax run over dimension {dimension}?"
    tokens = float(subject.train[WEIGHT].mean()) if WEIGHT in subject.train else 1.0
    if tokens > 1 and math.isclose(measured, theory * tokens, rel_tol=4 * SAME_NUMBER):
        return f"this is {tokens:.3g} times theory, the mean weight: is it a sum, not a mean?"
    return ""


def _constant(subject: Subject) -> tuple[list[float], float]:
    """The output that is best for every sampled row, and its loss."""
    output = output_of(subject, probe(subject))
    constant, loss = best_constant(subject, output, subject.train)
    return [round(value, 4) for value in constant.flatten().tolist()[:16]], loss
