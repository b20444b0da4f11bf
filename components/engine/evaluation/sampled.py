"""Sampled evaluation: how good is the model now, on the same validation rows each time?"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import nn

from components.contracts.errors import TrainingFailedError
from components.engine.config import TrainingSection
from components.engine.data.batching import fixed_sample
from components.engine.data.encoded import EncodedSplit
from components.engine.distributed import World, synchronize_buffers
from components.engine.evaluation.scoring import BATCH_ROWS, score_batch
from components.engine.parallelism.parallelize import free_gathered_parameters
from components.engine.precision import computation
from components.engine.task import Task

Arrays = tuple[NDArray[np.float64], ...]


@dataclass(frozen=True)
class SampledEvaluation:
    """Scores a fixed sample of the validation split, each rank a part of it.

    Attributes:
        task: Fitted.
        split: The encoded validation split.
        training: Sample size, seed, precision.
        world: All ranks call it together.
    """

    task: Task
    split: EncodedSplit
    training: TrainingSection
    world: World

    def __call__(self, model: nn.Module, step: int) -> dict[str, float]:
        """The task's metrics and `loss` over the sample, the same on every rank.

        Raises:
            TrainingFailedError: a metric is not finite.
        """
        synchronize_buffers(model, self.world)
        parts = self.world.to_first(self._score_share(model))
        metrics = None
        if parts is not None:
            losses, predictions, labels = (
                np.concatenate(part) for part in zip(*parts, strict=True)
            )
            metrics = self.task.score(predictions, labels) | {"loss": float(losses.mean())}
        metrics = self.world.from_first(metrics)
        if not all(math.isfinite(value) for value in metrics.values()):
            raise TrainingFailedError(
                f"the evaluation at step {step} is not finite",
                evidence=", ".join(f"{name} = {value}" for name, value in metrics.items()),
                action="look at the loss and the gradient norm before it; lower the learning rate",
            )
        return metrics

    def _score_share(self, model: nn.Module) -> Arrays:
        sample = fixed_sample(self.split.rows, self.training.evaluation_rows, self.training.seed)
        shares = np.array_split(sample, self.world.size)
        mine = shares[self.world.rank]
        scored = []
        # A sharded model's forward pass is a collective: all ranks make equally many, and one
        # that has no rows left scores a row that is then dropped.
        for start in range(0, max(map(len, shares)), BATCH_ROWS):
            rows = mine[start : start + BATCH_ROWS]
            batch = self.split.gather(rows if len(rows) else sample[:1])
            batch = {name: tensor.to(self.world.device) for name, tensor in batch.items()}
            with computation(self.training, self.world.device):
                arrays = score_batch(self.task, model, batch)
            scored.append([array[: len(rows)] for array in arrays])
        free_gathered_parameters(model)
        return tuple(np.concatenate(column) for column in zip(*scored, strict=True))
