"""Running statistics: those of batch normalisations, computed again for averaged weights.

Batch normalisation keeps mean and variance of its inputs during the training. With averaged weights
its inputs differ, so its statistics are computed again over training rows, as
`torch.optim.swa_utils.update_bn` does, except that dropout stays off, as for predictions. One that
was frozen keeps the statistics that the rest was trained with.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from perennial.contracts.data import Split
from perennial.data.dataset import Dataset
from perennial.engine.data.batching import fixed_sample
from perennial.engine.optimization.parameters import frozen_normalizations
from perennial.engine.task import Batch, Task, inputs_of, to_device

# This many rows give a channel's mean to within 1.1% of its deviation (1 / sqrt(8,192)); more would
# cost memory: they are held as in the dataset, compressed pictures for instance.
ROWS = 8_192
BATCH_ROWS = 512
READ_ROWS = 16_384
SEED = 0  # the same rows, order and augmentation for every candidate and for the export


def normalizations(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch normalisations whose running statistics move in training."""
    mode = model.training
    model.train()  # a model may keep some of them in evaluation mode
    found = [each for each in model.modules() if isinstance(each, _BatchNorm)]
    moving = [each for each in found if each.track_running_stats and each.training]
    model.train(mode)
    frozen = {id(each) for each in frozen_normalizations(model)}
    return [each for each in moving if id(each) not in frozen]


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
