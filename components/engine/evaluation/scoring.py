"""Evaluation: a model's losses and predictions on a split, streamed, in file order."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TypeAlias

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

from components.clients.dataset import Dataset
from components.contracts.data import Split
from components.engine.task import LABEL, WEIGHT, Batch, Task, inputs_of

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class ScoredBatch:
    """A model on some examples.

    Attributes:
        losses: Loss of each example, shape [N].
        predictions: As the task's `kind` says, shape [N] or [N, C]; for `statistic`, its
            statistics, shape [N] or [N, K].
        labels: Encoded labels, shape [N]; for `statistic`, the weights.
        weights: How much each example counts, shape [N]; 1 where the batch has no `weight`.
    """

    losses: Floats
    predictions: Floats
    labels: Floats
    weights: Floats

    def mean_loss(self) -> float:
        """Over all examples, by weight."""
        return float(self.weights @ self.losses / self.weights.sum())

    def metrics(self, task: Task) -> dict[str, float]:
        """The task's metrics and `loss`, over all examples."""
        return task.score(self.predictions, self.labels) | {"loss": self.mean_loss()}

    def at(self, rows: "slice | NDArray[np.bool_]") -> "ScoredBatch":
        """The same model on some of them."""
        return ScoredBatch(
            self.losses[rows], self.predictions[rows], self.labels[rows], self.weights[rows]
        )


@dataclass(frozen=True)
class Scored(ScoredBatch):
    """A model on the rows of a split.

    Attributes:
        rows: The columns asked for, N rows, in the same order.
    """

    rows: pl.DataFrame


# They say something about this machine, nothing about the model that was scored on it.
MACHINE_FAILURES = (MemoryError, OSError, torch.OutOfMemoryError, torch.AcceleratorError)


def scoring_device() -> torch.device:
    """Where a single process scores: the first GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def score_split(
    task: Task, model: nn.Module, dataset: Dataset, split: Split, *, keep: Sequence[str] = ()
) -> Scored:
    """Score every row of a split.

    Args:
        task: The model's task, fitted.
        model: Whole, on one device of any kind, to which the rows are brought; put into evaluation
            mode here and back afterwards.
        dataset: Where the rows come from.
        split: Which rows.
        keep: Columns to return beside the scores, for blocks and slices.
    """
    tensors = chain(model.parameters(), model.buffers())
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    parts = []
    kept = []
    for rows in dataset.batches(split, task.scoring_rows):
        batch = {name: tensor.to(device) for name, tensor in task.encode(rows).items()}
        parts.append(score_batch(task, model, batch))
        kept.append(rows.select(list(dict.fromkeys(keep))))
    whole = concatenated(parts)
    return Scored(whole.losses, whole.predictions, whole.labels, whole.weights, pl.concat(kept))


def score_in_parts(task: Task, model: nn.Module, batch: Batch) -> ScoredBatch:
    """The model on an encoded batch of any size, as many examples at a time as the task allows."""
    size = task.scoring_rows
    starts = range(0, len(batch[LABEL]), size)
    parts = [
        {name: tensor[start : start + size] for name, tensor in batch.items()} for start in starts
    ]
    return concatenated([score_batch(task, model, part) for part in parts])


def score_batch(task: Task, model: nn.Module, batch: Batch) -> ScoredBatch:
    """The model on one encoded batch."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(**inputs_of(batch)).float()  # bfloat16 under autocast
            losses = task.losses(output, batch)
            weights = batch.get(WEIGHT, torch.ones_like(losses))
            measures = task.kind == "statistic"
            predictions = task.statistic(output, batch) if measures else task.predict(output)
    finally:
        model.train(training)
    arrays = (losses, predictions, weights if measures else batch[LABEL], weights)
    return ScoredBatch(*(value.detach().double().cpu().numpy() for value in arrays))


def concatenated(parts: Sequence[ScoredBatch]) -> ScoredBatch:
    """Several batches as one."""
    return ScoredBatch(
        np.concatenate([part.losses for part in parts]),
        np.concatenate([part.predictions for part in parts]),
        np.concatenate([part.labels for part in parts]),
        np.concatenate([part.weights for part in parts]),
    )
