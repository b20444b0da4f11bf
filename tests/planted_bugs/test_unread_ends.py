"""Models that never read one end of a series."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Numbers, dataset_of
from perennial.check_skeleton.checks.model.gradients import check_input_use
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS

ROWS, STEPS = 1200, 20


class Forecast(Numbers):
    """the whole series"""

    channels = 2
    read = staticmethod(lambda series: series)

    def fit(self, train):
        self.fitted = {}

    def encode(self, rows):
        series = np.array([rows["x"].to_list(), rows["y"].to_list()], dtype=np.float32)
        batch = {"series": torch.from_numpy(series.transpose(1, 2, 0).copy())}
        if "label" in rows.columns:
            batch[LABEL] = rows["label"].to_torch().float()
        return batch

    def build_model(self):
        return Recurrent(self.read)

    def losses(self, output, batch):
        return (output - batch[LABEL]) ** 2

    def predict(self, output):
        return output


class Recurrent(nn.Module):
    def __init__(self, read):
        super().__init__()
        self.read = read
        self.gru, self.head = nn.GRU(2, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, series):
        hidden, _ = self.gru(self.read(series))
        return self.head(hidden[:, -1])[:, 0]


class WithoutTheEnd(Forecast):
    """the newest steps are cut off"""

    read = staticmethod(lambda series: series[:, :-5])


class WithoutTheBeginning(Forecast):
    """the first steps are cut off"""

    read = staticmethod(lambda series: series[:, 10:])


class Strided(Forecast):
    """a stride leaves the last step out"""

    read = staticmethod(lambda series: series[:, 0:19:3])


class Newest(Forecast):
    """the newest half of a series whose last value tells everything"""

    read = staticmethod(lambda series: series[:, 10:])


def walks(label) -> pl.DataFrame:
    random = np.random.default_rng(2)
    x, y = random.normal(size=(2, ROWS, STEPS)).cumsum(axis=2)
    labels = label(x) + 0.1 * random.normal(size=ROWS)
    return pl.DataFrame({"row": range(ROWS), "x": x.tolist(), "y": y.tolist(), "label": labels})


def last(x):
    return x[:, -1]


def first_and_last(x):
    return x[:, -1] + 3 * x[:, 0]


def examine(task_type, label, folder):
    dataset = dataset_of(walks(label), folder)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return check_input_use(Subject.prepare(make, dataset, SETTINGS, training))


@pytest.mark.parametrize(
    ("task_type", "label", "end"),
    [(WithoutTheEnd, last, "last 5 of 20"), (WithoutTheBeginning, first_and_last, "first 10 of 20")],
    ids=lambda each: getattr(each, "__doc__", "") or "",
)  # fmt: skip
def test_an_end_that_tells_the_label_and_is_not_read_fails(task_type, label, end, tmp_path):
    result = examine(task_type, label, tmp_path)
    assert result.outcome == "failed", result.measured
    assert f"the {end} steps of series" in result.measured


@pytest.mark.parametrize(
    ("task_type", "label"),
    [(Forecast, last), (Forecast, first_and_last), (Strided, first_and_last), (Newest, last)],
    ids=lambda each: getattr(each, "__doc__", "") or each.__name__,
)
def test_series_of_which_enough_is_read_pass(task_type, label, tmp_path):
    result = examine(task_type, label, tmp_path)
    assert result.outcome == "passed", result.measured
