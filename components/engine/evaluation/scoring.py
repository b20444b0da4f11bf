"""Evaluation: a model's losses and predictions on a split, streamed, in file order."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import nn

from components.clients.dataset import Dataset
from components.contracts.data import Split
from components.engine.task import LABEL, Batch, Task, inputs_of

BATCH_ROWS = 4096


@dataclass(frozen=True)
class Scored:
    """A model on N rows.

    Attributes:
        losses: Loss of each row, shape [N].
        predictions: As the task's `kind` says, shape [N] or [N, C].
        labels: Encoded labels, shape [N].
        rows: The columns asked for, N rows, in the same order.
    """

    losses: NDArray[np.float64]
    predictions: NDArray[np.float64]
    labels: NDArray[np.float64]
    rows: pl.DataFrame

    def metrics(self, task: Task) -> dict[str, float]:
        """The task's metrics and `loss`, over all rows."""
        return task.score(self.predictions, self.labels) | {"loss": float(self.losses.mean())}


def score_split(
    task: Task, model: nn.Module, dataset: Dataset, split: Split, *, keep: Sequence[str] = ()
) -> Scored:
    """Score every row of a split.

    Args:
        task: The model's task, fitted.
        model: On any device; put into evaluation mode here and back afterwards.
        dataset: Where the rows come from.
        split: Which rows.
        keep: Columns to return beside the scores, for blocks and slices.
    """
    parts = []
    kept = []
    for rows in dataset.batches(split, BATCH_ROWS):
        parts.append(score_batch(task, model, task.encode(rows)))
        kept.append(rows.select(list(dict.fromkeys(keep))))
    losses, predictions, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Scored(losses, predictions, labels, pl.concat(kept))


def score_batch(
    task: Task, model: nn.Module, batch: Batch
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Losses [B], predictions [B] or [B, C] and labels [B] of one encoded batch."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(**inputs_of(batch)).float()  # bfloat16 under autocast
            losses = task.losses(output, batch)
            predictions = task.predict(output)
    finally:
        model.train(training)
    arrays = (losses, predictions, batch[LABEL])
    losses_b, predictions_b, labels_b = (value.detach().double().cpu().numpy() for value in arrays)
    return losses_b, predictions_b, labels_b
