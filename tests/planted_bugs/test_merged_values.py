"""Whole numbers that share an input: by mistake, and by the designs that look like it."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Classes, dataset_of
from perennial.check_skeleton.checks.data.values.lost_values import check_lost_values
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS

ROWS, PEOPLE = 4000, 120


def visits() -> pl.DataFrame:
    """Who came at which hour of which house: people and hours tell the label."""
    generator = np.random.default_rng(4)
    person, hour = generator.integers(0, PEOPLE, ROWS), generator.integers(5, 24, ROWS)
    taste, rush = generator.normal(size=PEOPLE), generator.normal(size=24)
    score = 1.5 * taste[person] + 1.5 * rush[hour] + 0.5 * generator.normal(size=ROWS)
    noise = generator.integers(0, 400, ROWS)
    return pl.DataFrame(
        {"row": range(ROWS), "person": person, "hour": hour, "house": noise,
         "minute": 100 * hour + noise % 60, "label": (score > 0).astype(int)}
    )  # fmt: skip


class Reading(dict):
    """The columns that are asked for, as arrays."""

    def __init__(self, rows):
        self.rows = rows

    def __missing__(self, name):
        return self.rows[name].to_numpy()


class Looking(nn.Module):
    def __init__(self, vectors):
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(each, 8) for each in vectors)
        self.out = nn.Linear(8 * len(vectors), 2)

    def forward(self, codes):
        parts = [table(codes[:, place]) for place, table in enumerate(self.tables)]
        return self.out(torch.cat(parts, dim=1))


def subject_of(folder, read, vectors):
    """A task that looks up what `read` makes of the columns, in tables of so many vectors."""

    class Visits(Classes):
        def fit(self, train):
            self.fitted = self.fit_label(train.collect()["label"])

        def encode(self, rows):
            columns = Reading(rows)
            batch = {"codes": torch.from_numpy(np.stack(read(columns), axis=1).astype(np.int64))}
            if "label" in rows.columns:
                batch[LABEL] = self.encode_label(rows["label"])
            return batch

        def build_model(self):
            return Looking(vectors)

    dataset = dataset_of(visits(), folder)
    return Subject.prepare(
        lambda: Visits(Visits.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection(steps=100, global_batch_size=64),
    )  # fmt: skip


def ending(hours, last):
    """The place of each in a list that ends early; what is not in it has the first place."""
    return np.where((hours >= 5) & (hours <= last), hours - 4, 0)


MISTAKES = {
    "modulo that was left in, beside a vector for each": (
        lambda c: [c["person"] % 10, c["hour"]], (PEOPLE, 24), "wrap around after 10; the embedding"
    ),
    "modulo that loses what tells the label": (
        lambda c: [c["person"] % 10, c["hour"]], (10, 24),
        "wrap around after 10; the lost difference",
    ),
    "limit of another column": (
        lambda c: [np.clip(c["person"], 0, 1), c["hour"]], (PEOPLE, 24), "99% of them the same"
    ),
    "limit that was too low": (
        lambda c: [np.minimum(c["person"], 9), c["hour"]], (PEOPLE, 24), "become 10 inputs, 92% of"
    ),
    "range that ends too early": (
        lambda c: [c["person"], ending(c["hour"], 18)], (PEOPLE, 24), "hour from 19 to 23"
    ),
}  # fmt: skip

DESIGNS = {
    "as it is": (lambda c: [c["person"], c["hour"]], (PEOPLE, 24)),
    "side of the street": (lambda c: [c["person"], c["hour"], c["house"] % 2], (PEOPLE, 24, 2)),
    "half days": (lambda c: [c["person"], c["hour"] % 12], (PEOPLE, 24)),
    "hours and minutes": (
        lambda c: [c["person"], c["minute"] // 100, c["minute"] % 100], (PEOPLE, 24, 60)
    ),
    "quotient and remainder": (lambda c: [c["person"] // 10, c["person"] % 10, c["hour"]],
                               (12, 10, 24)),
    "hashed": (lambda c: [c["person"] * 7919 % 1009 % 64, c["hour"]], (64, 24)),
    "bins": (lambda c: [c["person"] // 10, c["hour"]], (PEOPLE, 24)),
    "a guest or not": (lambda c: [c["person"] > 0, c["person"], c["hour"]], (2, PEOPLE, 24)),
    "late hours together": (lambda c: [c["person"], np.minimum(c["hour"], 19)], (PEOPLE, 24)),
    "a limit in a small table": (lambda c: [np.clip(c["house"], 0, 1), c["hour"]], (2, 24)),
}  # fmt: skip


@pytest.mark.parametrize("name", MISTAKES)
def test_values_merged_by_mistake_fail(name, tmp_path):
    read, vectors, measured = MISTAKES[name]
    result = check_lost_values(subject_of(tmp_path, read, vectors))
    assert result.outcome == "failed", (result.outcome, result.measured)
    assert measured in result.measured


@pytest.mark.parametrize("name", DESIGNS)
def test_values_merged_by_design_are_not_blocked(name, tmp_path):
    read, vectors = DESIGNS[name]
    result = check_lost_values(subject_of(tmp_path, read, vectors))
    assert result.outcome != "failed", result.measured
