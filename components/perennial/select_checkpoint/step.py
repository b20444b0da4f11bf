"""The step `select_checkpoint`: score every kept checkpoint and export the chosen one."""

from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.tracking import open_tracking
from perennial.contracts.environment import Environment
from perennial.contracts.training import Challenger, Direction, TrainingResult
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import load_task
from perennial.select_checkpoint.alternatives import alternatives
from perennial.select_checkpoint.candidates import export, score_checkpoints, score_means
from perennial.select_checkpoint.config import SelectCheckpointConfig, SelectionSection
from perennial.select_checkpoint.diagnosis import Diagnosis, diagnose, is_still_improving
from perennial.select_checkpoint.report import write_report
from perennial.select_checkpoint.rescoring import Rescoring
from perennial.select_checkpoint.selection import Selection, limits_of, metric_and_direction, select
from perennial.steps.decorator import StepResult, pipeline_step


@pipeline_step(
    "select_checkpoint", reads=SelectCheckpointConfig, outputs=("challenger", "report", "metrics")
)
def select_checkpoint_step(
    *, contract: str, snapshot: str, training: str, challenger: str, report: str, metrics: str
) -> StepResult:
    """Score the kept checkpoints on all validation rows and export the best."""
    section = SelectCheckpointConfig.from_json(contract)
    result = select_challenger(
        section.selection, Path(snapshot), Path(training), Path(challenger), page=Path(report)
    )
    open_tracking(Environment.read(), section.model.name).log_metrics(result.metrics)
    return result


def select_challenger(
    rule: SelectionSection, snapshot: Path, training: Path, challenger: Path, *, page: Path
) -> StepResult:
    """Choose a training's checkpoint by a rule and export it.

    Args:
        rule: How to choose.
        snapshot: Folder of the `Snapshot`.
        training: Folder of the `TrainingResult`.
        challenger: Folder to write the `Challenger` and its weights to.
        page: The HTML file to write.
    """
    with TemporaryDirectory(prefix="perennial-scores-") as scratch:
        rescoring = Rescoring(training, snapshot, Path(scratch), rule.processes)
        result = rescoring.result
        task = load_task(result.task, result.options, result.columns)
        task.load_state(result.task_state)
        # Check before hours are spent on scoring.
        metric, direction = metric_and_direction(task, rule.metric)
        limits = limits_of(task, rule.limits)
        # A metric may be undefined on the sample but defined on all rows.
        evaluations = [point for point in result.evaluations if metric in point.metrics]
        kept = score_checkpoints(rescoring)
        means = score_means(task, rescoring, kept, section=rule, metric=metric, direction=direction)
        blocks = rescoring.blocks()
        selection = select(
            task, [*kept, *means], blocks,
            metric=metric, direction=direction, limits=limits,
            tolerance=rule.tolerance_standard_errors,
            improving=is_still_improving(evaluations, metric, direction),
        )  # fmt: skip
    diagnosis = diagnose(evaluations, metric, direction)
    chosen = selection.chosen
    weights_sha256 = export(chosen, rescoring, challenger)
    _challenger_of(result, selection, diagnosis, metric, direction, weights_sha256).write(
        challenger
    )
    make_servable(challenger, rescoring.dataset)
    write_report(
        page,
        training=result,
        selection=selection,
        metric=metric,
        diagnosis=diagnosis,
        others=alternatives(
            evaluations, selection.candidates, chosen, metric=metric, direction=direction
        ),
        unit=blocks.unit,
    )
    return StepResult(metrics=selection.figures(metric), summary=selection.reason)


def _challenger_of(
    result: TrainingResult,
    selection: Selection,
    diagnosis: Diagnosis,
    *,
    by: tuple[str, Direction],
    weights_sha256: str,
) -> Challenger:
    chosen, (metric, direction) = selection.chosen, by
    return Challenger(
        task=result.task,
        options=result.options,
        task_state=result.task_state,
        columns=result.columns,
        training_fingerprint=result.fingerprint,
        metric=metric,
        direction=direction,
        chosen_step=chosen.step,
        chosen_averaged=chosen.averaged,
        chosen_members=chosen.members,
        candidates=selection.candidates,
        reason=selection.reason,
        diagnosis=diagnosis.findings,
        advice=diagnosis.advice,
        next_steps=diagnosis.next_steps,
        weights_sha256=weights_sha256,
    )
