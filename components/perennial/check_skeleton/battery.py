"""The battery: run every check in order and record each outcome."""

import logging
import time
from collections.abc import Callable, Sequence
from types import MappingProxyType

from perennial.check_skeleton.checks.data.augmentation_form import augmentation
from perennial.check_skeleton.checks.data.augmenting import (
    augmentation_keeps_labels,
    plain_evaluation,
)
from perennial.check_skeleton.checks.data.columns import lost_values
from perennial.check_skeleton.checks.data.encoding import encoding, labels, serving_inputs
from perennial.check_skeleton.checks.data.fitting import state_round_trip, statistics_scope
from perennial.check_skeleton.checks.data.fresh_encoding import fresh_encoding
from perennial.check_skeleton.checks.data.imports import import_side_effects
from perennial.check_skeleton.checks.data.inputs import input_form, repeated_inputs
from perennial.check_skeleton.checks.data.leakage import shuffled_labels, split_overlap
from perennial.check_skeleton.checks.data.scale import input_scale
from perennial.check_skeleton.checks.data.telling import telling_columns
from perennial.check_skeleton.checks.loss.class_weights import class_weights
from perennial.check_skeleton.checks.loss.initial_loss import initial_bias, initial_loss
from perennial.check_skeleton.checks.loss.links import prediction_detail
from perennial.check_skeleton.checks.loss.losses import (
    loss_floor,
    loss_not_clipped,
    per_example_losses,
    training_losses,
)
from perennial.check_skeleton.checks.loss.measures import metric_values
from perennial.check_skeleton.checks.loss.output_form import output_form
from perennial.check_skeleton.checks.loss.predictions import metric_direction, predictions
from perennial.check_skeleton.checks.model.activations import activations, symmetric_units
from perennial.check_skeleton.checks.model.attention import attention
from perennial.check_skeleton.checks.model.few_rows import few_rows
from perennial.check_skeleton.checks.model.gradients import (
    example_independence,
    input_use,
    parameter_gradients,
)
from perennial.check_skeleton.checks.model.modes import modes
from perennial.check_skeleton.checks.model.sequences import (
    example_weights,
    future_independence,
    next_token,
)
from perennial.check_skeleton.checks.model.texts import (
    padding_independence,
    position_use,
    text_coverage,
)
from perennial.check_skeleton.checks.training.distributed import (
    rank_data,
    rank_equivalence,
    resume_trial,
)
from perennial.check_skeleton.checks.training.dynamics import first_steps
from perennial.check_skeleton.checks.training.input_independence import input_independent_baseline
from perennial.check_skeleton.checks.training.optimization import optimizer_coverage, schedule_fit
from perennial.check_skeleton.checks.training.overfitting import overfit_one_batch
from perennial.check_skeleton.checks.training.reproducibility import reproducibility
from perennial.check_skeleton.config import FOUNDATION, SkeletonSection
from perennial.check_skeleton.made_up_inputs import (
    RefusedInputsError,
    failure_on_real_rows,
    method_of,
)
from perennial.check_skeleton.subject import Subject, seeded
from perennial.check_skeleton.unread_labels import is_label_unread
from perennial.check_skeleton.verdict import Judge
from perennial.contracts.errors import PerennialError
from perennial.contracts.skeleton import CheckResult
from perennial.contracts.user_code import user_code

Check = Callable[[Subject], CheckResult]

