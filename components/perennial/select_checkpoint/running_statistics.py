"""Running statistics: those that weights have which no forward pass of the training ever saw.

Batch normalisation remembers mean and variance of what reached it under the weights of a training.
With averaged weights something else reaches it, so its statistics are taken anew, over training
rows, as `torch.optim.swa_utils.update_bn` does; only that dropout stays off, as when predicting.
"""

from collections.abc import Iterable, Iterator

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.contracts.data import Split
from perennial.data.dataset import Dataset
from perennial.engine.data.batching import fixed_sample
from perennial.engine.normalization import BATCH_NORMS, BatchNorm
from perennial.engine.task import Batch, Task, inputs_of

# So many rows know a channel's mean to within 1.1% of its deviation (1 / sqrt(8,192)), more would
# cost memory: they are held as the dataset has them, compressed pictures for instance.
ROWS = 8_192
BATCH_ROWS = 512
READ_ROWS = 16_384
SEED = 0  # the same rows, order and augmentation for every candidate and for the export


def normalizations(model: nn.Module) -> list[BatchNorm]:
    """Its batch normalisations that keep running statistics."""
    found = (each for each in model.modules() if isinstance(each, BATCH_NORMS))
    return [each for each in found if each.track_running_stats]


def sampled_rows(dataset: Dataset, rows: int = ROWS) -> pl.DataFrame:
    """Rows of the training split, drawn from all of it in one pass, in random order.

    A dataset is often in the order of time, and neighbours alike: their variance would be that of a
    day.
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
    """The rows as training sees them: encoded and augmented."""
    generator = torch.Generator().manual_seed(SEED)
    # As equal as whole rows allow: a single row would have no variance.
    for index in np.array_split(np.arange(rows.height), -(-rows.height // BATCH_ROWS)):
        batch = task.augment(task.encode(rows[index]), generator)
        yield {name: tensor.to(device) for name, tensor in batch.items()}


@torch.no_grad()
def renew(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Take the running statistics of a model in evaluation mode anew; every batch counts alike."""
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
