"""Runs `check_skeleton`: examines the task on samples of the snapshot and writes what it found."""

import logging
from functools import partial
from pathlib import Path

import polars as pl

from components.check_skeleton.baselines import Baselines, measure_baselines
from components.check_skeleton.battery import run_checks
from components.check_skeleton.config import CheckSkeletonConfig
from components.check_skeleton.input_preview import preview
from components.check_skeleton.subject import Subject, sample_rows
from components.check_skeleton.verdict import error_of, page_of, summary_of
from components.clients.dataset import Dataset
from components.clients.steps import StepResult, pipeline_step
from components.contracts.data import Split
from components.contracts.skeleton import SkeletonReport
from components.contracts.snapshot import Snapshot
from components.engine.task import load_task

logger = logging.getLogger(__name__)


@pipeline_step("check_skeleton", outputs=("skeleton", "report", "metrics"))
def check_skeleton_step(
    *, config: str, snapshot: str, skeleton: str, report: str, metrics: str
) -> StepResult:
    """Examine the task; the report is written whatever is found.

    Raises:
        BadTaskError: a check failed and no waiver covers it.
    """
    settings = CheckSkeletonConfig.from_json(config)
    dataset = Dataset(Snapshot.read(Path(snapshot)))
    make_task = partial(
        load_task, settings.model.task, settings.model.options, dataset.snapshot.task_columns
    )
    subject = Subject.prepare(make_task, dataset, settings.skeleton, settings.training)
    test_rows = sample_rows(dataset, Split.TEST, settings.skeleton.baseline_rows, subject.seed)
    results = run_checks(subject)
    is_sound = not any(result.blocks for result in results)
    baselines = _measured(subject, test_rows) if is_sound else Baselines()
    found = SkeletonReport(results=results, baselines=baselines.scores)
    found.write(Path(skeleton))
    page_of(found, preview(subject), baselines.notes).write(Path(report))
    if found.failures:
        raise error_of(found)
    outcomes = [result.outcome for result in results]
    counts = {
        name: float(outcomes.count(name)) for name in ("passed", "warned", "failed", "skipped")
    }
    return StepResult(metrics=counts, summary=summary_of(found))


def _measured(subject: Subject, test_rows: pl.DataFrame) -> Baselines:
    try:
        return measure_baselines(subject, test_rows)
    except Exception as error:  # user code may raise anything; the verdicts must still be written
        logger.exception("baselines failed")
        return Baselines(notes=(f"not measured: {type(error).__name__}: {error}",))
