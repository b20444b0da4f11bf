"""Averaging: select checkpoints to average, and build a model with their mean weights.

Batch normalisation keeps mean and variance of its inputs during the training. With averaged weights
its inputs differ, so its statistics are computed again over training rows, as
`torch.optim.swa_utils.update_bn` does, except that dropout stays off, as for predictions.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from perennial.contracts.data import Split
from perennial.contracts.training import CheckpointRecord, Direction, TrainingResult
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.data.batching import fixed_sample
from perennial.engine.evaluation.resampling import sign_of
from perennial.engine.parallelism.normalization import BATCH_NORMS, BatchNorm
from perennial.engine.task import Batch, Task, inputs_of, to_device
from perennial.select_checkpoint.config import SelectionSection

# This many rows give a channel's mean to within 1.1% of its deviation (1 / sqrt(8,192)); more would
# cost memory: they are held as in the dataset, compressed pictures for instance.
ROWS = 8_192
BATCH_ROWS = 512
READ_ROWS = 16_384
SEED = 0  # the same rows, order and augmentation for every candidate and for the export


def choose_members(
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
        add_to_mean(mean, load_checkpoint_model(record.uri, result)[1].state_dict(), count)
    return task, model


@torch.no_grad()
def add_to_mean(mean: Mapping[str, Tensor], new: Mapping[str, Tensor], count: int) -> None:
    """Make the state of a model the mean of `count` states, one more than before, in place."""
    # Tied weights have several names and one storage, which must be updated once.
    places = {(value.data_ptr(), value.shape): name for name, value in mean.items()}
    for name in places.values():
        if mean[name].is_floating_point():
            mean[name].lerp_(new[name], 1.0 / count)
        else:
            mean[name].copy_(new[name])


def normalizations(model: nn.Module) -> list[BatchNorm]:
    """Return the model's batch normalisations that keep running statistics."""
    found = (each for each in model.modules() if isinstance(each, BATCH_NORMS))
    return [each for each in found if each.track_running_stats]


def sampled_rows(dataset: Dataset, rows: int = ROWS) -> pl.DataFrame:
    """Sample rows of the training split in one pass, in random order.

    A dataset is often in order of time with similar neighbours: a contiguous sample would have the
    variance of a day.
    """
    chosen = fixed_sample(dataset.snapshot.split_rows[Split.TRAIN], rows, SEED)
    parts, start = [], 0
    for batch in dataset.batches(Split.TRAIN, READ_ROWS):
        within = chosen[(chosen >= start) & (chosen < start + batch.height)] - start
        parts.append(batch[within])
        start += batch.height
    found = pl.concat(parts)
    return found[np.random.default_rng(SEED).permutation(found.height)]


def training_batches(task: Task, rows: pl.DataFrame, device: torch.device) -> Iterator[Batch]:
    """Yield the rows encoded and augmented, as in training."""
    generator = torch.Generator().manual_seed(SEED)
    # Batches of nearly equal size: a batch of a single row would have no variance.
    for index in np.array_split(np.arange(rows.height), -(-rows.height // BATCH_ROWS)):
        batch = task.augment(task.encode(rows[index]), generator)
        yield to_device(batch, device)


@torch.no_grad()
def recompute_statistics(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Compute a model's running statistics again in evaluation mode; all batches count equally."""
    found = normalizations(model)
    momenta = [each.momentum for each in found]
    for each in found:
        each.reset_running_stats()
        each.momentum = None  # the mean over all batches
        each.train()
    for batch in batches:
        model(**inputs_of(batch))
    for each, momentum in zip(found, momenta, strict=True):
        each.momentum = momentum
        each.eval()
