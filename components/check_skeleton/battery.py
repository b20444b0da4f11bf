"""The battery: every check in order, none left out, each outcome on record."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence

from components.check_skeleton.checks.encoding import (
    augmentation,
    encoding,
    input_scale,
    labels,
    serving_inputs,
)
from components.check_skeleton.checks.fitting import state_round_trip, statistics_scope
from components.check_skeleton.checks.gradients import (
    example_independence,
    input_use,
    parameter_gradients,
)
from components.check_skeleton.checks.initial_loss import initial_bias, initial_loss
from components.check_skeleton.checks.input_independence import input_independent_baseline
from components.check_skeleton.checks.losses import loss_floor, loss_not_clipped, per_example_losses
from components.check_skeleton.checks.overfitting import overfit_one_batch
from components.check_skeleton.checks.predictions import metric_direction, predictions
from components.check_skeleton.checks.reproducibility import reproducibility
from components.check_skeleton.checks.sequences import example_weights, future_independence
from components.check_skeleton.subject import Subject, seeded
from components.check_skeleton.verdict import Judge
from components.contracts.skeleton import CheckResult

Check = Callable[[Subject], CheckResult]

CHECKS: tuple[Check, ...] = (
    encoding,
    serving_inputs,
    labels,
    input_scale,
    statistics_scope,
    state_round_trip,
    augmentation,
    per_example_losses,
    example_weights,
    predictions,
    metric_direction,
    loss_floor,
    loss_not_clipped,
    reproducibility,
    initial_loss,
    initial_bias,
    example_independence,
    future_independence,
    input_use,
    parameter_gradients,
    overfit_one_batch,
    input_independent_baseline,
)
# Without a model that maps a batch to one loss per example, the checks after it cannot be made.
FOUNDATION: Check = per_example_losses
# What they ask of labels, or of examples alone, a task that compares examples does not have: the
# right answer of each is its own counterpart.
COMPARES = "the task compares examples with each other: `scored_together` > 1"
ALONE: tuple[Check, ...] = (labels, loss_floor, loss_not_clipped, example_independence)


def run_checks(subject: Subject, checks: Sequence[Check] = CHECKS) -> tuple[CheckResult, ...]:
    """Make the checks; waivers are noted on the failures that they cover."""
    results: list[CheckResult] = []
    is_founded = True
    for check in checks:
        if not is_founded:
            results.append(_skipped(check, f"needs {FOUNDATION.__name__} to pass first"))
        elif check in ALONE and subject.task.scored_together > 1:
            results.append(_skipped(check, COMPARES))
        else:
            results.append(_run(check, subject))
        if check is FOUNDATION:
            is_founded = results[-1].outcome != "failed"
    return tuple(_with_waiver(result, subject.settings.waivers) for result in results)


def _run(check: Check, subject: Subject) -> CheckResult:
    start = time.perf_counter()
    try:
        with seeded(subject.seed):
            result = check(subject)
    except Exception as error:  # user code may raise anything; the other checks still count
        judge = Judge(check.__name__, expected="no exception", source="the task's protocol")
        result = judge.failed(
            f"{type(error).__name__}: {error}",
            hint="call the same method on a few rows in a notebook",
        )
        logging.getLogger(__name__).exception("check=%s raised", check.__name__)
    return result.model_copy(update={"seconds": time.perf_counter() - start})


def _skipped(check: Check, reason: str) -> CheckResult:
    return Judge(check.__name__, expected="", source="").skipped(reason)


def _with_waiver(result: CheckResult, waivers: Mapping[str, str]) -> CheckResult:
    if result.outcome != "failed" or result.check not in waivers:
        return result
    return result.model_copy(update={"waived": waivers[result.check]})
