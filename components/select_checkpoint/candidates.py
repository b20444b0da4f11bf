"""Candidates: which weights may be chosen, and what each scores on all validation rows?"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from components.clients.dataset import Dataset
from components.contracts.data import Split
from components.contracts.errors import NoCheckpointError
from components.contracts.training import (
    CheckpointRecord,
    Direction,
    ScoredCandidate,
    TrainingResult,
)
from components.engine.checkpoints.checkpointer import load_checkpoint_model, load_checkpoint_models
from components.engine.checkpoints.folder import DamagedCheckpointError
from components.engine.evaluation.resampling import block_columns, sign_of
from components.engine.evaluation.scoring import Scored, score_split, scoring_device
from components.engine.export import export_weights, write_weights
from components.engine.task import Task
from components.select_checkpoint.config import SelectionSection
from components.select_checkpoint.selection import Candidate, is_finite

logger = logging.getLogger(__name__)


def score_checkpoints(result: TrainingResult, dataset: Dataset) -> list[Candidate]:
    """All weights that can be read, averages too, on the same rows; damaged ones are left out.

    Raises:
        NoCheckpointError: none can be read.
    """
    candidates = []
    for record in result.checkpoints:
        try:
            for averaged, task, model in load_checkpoint_models(record.uri, result):
                candidates.append(Candidate(record, _score(task, model, dataset), averaged))
        except DamagedCheckpointError as error:
            logger.warning("checkpoint=%s left out: %s", record.uri, error)
    if not candidates:
        raise NoCheckpointError(
            "none of the kept checkpoints can be read",
            evidence=f"{len(result.checkpoints)} were kept by the training",
            action="run the same command again: the training starts anew",
        )
    return candidates


def score_means(
    task: Task,
    result: TrainingResult,
    dataset: Dataset,
    candidates: Sequence[Candidate],
    *,
    section: SelectionSection,
    metric: str,
    direction: Direction,
) -> list[Candidate]:
    """The means of checkpoints that the section asks for, on the same rows.

    Args:
        task: Computes the metric.
        result: The training.
        dataset: Where the rows come from.
        candidates: What the kept checkpoints score.
        section: Which means are asked for.
        metric: By which the best are the best.
        direction: Which way it is better.
    """
    plain = [each for each in candidates if not each.averaged and is_finite(each, task, metric)]
    figures = {each.record.step: each.scored.metrics(task)[metric] for each in plain}
    means = []
    for members in _memberships(figures, section, direction):
        records = [record for record in result.checkpoints if record.step in members]
        model = mean_model(records, result)
        newest = max(records, key=lambda record: record.step)
        means.append(Candidate(newest, _score(task, model, dataset), members=members))
    return means


def mean_model(records: Sequence[CheckpointRecord], result: TrainingResult) -> nn.Module:
    """A model with the mean of the weights of checkpoints, two models in memory at a time.

    Running statistics are averaged too, which is close to those of the mean model and costs no
    pass over the data; counters and other whole numbers are those of the newest.
    """
    ordered = sorted(records, key=lambda record: record.step)
    model = load_checkpoint_model(ordered[0].uri, result)[1]
    mean = model.state_dict()
    for count, record in enumerate(ordered[1:], start=2):
        take_in(mean, load_checkpoint_model(record.uri, result)[1].state_dict(), count)
    return model


def export(chosen: ScoredCandidate, result: TrainingResult, folder: Path) -> str:
    """Store the chosen weights; returns their file's SHA-256."""
    if chosen.members:
        records = [record for record in result.checkpoints if record.step in chosen.members]
        return write_weights(mean_model(records, result), folder)
    return export_weights(chosen.uri, folder, averaged=chosen.averaged)


@torch.no_grad()
def take_in(mean: Mapping[str, Tensor], new: Mapping[str, Tensor], count: int) -> None:
    """Make the state of a model the mean of `count` states, one more than before, in place.

    Args:
        mean: As `state_dict` gives it: the model's own tensors.
        new: The state that is added.
        count: How many states it then is the mean of.
    """
    # Tied weights have several names and one place, which must move once.
    places = {(value.data_ptr(), value.shape): name for name, value in mean.items()}
    for name in places.values():
        if mean[name].is_floating_point():
            mean[name].lerp_(new[name], 1.0 / count)
        else:
            mean[name].copy_(new[name])


def _memberships(
    figures: Mapping[int, float], section: SelectionSection, direction: Direction
) -> list[tuple[int, ...]]:
    """The steps of each mean that is asked for; none of a single checkpoint, none twice."""
    sign = sign_of(direction)
    newest = sorted(figures, reverse=True)
    best = sorted(figures, key=lambda step: (-sign * figures[step], step))
    asked = (newest[: section.average_last or 0], best[: section.average_best or 0])
    found = [tuple(sorted(steps)) for steps in asked]
    return list(dict.fromkeys(members for members in found if len(members) > 1))


def _score(task: Task, model: nn.Module, dataset: Dataset) -> Scored:
    model.to(scoring_device())
    columns = block_columns(dataset.snapshot.data)
    return score_split(task, model, dataset, Split.VALIDATION, keep=columns)
