"""Candidates: score the weights that may be chosen, and export the chosen ones."""

import logging
from collections.abc import Sequence
from pathlib import Path

from perennial.contracts.errors import NoCheckpointError
from perennial.contracts.training import CheckpointRecord, Direction, ScoredCandidate
from perennial.engine.checkpoints.checkpoint_store import fetch_checkpoint
from perennial.engine.checkpoints.export import export_weights
from perennial.engine.checkpoints.folder import DamagedCheckpointError
from perennial.engine.export import write_weights
from perennial.engine.task import Task
from perennial.select_checkpoint.config import SelectionSection
from perennial.select_checkpoint.means import memberships
from perennial.select_checkpoint.rescoring import Rescoring
from perennial.select_checkpoint.running_statistics import normalizations
from perennial.select_checkpoint.selection import Candidate, is_finite

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
    """Score the means of checkpoints that the section asks for, on the same rows.

    Args:
        task: Computes the metric.
        rescoring: Scores weights of the training.
        candidates: Scores of the kept checkpoints.
        section: Which means to score.
        metric: The metric by which the best are selected.
        direction: Whether higher or lower is better.
    """
    plain = [each for each in candidates if not each.averaged and is_finite(each, task, metric)]
    figures = {each.record.step: each.scored.metric(task, metric) for each in plain}
    records = {each.record.step: each.record for each in plain}
    work = memberships(figures, section, direction)
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
