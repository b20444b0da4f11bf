"""Tasks over columns and lists of numbers side by side, for tables that a test makes up itself."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch

from other_styles import Columns, Module, dataset_of
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS


class Numbers(Columns):
    """Columns and lists of numbers side by side; a text is a number by its place in the order."""

    kind = "regression"
    unread = ()

    def build_model(self):
        return Module(self.network(1), lambda output: output.squeeze(-1))

    def losses(self, output, batch):
        return (output - batch[LABEL].float()) ** 2

    def predict(self, output):
        return output

    def expected_initial_loss(self):
        return 1.0

    def fit(self, train):
        frame = train.collect()
        x = self.numbers(frame)
        texts = [name for name in self.used() if frame[name].dtype == pl.String]
        self.fitted = {
            "mean": x.mean(0).tolist(), "std": (x.std(0) + 1e-6).tolist(),
            "texts": {name: sorted(frame[name].drop_nulls().unique()) for name in texts},
        }  # fmt: skip

    def used(self):
        return [name for name in sorted(self.columns.features) if name not in self.unread]

    def numbers(self, frame):
        parts = []
        for name in self.used():
            column = frame[name]
            if column.dtype == pl.String:
                column = column.fill_null("").rank("dense")
            if isinstance(column.dtype, pl.List):
                parts.append(self.window(np.array(column.to_list(), dtype=np.float64)))
            else:
                parts.append(column.to_physical().cast(float).fill_null(-9).to_numpy()[:, None])
        return np.concatenate(parts, axis=1)

    def window(self, values):
        return values

    def encode(self, rows):
        x = self.numbers(rows)
        x = (x - np.array(self.fitted["mean"])) / np.array(self.fitted["std"])
        batch = {"x": torch.from_numpy(x.astype(np.float32))}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows[self.columns.label].to_list(), dtype=torch.float32)
        return batch


class TwoClasses(Numbers):
    kind = "binary"


class ThreeAmounts(Numbers):
    """Three outputs, from a list of three."""

    kind = "statistic"
    outputs = 3

    def build_model(self):
        return Module(self.network(self.outputs), lambda output: output)

    def losses(self, output, batch):
        return ((output - batch[LABEL]) ** 2).mean(dim=1)

    def statistic(self, output, batch):
        return torch.cat([output, batch[LABEL]], dim=1)

    def score(self, predictions, labels):
        predicted, true = np.split(predictions, 2, axis=1)
        return {"mae": float(np.abs(predicted - true).mean())}


class WithMissingNumbers(TwoClasses):
    def numbers(self, frame):
        return np.nan_to_num(super().numbers(frame), nan=-9.0)


def walk(length=3000, seed=5):
    """A series that wanders and swings."""
    steps = np.random.default_rng(seed).normal(size=length)
    return np.cumsum(steps) * 0.3 + np.sin(np.arange(length) / 9) + steps


def subject_of(task_type: type, frame: pl.DataFrame, folder: Path, **data: Any) -> Subject:
    """A task over a table of its own, ready to be examined."""
    dataset = dataset_of(frame, folder, **data)
    return Subject.prepare(
        lambda: task_type(task_type.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection(steps=100, global_batch_size=64),
    )  # fmt: skip