CHECKS: tuple[Check, ...] = (
    import_side_effects,
    encoding,
    fresh_encoding,
    serving_inputs,
    labels,
    input_scale,
    repeated_inputs,
    input_form,
    lost_values,
    telling_columns,
    split_overlap,
    statistics_scope,
    state_round_trip,
    augmentation,
    output_form,
    activations,
    per_example_losses,
    example_weights,
    next_token,
    text_coverage,
    predictions,
    prediction_detail,
    metric_direction,
    metric_values,
    plain_evaluation,
    loss_floor,
    loss_not_clipped,
    training_losses,
    class_weights,
    reproducibility,
    initial_loss,
    initial_bias,
    example_independence,
    few_rows,
    future_independence,
    padding_independence,
    position_use,
    attention,
    input_use,
    parameter_gradients,
    optimizer_coverage,
    schedule_fit,
    first_steps,
    symmetric_units,
    modes,
    rank_equivalence,
    rank_data,
    resume_trial,
    overfit_one_batch,
    input_independent_baseline,
    shuffled_labels,
    augmentation_keeps_labels,
)
# These need labels, or losses of single examples. A task that compares examples has neither: the
# right answer of each example is its own counterpart.
COMPARES = "the task compares examples with each other: `scored_together` > 1"
UNREAD = (
    "the loss needs no label: the label column is among its inputs, and neither losses nor "
    "`statistic` read the constant that stands for it"
)
SWITCHED_OFF = "switched off in the contract: [skeleton.severities]"
OVERRULED = MappingProxyType({("warn", "failed"): "warned", ("fail", "warned"): "failed"})
ALONE: tuple[Check, ...] = (labels, loss_floor, loss_not_clipped, class_weights)


def run_checks(
    subject: Subject,
    checks: Sequence[Check] = CHECKS,
    show: Callable[[CheckResult], None] = lambda result: None,
) -> tuple[CheckResult, ...]:
    """Run the checks; their results include the contract's severities and waivers.

    Args:
        subject: The task and the data to examine.
        checks: The checks to run, in order.
        show: Called with each result as soon as it is known.
    """
    results: list[CheckResult] = []
    is_founded = True
    for check in checks:
        result = _result(check, subject, is_founded=is_founded)
        if result.check == FOUNDATION:
            # Whatever its severity: the checks that depend on it cannot run.
            is_founded = result.outcome != "failed"
        results.append(_apply_contract(result, subject.settings))
        show(results[-1])
    return tuple(results)


def _result(check: Check, subject: Subject, *, is_founded: bool) -> CheckResult:
    if subject.settings.severities.get(check.__name__) == "off":
        return _skipped(check, SWITCHED_OFF)
    if not is_founded:
        return _skipped(check, f"needs {FOUNDATION} to pass first")
    if check in ALONE and subject.task.scored_together > 1:
        return _skipped(check, COMPARES)
    if check in ALONE and subject.once(is_label_unread):
        return _skipped(check, UNREAD)
    return _run(check, subject)


def _run(check: Check, subject: Subject) -> CheckResult:
    start = time.perf_counter()
    try:
        with seeded(subject.seed), user_code(f"the check {check.__name__}"):
            result = check(subject)
    except Exception as error:  # user code may raise anything; the other checks still count
        logging.getLogger(__name__).exception("check=%s raised", check.__name__)
        result = _judge_exception(check, subject, error)
    return result.model_copy(update={"seconds": time.perf_counter() - start})


def _judge_exception(check: Check, subject: Subject, error: Exception) -> CheckResult:
    """Return a failure where the task raises on real rows; made-up inputs it may reject."""
    judge = Judge(check.__name__, expected="no exception", source="the task's protocol")
    problem = subject.once(failure_on_real_rows)
    if isinstance(error, PerennialError):
        problem = str(error)
    if problem:
        return judge.failed(problem, hint="call the same method on a few rows in a notebook")
    if isinstance(error, RefusedInputsError):
        return judge.unmeasured(str(error))
    return judge.warned(
        f"{method_of(error)} raises {type(error).__name__}: {error}",
        hint="the task does not raise on rows of the data, so this may not be a bug: see which "
        "rows or tensors the check passes, and whether a training or a request could pass them",
    )


def _skipped(check: Check, reason: str) -> CheckResult:
    return Judge(check.__name__, expected="", source="").skipped(reason)


def _apply_contract(result: CheckResult, settings: SkeletonSection) -> CheckResult:
    """Return the result with the contract's severity and waiver applied."""
    severity = settings.severities.get(result.check, "")
    changes: dict[str, str] = {"waived": settings.waivers.get(result.check, "")}
    if severity == "off" or (severity, result.outcome) in OVERRULED:
        changes["severity"] = severity
        changes["outcome"] = OVERRULED.get((severity, result.outcome), result.outcome)
    return result.model_copy(update=changes)
