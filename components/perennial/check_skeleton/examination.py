"""Examination: the checks, the baselines and the page of one task on one dataset."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.check_skeleton.baselines import Baselines, measure_baselines
from perennial.check_skeleton.battery import CHECKS, Check, run_checks
from perennial.check_skeleton.config import CheckSkeletonConfig
from perennial.check_skeleton.input_preview import preview
from perennial.check_skeleton.report import page_of
from perennial.check_skeleton.subject import Subject, rows_at, sample_positions
from perennial.contracts.data import Split
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.contracts.user_code import user_code
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.baseline_rows import BaselineRows
from perennial.engine.task import load_task
from perennial.reports.page import Page


@dataclass(frozen=True)
class Examination:
    """The results, the page that shows them, and the predictions behind the baselines' scores."""

    report: SkeletonReport
    page: Page
    baseline_rows: BaselineRows


def examine(
    settings: CheckSkeletonConfig,
    dataset: Dataset,
    *,
    checks: Sequence[Check] = CHECKS,
    show: Callable[[CheckResult], None] = lambda result: None,
) -> Examination:
    """Run the checks on a dataset; if none blocks, measure the baselines.

    Args:
        settings: The model to examine, and the settings of the checks.
        dataset: The data.
        checks: The checks to run.
        show: Called with each result as soon as it is known.
    """
    make_task = partial(
        load_task, settings.model.task, settings.model.options, dataset.snapshot.task_columns
    )
    subject = Subject.prepare(make_task, dataset, settings.skeleton, settings.training)
    most = settings.skeleton.baseline_rows
    positions = sample_positions(dataset, Split.TEST, most, subject.seed)
    test_rows = rows_at(dataset, Split.TEST, positions)
    results = run_checks(subject, checks, show)
    baselines = Baselines()
    if len(checks) < len(CHECKS):
        baselines = Baselines(notes=("not measured: only some checks were requested",))
    elif not any(result.blocks for result in results):
        baselines = _measured(subject, test_rows, dataset.snapshot.data.time, positions)
    found = SkeletonReport(results=results, baselines=baselines.scores)
    tolerance = settings.skeleton.initial_loss_tolerance
    page = page_of(found, preview(subject), baselines.notes, tolerance)
    return Examination(found, page, baselines.rows)


def _measured(
    subject: Subject, test_rows: pl.DataFrame, time: str | None, positions: NDArray[np.int64]
) -> Baselines:
    try:
        with user_code("the measurement of baselines"):
            return measure_baselines(subject, test_rows, time, positions)
    except Exception as error:  # user code may raise anything; the verdicts must still be written
        logging.getLogger(__name__).exception("baselines failed")
        return Baselines(notes=(f"not measured: {type(error).__name__}: {error}",))
