"""Examination: the checks, the baselines and the page of one task on one dataset."""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import torch

from perennial.check_skeleton.baselines import Baselines, measure_baselines
from perennial.check_skeleton.config import (
    INITIAL_LOSS_TOLERANCE,
    CheckSkeletonConfig,
    SkeletonSection,
)
from perennial.check_skeleton.made_up_inputs import (
    RefusedInputsError,
    describe_exception,
    find_cast,
    find_failure_on_real_rows,
    is_label_unread,
)
from perennial.check_skeleton.registry import FOUNDATION, Check, Judge, load_checks
from perennial.check_skeleton.report import build_page, make_preview
from perennial.check_skeleton.subject import Subject, read_rows_at, sample_positions, seeded
from perennial.contracts.data import Split
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import InitialModel, Teachers
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.contracts.user_code import user_code
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.baseline_rows import BaselineRows
from perennial.engine.task import load_task
from perennial.reports.page import Page
from perennial.steps.processes import start_fork_server

# In a task that compares examples, the right answer of each is its own counterpart.
COMPARES = "the task compares examples with each other: `scored_together` > 1"
UNREAD = (
    "the loss needs no label: the label column is among its inputs, and neither losses nor "
    "`statistic` read the constant that stands for it"
)
SWITCHED_OFF = "switched off in the contract: [skeleton.severities]"
OVERRULED = MappingProxyType({("warn", "failed"): "warned", ("fail", "warned"): "failed"})


@dataclass(frozen=True)
class Examination:
    """The results, the page that shows them, and the predictions behind the baselines' scores."""

    report: SkeletonReport
    page: Page
    baseline_rows: BaselineRows


def examine(
    settings: CheckSkeletonConfig,
    dataset: Dataset,
    initial: InitialModel | None = None,
    teachers: Teachers | None = None,
    *,
    only: Sequence[str] = (),
    show: Callable[[CheckResult], None] = lambda result: None,
) -> Examination:
    """Run the checks, all or only some, on a dataset; if none blocks, measure the baselines.

    `initial` are the weights that training starts with, None for random ones; `teachers` the
    versions that it learns from.
    `show` is called with each result as soon as it is known.
    """
    if not only:
        start_fork_server()  # imports in the background what the checks' own processes need
    model, snapshot = settings.model, dataset.snapshot
    make_task = partial(load_task, model.task, model.options, snapshot.task_columns)
    subject = Subject.prepare(
        make_task, dataset, settings.skeleton, settings.training, initial, teachers=teachers
    )
    most = settings.skeleton.baseline_rows
    positions = sample_positions(dataset, Split.TEST, most, subject.seed)
    test_rows = read_rows_at(dataset, Split.TEST, positions)
    results = run_checks(subject, only, show)
    baselines = Baselines()
    if only and len(results) < len(load_checks()):
        baselines = Baselines(notes=("not measured: only some checks were requested",))
    elif not any(result.blocks for result in results):
        try:
            with user_code("the measurement of baselines"):
                baselines = measure_baselines(subject, test_rows, snapshot.data.time, positions)
        except Exception as error:  # user code may raise anything; verdicts must still be written
            logging.getLogger(__name__).exception("baselines failed")
            baselines = Baselines(notes=(f"not measured: {describe_exception(error)}",))
    found = SkeletonReport(results=results, baselines=baselines.scores)
    page = build_page(found, make_preview(subject), baselines.notes, INITIAL_LOSS_TOLERANCE)
    return Examination(found, page, baselines.rows)


def run_checks(
    subject: Subject,
    only: Sequence[str] = (),
    show: Callable[[CheckResult], None] = lambda result: None,
) -> tuple[CheckResult, ...]:
    """Run the checks, all or only some; results include the contract's severities and waivers.

    `show` is called with each result as soon as it is known.
    """
    results, has_losses = list[CheckResult](), True
    for check in load_checks():
        if only and check.name not in only:
            continue
        result = _perform_or_skip(check, subject, has_losses=has_losses)
        if result.check == FOUNDATION:
            # Whatever its severity: the checks that depend on it cannot run.
            has_losses = result.outcome != "failed"
        results.append(_apply_contract(result, subject.settings))
        show(results[-1])
    return tuple(results)


def _perform_or_skip(check: Check, subject: Subject, *, has_losses: bool) -> CheckResult:
    reason = ""
    if subject.settings.severities.get(check.name) == "off":
        reason = SWITCHED_OFF
    elif check.needs_losses and not has_losses:
        reason = f"needs {FOUNDATION} to pass first"
    elif check.needs_labels and subject.task.scored_together > 1:
        reason = COMPARES
    elif check.needs_labels and is_label_unread(subject):
        reason = UNREAD
    return Judge(check.name).skipped(reason) if reason else run_check(check, subject)


def run_check(check: Check, subject: Subject) -> CheckResult:
    """Perform one check; an exception of the task is judged, and becomes its result."""
    start = time.perf_counter()
    try:
        with seeded(subject.seed), _plain_arithmetic(), user_code(f"the check {check.name}"):
            result = check(subject)
    except Exception as error:  # user code may raise anything; the other checks still count
        logging.getLogger(__name__).exception("check=%s raised", check.name)
        result = _judge_exception(check, subject, error)
    return result.model_copy(update={"seconds": time.perf_counter() - start})


@contextmanager
def _plain_arithmetic() -> Iterator[None]:
    """Take numbers below the smallest normal one for zero, and attention the way of training.

    Processors compute with the former slowly: a training without inputs, whose weights only decay,
    took 66 s, and had not ended after 200 s before. PyTorch's short cut for attention that is not
    trained packs words without padding into nested tensors, which the checks cannot look into.
    """
    is_short = torch.backends.mha.get_fastpath_enabled()
    torch.set_flush_denormal(True)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)
        torch.backends.mha.set_fastpath_enabled(is_short)


def _judge_exception(check: Check, subject: Subject, error: Exception) -> CheckResult:
    """Return a failure where the task raises on real rows; made-up inputs it may reject."""
    judge = Judge(check.name, "no exception", "the task's protocol")
    problem = find_failure_on_real_rows(subject)
    if isinstance(error, PerennialError):
        problem = str(error)
    if problem:
        hint = "call the same method on a few rows in a notebook"
        if cast := find_cast(subject):
            hint = f"write at the end of encode, before it returns the batch: {cast}"
        return judge.failed(problem, hint=hint)
    if isinstance(error, RefusedInputsError):
        return judge.unmeasured(str(error))
    return judge.warned(
        describe_exception(error),
        hint="the task does not raise on rows of the data, so this may not be a bug: see which "
        "rows or tensors the check passes, and whether a training or a request could pass them",
    )


def _apply_contract(result: CheckResult, settings: SkeletonSection) -> CheckResult:
    """Return the result with the contract's severity and waiver applied."""
    severity = settings.severities.get(result.check, "")
    changes: dict[str, str] = {"waived": settings.waivers.get(result.check, "")}
    is_overruled = (severity, result.outcome) in OVERRULED and not result.is_unmeasured
    if severity == "off" or is_overruled:
        changes["severity"] = severity
        changes["outcome"] = OVERRULED.get((severity, result.outcome), result.outcome)
    return result.model_copy(update=changes)
