"""Sampled evaluation: scores the model on the same validation rows each time."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from perennial.contracts.errors import TrainingFailedError
from perennial.contracts.training import WatchedExamples
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import Indices, fixed_sample
from perennial.engine.data.encoded import EncodedSplit
from perennial.engine.evaluation.scoring import (
    ScoredBatch,
    concatenated,
    score_batch,
    take_one_each,
)
from perennial.engine.metrics.metric import Kind, UndefinedMetricError
from perennial.engine.parallelism.context import own_inputs, whole_sequences
from perennial.engine.parallelism.parallelize import free_gathered_parameters
from perennial.engine.parallelism.pipeline import Pipeline
from perennial.engine.precision import computation
from perennial.engine.task import LABEL, Task, inputs_of, to_device
from perennial.engine.world.distributed import World

# As many lines as a chart shows apart.
WATCHED = 8
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluated:
    """Measurements of a model on the sample, the same on every rank.

    Predictions for the watched examples are empty if one is not finite.
    """

    metrics: dict[str, float]
    watched: tuple[float, ...]


@dataclass(frozen=True)
class SampledEvaluation:
    """Scores a fixed sample of the validation split; each rank scores a part."""

    task: Task
    split: EncodedSplit
    training: TrainingSection
    world: World

    def __call__(self, model: nn.Module, step: int) -> Evaluated:
        """Return the task's metrics and `loss` over the sample, and the watched predictions.

        A metric that is undefined on the sample is left out with a log line; the metric by which
        checkpoints are kept must be defined.

        Raises:
            TrainingFailedError: a metric is not finite, or checkpoints cannot be compared.
        """
        # Scores are gathered, not metrics: the mean of the ranks' ROC areas is not that of all
        # rows.
        parts = self.world.to_first(self._score_share(model))
        found = None
        if parts is not None:
            scored = concatenated([part for part in parts if part])
            metrics = scored.metrics(self.task)
            watched = watched_values(self.task, scored.at(self._watched_places(len(scored.losses))))
            found = Evaluated(metrics, watched), _reasons(self.task, scored, metrics)
        evaluated, undefined = self.world.from_first(found)
        metrics = evaluated.metrics
        self._require_comparable(step, undefined)
        if not all(math.isfinite(value) for value in metrics.values()):
            raise TrainingFailedError(
                f"the evaluation at step {step} is not finite",
                evidence=", ".join(f"{name} = {value}" for name, value in metrics.items()),
                action="look at the loss and the gradient norm before it; lower the learning rate",
            )
        return evaluated

    def watched(self) -> WatchedExamples:
        """Return the examples whose predictions are kept: the same ones, spread over the sample."""
        sample = self._sample()
        rows = sample[np.flatnonzero(self._watched_places(len(sample)))]
        has_labels = self.task.kind in QUANTITIES
        labels = take_one_each(self.split.gather(rows)[LABEL]) if has_labels else torch.zeros(0)
        return WatchedExamples(
            rows=tuple(rows.tolist()),
            labels=tuple(labels.double().tolist()) if labels.ndim == 1 else (),
            quantity=QUANTITIES.get(self.task.kind)
            or (*self.task.prediction_names, "statistic")[0],
        )

    def _sample(self) -> Indices:
        return fixed_sample(self.split.rows, self.training.evaluation_rows, self.training.seed)

    @staticmethod
    def _watched_places(size: int) -> NDArray[np.bool_]:
        places = np.zeros(size, dtype=np.bool_)
        places[np.linspace(0, size - 1, min(WATCHED, size)).round().astype(np.int64)] = True
        return places

    def _require_comparable(self, step: int, undefined: Mapping[str, str]) -> None:
        if self.world.is_first:
            for name, reason in undefined.items():
                logger.warning("step=%d metric=%s left out: %s", step, name, reason)
        metric = self.training.metric or next(iter(self.task.metrics), "loss")
        if metric in undefined:
            raise TrainingFailedError(
                f"checkpoints are selected by {metric}, which is undefined on the evaluation "
                "sample",
                evidence=undefined[metric],
                action="raise training.evaluation_rows, or name another metric under "
                "training.metric",
            )

    def _score_share(self, model: nn.Module) -> ScoredBatch | None:
        """Return this rank's part; None where another process has the output."""
        sample = self._sample()
        shares = divided(sample, self.task.scored_together, self.world.data_size)
        mine = shares[self.world.data_rank]
        scorer = whole_sequences(model, self.task, self.world.layout)
        scored = []
        # A sharded model's forward pass is a collective: all ranks make equally many, and one
        # that has no rows left scores a row that is then dropped.
        size = self.task.scoring_rows
        for start in range(0, max(map(len, shares)), size):
            rows = mine[start : start + size]
            batch = self.split.gather(rows if len(rows) else sample[:1])
            batch = to_device(batch, self.world.device)
            if isinstance(model, Pipeline) and not model.has_output:
                model.pass_on(own_inputs(inputs_of(batch), self.task, self.world.layout))
                continue
            with computation(self.training, self.world.device):
                part = score_batch(self.task, scorer, batch)
            scored.append(part.at(slice(len(rows))))
        free_gathered_parameters(model)
        return concatenated(scored) if scored and self.world.layout.is_first_of_rows else None


QUANTITIES: Mapping[Kind, str] = MappingProxyType(
    {
        "binary": "probability of the second class",
        "multiclass": "probability of the right class",
        "regression": "prediction",
    }
)
"""What is kept of a prediction; of a kind that is not here, the first statistic or column."""


def watched_values(task: Task, scored: ScoredBatch) -> tuple[float, ...]:
    """Return one number of each prediction; nothing if one is not finite."""
    values = scored.predictions
    if values.ndim > 1:
        is_right = task.kind == "multiclass" and scored.labels.ndim == 1
        columns = scored.labels.astype(np.int64) if is_right else np.zeros(len(values), np.int64)
        values = values[np.arange(len(values)), columns]
    return tuple(values.tolist()) if np.isfinite(values).all() else ()


def _reasons(task: Task, scored: ScoredBatch, metrics: Mapping[str, float]) -> dict[str, str]:
    """Return why each missing metric is undefined on the examples."""
    found = {}
    for name in task.metrics.keys() - metrics.keys():
        try:
            scored.metric(task, name)
        except UndefinedMetricError as error:
            found[name] = f"{error.problem}: {error.evidence}"
    return found


def divided(sample: Indices, group: int, parts: int) -> list[Indices]:
    """Split the sample into contiguous parts of whole groups, as equally as possible."""
    groups = -(-len(sample) // group)
    edges = [min(len(sample), part * groups // parts * group) for part in range(parts + 1)]
    return [sample[start:stop] for start, stop in pairwise(edges)]
