"""Labels made relative to their own row are healthy; those that do not follow it are not."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Binary, Numbers, dataset_of
from perennial.check_skeleton.checks.data.encoding import check_labels
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS

ROWS = 600


def series(*, several: bool) -> pl.DataFrame:
    """Windows of five values; the label is the next one, rounded, or the next three."""
    generator = np.random.default_rng(4)
    steps = np.cumsum(generator.normal(size=ROWS + 8)) + 60
    windows = np.stack([steps[row : row + 5] for row in range(ROWS)])
    ahead = np.stack([steps[row + 5 : row + 8] for row in range(ROWS)]).round()
    columns = {f"x{lag}": windows[:, lag] for lag in range(5)}
    more = {"other": generator.integers(0, 30, ROWS), "day": np.arange(ROWS) % 7}
    label = ahead.tolist() if several else ahead[:, 0]
    return pl.DataFrame({"row": range(ROWS), **columns, "label": label, **more})


def window_of(rows):
    return rows.select([f"x{lag}" for lag in range(5)]).to_numpy()


class Scaled(Numbers):
    """counted from the window's mean, in its standard deviations"""

    def encode(self, rows):
        window = window_of(rows)
        batch = {"x": torch.from_numpy((window - window.mean(1, keepdims=True)).astype(np.float32))}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.from_numpy(self.code(rows, window)).float()
        return batch

    def code(self, rows, window):
        return (rows["label"].to_numpy() - window.mean(1)) / (window.std(1) + 0.1)


class Ratio(Scaled):
    """the logarithm of the ratio to the last value"""

    def code(self, rows, window):
        with np.errstate(invalid="ignore"):
            return np.log(rows["label"].to_numpy() / window[:, -1])


class Clipped(Scaled):
    """the change since the last value, clipped"""

    def code(self, rows, window):
        return np.clip(rows["label"].to_numpy() - window[:, -1], -1.5, 1.5)


class UpOrDown(Binary):
    """whether the value goes up"""

    encode = Scaled.encode

    def code(self, rows, window):
        return (rows["label"].to_numpy() > window[:, -1]) * 1.0


class SeveralAhead(Scaled):
    """three values ahead, counted from the last one"""

    kind = "statistic"

    def fit_label(self, labels):
        return {}

    def code(self, rows, window):
        return np.array(rows["label"].to_list()) - window[:, -1:]


class OtherColumn(Scaled):
    """another column's value"""

    def code(self, rows, window):
        return rows["other"].to_numpy() - window[:, -1]


class NextRow(Scaled):
    """the next row's value"""

    def code(self, rows, window):
        return np.roll(rows["label"].to_numpy(), -1) - window[:, -1]


class FromTheBatch(Scaled):
    """scaled by the batch"""

    def code(self, rows, window):
        value = rows["label"].to_numpy() - window[:, -1]
        return value / value.std()


class NoiseOfTheId(Scaled):
    """noise that the row's id draws"""

    def code(self, rows, window):
        noise = [np.random.default_rng(row).normal() for row in rows["row"].to_list()]
        return rows["label"].to_numpy() + noise


class Noise(Scaled):
    """noise"""

    def code(self, rows, window):
        return rows["label"].to_numpy() + np.random.default_rng().normal(size=rows.height)


class WrapsAround(Scaled):
    """wrapped around at the window's end"""

    def code(self, rows, window):
        return (rows["label"].to_numpy() + np.floor(window[:, -1])) % 10


class SignOfTheDay(Scaled):
    """turned over on some days"""

    def code(self, rows, window):
        return rows["label"].to_numpy() * np.where(rows["day"].to_numpy() == 3, -1, 1)


class AheadOfOthers(SeveralAhead):
    """three values ahead of the next row"""

    def code(self, rows, window):
        return np.roll(np.array(rows["label"].to_list()), 1, axis=0) - window[:, -1:]


@pytest.fixture(scope="module")
def examine(tmp_path_factory):
    def check(task_type):
        frame = series(several=issubclass(task_type, SeveralAhead))
        dataset = dataset_of(frame, tmp_path_factory.mktemp("table"))
        make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
        training = TrainingSection(seed=1, steps=50, global_batch_size=64)
        return check_labels(Subject.prepare(make, dataset, SETTINGS, training))

    return check


@pytest.mark.parametrize(
    "task_type", [Scaled, Ratio, Clipped, UpOrDown, SeveralAhead], ids=lambda each: each.__doc__
)
def test_labels_may_be_relative_to_their_own_row(examine, task_type):
    result = examine(task_type)
    assert result.outcome == "passed", result.measured


@pytest.mark.parametrize(
    "bug",
    [
        OtherColumn, NextRow, FromTheBatch, NoiseOfTheId, Noise, WrapsAround, SignOfTheDay,
        AheadOfOthers,
    ],
    ids=lambda bug: bug.__doc__,
)  # fmt: skip
def test_labels_that_do_not_follow_their_own_value_fail(examine, bug):
    result = examine(bug)
    assert result.outcome == "failed", result.measured
    assert "have several" in result.measured
    assert "shuffled, shifted" in result.hint
