"""The check of units on a table of numbers, none of which is trained on."""

from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from other_styles import Columns, dataset_of
from perennial.check_skeleton.checks.data.units.mixed_units import check_mixed_units
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS


class Amounts(Columns):
    """Reads the columns of numbers; nothing is trained."""

    kind = "regression"

    def fit(self, train):
        self.fitted = {}

    def encode(self, rows):
        batch = {"x": rows.select("other").to_torch()}
        return batch | ({LABEL: rows["label"].to_torch()} if "label" in rows.columns else {})

    def build_model(self):
        raise NotImplementedError

    losses = build_model


def examine(frame: pl.DataFrame, folder: Path, **data: Any) -> CheckResult:
    """The result on all rows, of which `other` is the input."""
    dataset = dataset_of(frame, folder, **data)
    make = partial(Amounts, Amounts.Options(), dataset.snapshot.task_columns)
    settings = SETTINGS.model_copy(update={"sample_rows": frame.height})
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return check_mixed_units(Subject.prepare(make, dataset, settings, training))
