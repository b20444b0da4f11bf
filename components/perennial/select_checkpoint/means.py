"""Means: of which checkpoints, and their weights as one model."""

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
    """The steps of each mean that is asked for; none of a single checkpoint, none twice.

    Args:
        figures: What each step's own weights score.
        section: Which means are asked for.
        direction: Which way a figure is better.
    """
    sign = sign_of(direction)
    newest = sorted(figures, reverse=True)
    best = sorted(figures, key=lambda step: (-sign * figures[step], step))
    asked = (newest[: section.average_last or 0], best[: section.average_best or 0])
    found = [tuple(sorted(steps)) for steps in asked]
    return list(dict.fromkeys(members for members in found if len(members) > 1))


def mean_model(
    records: Sequence[CheckpointRecord], result: TrainingResult
) -> tuple[Task, nn.Module]:
    """A model with the mean of the weights of checkpoints, two models in memory at a time.

    Running statistics are averaged, too, which is not what reaches the mean model: take them anew.
    Counters and other whole numbers are those of the newest.

    Args:
        records: In step order.
        result: The training that they belong to.
    """
    task, model = load_checkpoint_model(records[0].uri, result)
    mean = model.state_dict()
    for count, record in enumerate(records[1:], start=2):
        take_in(mean, load_checkpoint_model(record.uri, result)[1].state_dict(), count)
    return task, model


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
