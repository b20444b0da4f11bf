"""Means: select checkpoints to average, and build the model with the mean weights."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from perennial.contracts.training import CheckpointRecord, Direction, TrainingResult
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.evaluation.resampling import sign_of
from perennial.engine.task import Task
from perennial.select_checkpoint.config import SelectionSection


def memberships(
    figures: Mapping[int, float], section: SelectionSection, direction: Direction
) -> list[tuple[int, ...]]:
    """Return the steps of each mean to score, without single checkpoints and duplicates."""
    sign = sign_of(direction)
    newest = sorted(figures, reverse=True)
    best = sorted(figures, key=lambda step: (-sign * figures[step], step))
    asked = (newest[: section.average_last or 0], best[: section.average_best or 0])
    found = [tuple(sorted(steps)) for steps in asked]
    return list(dict.fromkeys(members for members in found if len(members) > 1))


def mean_model(
    records: Sequence[CheckpointRecord], result: TrainingResult
) -> tuple[Task, nn.Module]:
    """Return a model with the mean weights of checkpoints; two models are in memory at a time.

    Running statistics are averaged too, but do not fit the mean model: compute them again. Counters
    and other integers are those of the newest.
    """
    task, model = load_checkpoint_model(records[0].uri, result)
    mean = model.state_dict()
    for count, record in enumerate(records[1:], start=2):
        take_in(mean, load_checkpoint_model(record.uri, result)[1].state_dict(), count)
    return task, model


@torch.no_grad()
def take_in(mean: Mapping[str, Tensor], new: Mapping[str, Tensor], count: int) -> None:
    """Make the state of a model the mean of `count` states, one more than before, in place."""
    # Tied weights have several names and one storage, which must be updated once.
    places = {(value.data_ptr(), value.shape): name for name, value in mean.items()}
    for name in places.values():
        if mean[name].is_floating_point():
            mean[name].lerp_(new[name], 1.0 / count)
        else:
            mean[name].copy_(new[name])
