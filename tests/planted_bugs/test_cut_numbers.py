"""Lists of numbers of which one end of the range never reaches the inputs."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

LENGTH = 12


def traces(rows=1200):
    """Powers over a minute: a class idles at two watts, one at five, and both rise at times."""
    random = np.random.default_rng(3)
    kinds = random.integers(0, 2, rows)
    watts = np.array([2.0, 5.0])[kinds, None] * random.lognormal(0, 0.5, (rows, LENGTH))
    is_on = random.random((rows, LENGTH)) < 0.3
    watts += is_on * random.lognormal(5, 1, (rows, LENGTH))
    label = np.array(["fridge", "kettle"])[kinds]
    return pl.DataFrame({"row": range(rows), "watts": watts.tolist(), "label": label})


class Traces(Classes):
    """Logarithms of powers, standardised, beside how many there are."""

    def fit(self, train):
        frame = train.collect()
        levels = self.levels(frame)
        self.fitted = {
            "mean": [float(levels.mean())] * LENGTH,
            "std": float(levels.std()),
            **self.fit_label(frame["label"]),
        }

    def levels(self, rows):
        return np.log1p(np.array(rows["watts"].to_list(), dtype=float))

    def scaled(self, rows):
        return (self.levels(rows) - self.fitted["mean"][0]) / self.fitted["std"]

    def encode(self, rows):
        batch = {"x": torch.from_numpy(self.scaled(rows)).float()}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch


class LogarithmLast(Traces):
    """Numbers below the mean have no logarithm: a limit keeps it from NaN."""

    def levels(self, rows):
        return np.array(rows["watts"].to_list(), dtype=float)

    def scaled(self, rows):
        return np.log1p(np.clip(super().scaled(rows), 0, None))


class LimitsOfTheData(Traces):
    """What is no power is cut, after the scaling."""

    def scaled(self, rows):
        return np.clip(super().scaled(rows), 0.0, 3000.0)


class OutliersCut(Traces):
    """A hundredth at each end is cut."""

    def levels(self, rows):
        levels = super().levels(rows)
        return np.clip(levels, *np.quantile(levels, [0.01, 0.99])) if len(rows) > 99 else levels


class LimitsOfTheDataFirst(Traces):
    """What is no power is cut before the scaling."""

    def levels(self, rows):
        return np.log1p(np.clip(np.array(rows["watts"].to_list()), 0.0, 3000.0))


class BothEnds(Traces):
    """Beside the high numbers, the low ones are an input of their own."""

    def scaled(self, rows):
        x = super().scaled(rows)
        return np.maximum(x, 0) + 1e-3 * np.minimum(x, 0)


class LastFew(Traces):
    """Only the newest four are read."""

    def scaled(self, rows):
        x = super().scaled(rows)
        x[:, :-4] = 0.0
        return x


def examined(task_type, rows, tmp_path):
    dataset = dataset_of(rows, tmp_path)
    subject = prepared(task_type, dataset, training=TrainingSection(seed=1))
    return results_of(subject, "lost_values")["lost_values"]


@pytest.mark.parametrize("task_type", [LogarithmLast, LimitsOfTheData])
def test_numbers_cut_at_one_end_fail_where_they_predict_the_label(task_type, tmp_path):
    found = examined(task_type, traces(), tmp_path)
    assert found.outcome == "failed", found.measured
    assert "scale last" in found.hint


HEALTHY = [Traces, OutliersCut, LimitsOfTheDataFirst, BothEnds, LastFew]


@pytest.mark.parametrize("task_type", HEALTHY)
def test_numbers_that_reach_the_inputs_pass(task_type, tmp_path):
    found = examined(task_type, traces(), tmp_path)
    assert found.outcome in ("passed", "skipped"), (found.measured, found.hint)


def test_noise_below_a_threshold_may_be_cut(tmp_path):
    """What is cut tells nothing of the label: the classes differ by how often power rises."""
    random = np.random.default_rng(4)
    is_kettle = random.random(1200) < 0.5
    is_on = random.random((1200, LENGTH)) < np.where(is_kettle, 0.6, 0.2)[:, None]
    watts = random.lognormal(0, 0.5, (1200, LENGTH)) + 100 * is_on
    label = np.where(is_kettle, "kettle", "fridge")
    rows = pl.DataFrame({"row": range(1200), "watts": watts.tolist(), "label": label})
    found = examined(LimitsOfTheData, rows, tmp_path)
    assert found.outcome in ("passed", "skipped"), (found.measured, found.hint)
