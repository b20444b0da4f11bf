"""Teachers of tests: tiny trainings whose weights are pinned as versions, and tasks that learn."""

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.contracts.initial_model import FormerTask, InitialModel, Teachers
from perennial.engine.task import LABEL, Task
from stored_weights import store_weights
from tiny_training import TinyModel, TinyTask

CLASSES = 3


class TinyClasses(TinyTask):
    """Three classes of the same rows, below, about and above their mean."""

    kind = "multiclass"

    def encode(self, rows):
        batch = super().encode(rows)
        codes = np.digitize(batch[LABEL].numpy(), [-0.7, 0.7])
        return {**batch, LABEL: torch.from_numpy(codes)}

    def build_model(self):
        model = TinyModel(self.options)
        model.head = nn.Linear(9, CLASSES)
        return model

    def losses(self, output, batch):
        losses = nn.functional.cross_entropy(output, batch[LABEL], reduction="none")
        if torch.is_grad_enabled() and not output.is_meta:
            losses = self._strike(losses)
            self.calls += 1
        return losses

    def predict(self, output):
        return Task.predict(self, output)

    def score(self, predictions, labels):
        right = predictions.argmax(axis=1) == labels
        return {"rmse": float(1.0 - right.mean())}


class TinyStandardised(TinyTask):
    """Labels are divided by their spread, which the task has fitted."""

    def fit(self, train):
        super().fit(train)
        self.spread = train.select(pl.col("y").std()).collect().item()

    def state(self):
        return {**super().state(), "spread": self.spread}

    def load_state(self, state):
        super().load_state(state)
        self.spread = state["spread"]

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL] / self.spread}


def pinned(store, task: Task, state: dict, number: int = 1, **origin) -> InitialModel:
    """A version with this task and these weights, as a run pins it."""
    found = store_weights(store, state)
    told = {"source": "version", "model": "big", "version": str(number), **origin}
    kind = type(task)
    return found.model_copy(
        update={
            "origin": found.origin.model_copy(update=told),
            "former": FormerTask(
                task=f"{kind.__module__}:{kind.__qualname__}",
                options=task.options.model_dump(mode="json"),
                columns=task.columns,
                state=task.state(),
            ),
        }
    )


def teachers_of(*members: InitialModel) -> Teachers:
    """Pinned versions, as a step hands them on."""
    names = tuple(f"{each.origin.model}@{each.origin.version}" for each in members)
    return Teachers(asked=names, members=members)
