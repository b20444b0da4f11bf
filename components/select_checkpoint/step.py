"""The step `select_checkpoint`: scores every kept checkpoint and writes the chosen as one model."""

import logging
from pathlib import Path

from components.clients.dataset import Dataset
from components.clients.environment import Environment
from components.clients.steps import StepResult, pipeline_step
from components.clients.tracking import open_tracking
from components.contracts.data import Split
from components.contracts.errors import NoCheckpointError
from components.contracts.snapshot import Snapshot
from components.contracts.training import Challenger, TrainingResult
from components.engine.checkpoints.checkpointer import load_checkpoint_models
from components.engine.checkpoints.folder import DamagedCheckpointError
from components.engine.evaluation.resampling import block_columns, blocks_of
from components.engine.evaluation.scoring import score_split, scoring_device
from components.engine.export import export_weights
from components.engine.task import Task
from components.select_checkpoint.config import SelectCheckpointConfig
from components.select_checkpoint.diagnosis import diagnose
from components.select_checkpoint.report import write_report
from components.select_checkpoint.selection import Candidate, metric_and_direction, select

logger = logging.getLogger(__name__)


@pipeline_step("select_checkpoint", outputs=("challenger", "report", "metrics"))
def select_checkpoint_step(
    *, config: str, snapshot: str, training: str, challenger: str, report: str, metrics: str
) -> StepResult:
    """Score the kept checkpoints on all validation rows and export the best in retrospect."""
    section = SelectCheckpointConfig.from_json(config)
    data = Snapshot.read(Path(snapshot))
    result = TrainingResult.read(Path(training))
    task, candidates = _score(result, Dataset(data))
    blocks = blocks_of(candidates[0].scored.rows, data.data)
    metric, direction = metric_and_direction(task, section.selection.metric)
    selection = select(
        task,
        candidates,
        blocks,
        metric=metric,
        direction=direction,
        tolerance=section.selection.tolerance_standard_errors,
    )
    diagnosis = diagnose(result.evaluations, metric, direction)
    chosen = selection.chosen
    Challenger(
        task=result.task,
        options=result.options,
        task_state=result.task_state,
        columns=result.columns,
        training_fingerprint=result.fingerprint,
        metric=metric,
        direction=direction,
        chosen_step=chosen.step,
        chosen_averaged=chosen.averaged,
        candidates=selection.candidates,
        reason=selection.reason,
        diagnosis=diagnosis,
        weights_sha256=export_weights(chosen.uri, Path(challenger), averaged=chosen.averaged),
    ).write(Path(challenger))
    write_report(
        Path(report),
        training=result,
        selection=selection,
        metric=metric,
        diagnosis=diagnosis,
        unit=blocks.unit,
    )
    values = selection.figures(metric)
    open_tracking(Environment.read(), section.model.name).log_metrics(values)
    return StepResult(metrics=values, summary=selection.reason)


def _score(result: TrainingResult, dataset: Dataset) -> tuple[Task, list[Candidate]]:
    """All weights that can be read, averages too, on the same rows; damaged ones are left out."""
    columns = block_columns(dataset.snapshot.data)
    tasks, candidates = [], []
    for record in result.checkpoints:
        try:
            for averaged, task, model in load_checkpoint_models(record.uri, result):
                model.to(scoring_device())
                scored = score_split(task, model, dataset, Split.VALIDATION, keep=columns)
                tasks.append(task)
                candidates.append(Candidate(record, scored, averaged))
        except DamagedCheckpointError as error:
            logger.warning("checkpoint=%s left out: %s", record.uri, error)
    if not candidates:
        raise NoCheckpointError(
            "none of the kept checkpoints can be read",
            evidence=f"{len(result.checkpoints)} were kept by the training",
            action="run the same command again: the training starts anew",
        )
    return tasks[0], candidates
