"""Candidates: score the weights that may be chosen, and export the chosen ones."""

import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.contracts.errors import NoCheckpointError
from perennial.contracts.training import Challenger, CheckpointRecord, Direction, ScoredCandidate
from perennial.engine.checkpoints.checkpoint_store import fetch_checkpoint
from perennial.engine.checkpoints.export import export_weights
from perennial.engine.checkpoints.folder import DamagedCheckpointError
from perennial.engine.evaluation.diagnosis import diagnose, is_still_improving
from perennial.engine.evaluation.resampling import direction_of
from perennial.engine.export import write_weights
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import Task, load_task
from perennial.select_checkpoint.averaging import choose_members, normalizations
from perennial.select_checkpoint.config import SelectionSection
from perennial.select_checkpoint.report import write_report
from perennial.select_checkpoint.rescoring import Rescoring
from perennial.select_checkpoint.selection import Candidate, alternatives, is_finite, select
from perennial.steps.decorator import StepResult

logger = logging.getLogger(__name__)


def score_checkpoints(rescoring: Rescoring) -> list[Candidate]:
    """Score all readable weights, averages too, on the same rows; skip damaged ones.

    Raises:
        NoCheckpointError: none can be read.
    """
    kept = rescoring.result.checkpoints
    records = [record for record in kept if _is_intact(record)]
    if not records:
        raise NoCheckpointError(
            "none of the kept checkpoints can be read",
            evidence=f"the training kept {len(kept)}",
            action="run the same command again: the training starts from the beginning",
        )
    found = rescoring.scores([(record.step,) for record in records])
    return [
        Candidate(record, scored, averaged)
        for record, weights in zip(records, found, strict=True)
        for averaged, scored in weights
    ]


def score_means(
    task: Task,
    rescoring: Rescoring,
    candidates: Sequence[Candidate],
    *,
    section: SelectionSection,
    metric: str,
    direction: Direction,
) -> list[Candidate]:
    """Score the means of checkpoints that the section asks for, on the same rows."""
    plain = [each for each in candidates if not each.averaged and is_finite(each, task, metric)]
    figures = {each.record.step: each.scored.metric(task, metric) for each in plain}
    records = {each.record.step: each.record for each in plain}
    work = choose_members(figures, section, direction)
    return [
        Candidate(records[max(members)], scored, members=members)
        for members, weights in zip(work, rescoring.scores(work), strict=True)
        for _, scored in weights
    ]


def export(chosen: ScoredCandidate, rescoring: Rescoring, folder: Path) -> str:
    """Store the chosen weights; return their file's SHA-256."""
    if chosen.members:
        return write_weights(rescoring.untrained(chosen.members, averaged=False)[1], folder)
    if chosen.averaged:
        model = rescoring.untrained((chosen.step,), averaged=True)[1]
        if normalizations(model):  # of its own, which no checkpoint holds
            return write_weights(model, folder)
    return export_weights(chosen.uri, folder, averaged=chosen.averaged)


def _is_intact(record: CheckpointRecord) -> bool:
    try:
        fetch_checkpoint(record.uri)
    except DamagedCheckpointError as error:
        logger.warning("checkpoint=%s skipped: %s", record.uri, error)
        return False
    return True


def check_rule(rule: SelectionSection, task: Task) -> tuple[str, Direction]:
    """Return the metric that decides and its direction; the limits' metrics must exist, too."""
    metric = rule.metric or next(iter(task.metrics))
    for name in rule.limits:
        direction_of(task, name, "selection.limits")
    return metric, direction_of(task, metric, "selection.metric")


def select_challenger(
    rule: SelectionSection, snapshot: Path, training: Path, challenger: Path, *, page: Path
) -> StepResult:
    """Choose a training's checkpoint by a rule and export it."""
    with TemporaryDirectory(prefix="perennial-scores-") as scratch:
        rescoring = Rescoring(training, snapshot, Path(scratch), rule.processes)
        result = rescoring.result
        task = load_task(result.task, result.options, result.columns)
        task.load_state(result.task_state)
        metric, direction = check_rule(rule, task)  # before hours of scoring
        # A metric may be undefined on the sample but defined on all rows.
        evaluations = [point for point in result.evaluations if metric in point.metrics]
        kept = score_checkpoints(rescoring)
        means = score_means(task, rescoring, kept, section=rule, metric=metric, direction=direction)
        blocks = rescoring.blocks()
        selection = select(
            task,
            [*kept, *means],
            blocks,
            metric=metric,
            limits=rule.limits,
            tolerance=rule.tolerance_standard_errors,
            improving=is_still_improving(evaluations, metric, direction),
        )
    diagnosis, chosen = diagnose(evaluations, metric, direction), selection.chosen
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
        chosen_members=chosen.members,
        candidates=selection.candidates,
        reason=selection.reason,
        diagnosis=diagnosis.findings,
        advice=diagnosis.advice,
        signals=result.signals,
        turned_off=result.turned_off,
        next_steps=diagnosis.next_steps,
        weights_sha256=export(chosen, rescoring, challenger),
        initial=result.initial,
    ).write(challenger)
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
