"""Examination: the checks, the baselines and the page of one task on one dataset."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import polars as pl

from components.check_skeleton.baselines import Baselines, measure_baselines
from components.check_skeleton.battery import CHECKS, Check, run_checks
from components.check_skeleton.config import CheckSkeletonConfig
from components.check_skeleton.input_preview import preview
from components.check_skeleton.report import page_of
from components.check_skeleton.subject import Subject, sample_rows
from components.clients.dataset import Dataset
from components.contracts.data import Split
from components.contracts.skeleton import CheckResult, SkeletonReport
from components.contracts.user_code import user_code
from components.engine.task import load_task
from components.reports.page import Page


@dataclass(frozen=True)
class Examination:
    """What was found, and the page that shows it."""

    report: SkeletonReport
    page: Page


def examine(
    settings: CheckSkeletonConfig,
    dataset: Dataset,
    *,
    checks: Sequence[Check] = CHECKS,
    show: Callable[[CheckResult], None] = lambda result: None,
) -> Examination:
    """Make the checks on a dataset; all of them having passed, measure the baselines.

    Args:
        settings: What is examined, and how closely.
        dataset: Its data.
        checks: Which checks to make.
        show: Is told each result as soon as it is known.
    """
    make_task = partial(
        load_task, settings.model.task, settings.model.options, dataset.snapshot.task_columns
    )
    subject = Subject.prepare(make_task, dataset, settings.skeleton, settings.training)
    test_rows = sample_rows(dataset, Split.TEST, settings.skeleton.baseline_rows, subject.seed)
    results = run_checks(subject, checks, show)
    baselines = Baselines()
    if len(checks) < len(CHECKS):
        baselines = Baselines(notes=("not measured: only some checks were asked for",))
    elif not any(result.blocks for result in results):
        baselines = _measured(subject, test_rows, dataset.snapshot.data.time)
    found = SkeletonReport(results=results, baselines=baselines.scores)
    tolerance = settings.skeleton.initial_loss_tolerance
    return Examination(found, page_of(found, preview(subject), baselines.notes, tolerance))


def _measured(subject: Subject, test_rows: pl.DataFrame, time: str | None) -> Baselines:
    try:
        with user_code("the measurement of baselines"):
            return measure_baselines(subject, test_rows, time)
    except Exception as error:  # user code may raise anything; the verdicts must still be written
        logging.getLogger(__name__).exception("baselines failed")
        return Baselines(notes=(f"not measured: {type(error).__name__}: {error}",))
