"""Candidates: score the weights that may be chosen, and export the chosen ones."""

import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

from perennial.clients.outages import errors_logged
from perennial.contracts.errors import NoCheckpointError, PerennialError, ShardingError
from perennial.contracts.initial import EnsembleSection
from perennial.contracts.initial_model import Champions
from perennial.contracts.training import (
    Challenger,
    CheckpointRecord,
    Direction,
    ScoredCandidate,
)
from perennial.engine.adapters import base_names, merge_adapter
from perennial.engine.checkpoints.checkpoint_store import (
    fetch_checkpoint,
    quarantine_checkpoint,
)
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.checkpoints.folder import DamagedCheckpointError
from perennial.engine.checkpoints.reading import export_weights
from perennial.engine.evaluation.diagnosis import Diagnosis, diagnose, is_still_improving
from perennial.engine.evaluation.processes import WHOLE, Shards
from perennial.engine.evaluation.resampling import direction_of
from perennial.engine.evaluation.running_statistics import normalizations
from perennial.engine.export import write_weights
from perennial.engine.serving.servable import make_servable
from perennial.engine.task import Task, load_task
from perennial.select_checkpoint.config import SelectionSection
from perennial.select_checkpoint.ensembling import consider_ensemble
from perennial.select_checkpoint.report import write_report
from perennial.select_checkpoint.rescoring import Rescoring, choose_members
from perennial.select_checkpoint.selection import (
    Candidate,
    Choice,
    is_finite,
    select,
)
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


def export(chosen: ScoredCandidate, rescoring: Rescoring, folder: Path) -> tuple[str, int | None]:
    """Store the chosen weights, an adapter with or without its base.

    Returns: Their SHA-256, and the number of columns of the model's predictions, if it was scored
    in shards, so that no process can tell it.
    """
    if rescoring.is_sharded:
        steps = chosen.members or (chosen.step,)
        found = rescoring.export_shards(steps, folder, averaged=chosen.averaged)
        return found.weights_sha256, found.width
    return _export_whole(chosen, rescoring, folder), None


def _export_whole(chosen: ScoredCandidate, rescoring: Rescoring, folder: Path) -> str:
    model, adapter = _made_model(chosen, rescoring), rescoring.result.adapter
    if model is None and adapter is not None and adapter.merge:
        model = load_checkpoint_model(chosen.uri, rescoring.result, averaged=chosen.averaged)[1]
    if model is None:
        return export_weights(chosen.uri, folder, averaged=chosen.averaged)
    if adapter is not None and adapter.merge:
        merge_adapter(model)
        return write_weights(model, folder)
    return write_weights(model, folder, base_names(model, adapter))


def _made_model(chosen: ScoredCandidate, rescoring: Rescoring) -> nn.Module | None:
    """Return the chosen model if no checkpoint holds its weights or running statistics."""
    if chosen.members:
        return rescoring.untrained(chosen.members, averaged=False)[1]
    if chosen.averaged:
        model = rescoring.untrained((chosen.step,), averaged=True)[1]
        return model if normalizations(model) else None
    return None


def _is_intact(record: CheckpointRecord) -> bool:
    try:
        fetch_checkpoint(record.uri)
    except DamagedCheckpointError as error:
        logger.warning("checkpoint=%s skipped: %s", record.uri, error)
        # Or the training would count as finished: of checkpoints in an object store, it looks at
        # the listings alone.
        with errors_logged(f"checkpoint={record.uri} cannot be quarantined"):
            quarantine_checkpoint(record.uri)
        return False
    return True


def select_challenger(
    rule: SelectionSection,
    snapshot: Path,
    training: Path,
    challenger: Path,
    *,
    page: Path,
    ensemble: EnsembleSection | None = None,
    shards: Shards = WHOLE,
) -> StepResult:
    """Choose a training's checkpoint by a rule and export it, or the ensemble with champions.

    Raises:
        PerennialError: an ensemble is asked for, but no step has resolved the champions.
        ShardingError: the models cannot be scored in shards.
    """
    if shards.number > 1 and ensemble is not None:
        raise ShardingError(
            f"scoring.shards = {shards.number}, but [model.ensemble] scores its members whole",
            action="set scoring.shards = 1, or remove [model.ensemble]",
        )
    champions = _find_champions(training, ensemble)
    with TemporaryDirectory(prefix="perennial-scores-") as scratch:
        rescoring = Rescoring(training, snapshot, Path(scratch), rule.processes, shards=shards)
        choice = _choose(rule, rescoring)
        diagnosis = diagnose(choice.evaluations, choice.metric, choice.direction)
        width = _export(choice, rescoring, diagnosis, champions, challenger)
    found = None
    if ensemble is not None and champions is not None:
        found = consider_ensemble(
            ensemble,
            champions,
            challenger,
            rescoring.dataset,
            choice.blocks,
            metric=choice.metric,
            limits=rule.limits,
        )
    # After the ensemble, which may have replaced the weights and the task that are served.
    make_servable(challenger, rescoring.dataset, width)
    write_report(page, rescoring.result, choice, diagnosis, found)
    figures, summary = choice.selection.figures(choice.metric), choice.selection.reason
    if found is not None and found.members:
        figures[f"validation/ensemble_{choice.metric}"] = found.figures[1]
    return StepResult(metrics=figures, summary=f"{summary}; {found.reason}" if found else summary)


def _choose(rule: SelectionSection, rescoring: Rescoring) -> Choice:
    result = rescoring.result
    task = load_task(result.task, result.options, result.columns)
    task.load_state(result.task_state)
    metric = rule.metric or next(iter(task.metrics))  # checked before hours of scoring
    direction = direction_of(task, metric, "selection.metric")
    for name in rule.limits:
        direction_of(task, name, "selection.limits")
    # A metric may be undefined on the sample but defined on all rows.
    evaluations = [point for point in result.evaluations if metric in point.metrics]
    # On all rows: the figures of the training are of a sample, and the best
    # of noisy ones is biased.
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
    return Choice(metric, direction, evaluations, blocks, selection)


def _export(
    choice: Choice,
    rescoring: Rescoring,
    diagnosis: Diagnosis,
    champions: Champions | None,
    folder: Path,
) -> int | None:
    result, selection = rescoring.result, choice.selection
    chosen = selection.chosen
    weights_sha256, width = export(chosen, rescoring, folder)
    Challenger(
        task=result.task,
        options=result.options,
        task_state=result.task_state,
        columns=result.columns,
        training_fingerprint=result.fingerprint,
        metric=choice.metric,
        direction=choice.direction,
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
        weights_sha256=weights_sha256,
        initial=result.initial,
        adapter=result.adapter,
        teachers=result.teachers,
        champions=champions,
    ).write(folder)
    return width


def _find_champions(place: Path, ensemble: EnsembleSection | None) -> Champions | None:
    if ensemble is None:
        return None
    champions = Champions.find(place)
    if champions is None:
        raise PerennialError(
            "the champions for model.ensemble were not resolved",
            evidence=f"{place} does not name them",
            action="start the run at check_skeleton, which pins them",
        )
    return champions
