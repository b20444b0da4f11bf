"""Devices whose labels stand some rows before or behind their readings, and devices that differ otherwise."""

import numpy as np
import polars as pl
import pytest

from mixed_numbers import Numbers
from other_styles import dataset_of, numbers_table, table_of
from perennial.check_skeleton.checks.data.labels.label_alignment import check_label_alignment
from perennial.engine.config.training import TrainingSection
from skeleton_tables import SETTINGS, prepared

DEVICES, READINGS = 8, 360
ROWS = DEVICES * READINGS
FEATURES = tuple(f"x{i}" for i in range(6))


def table(remembered: float) -> pl.DataFrame:
    """Readings of devices, one after the other, each in the order of time.

    Each reading keeps this part of the one before.
    """
    x, noise = numbers_table(ROWS)
    x = x.reshape(DEVICES, READINGS, -1)
    for now in range(1, READINGS):
        x[:, now] = remembered * x[:, now - 1] + np.sqrt(1 - remembered**2) * x[:, now]
    x = x.reshape(ROWS, -1)
    label = 1.5 * x[:, 0] - x[:, 1] + 0.1 * noise
    return table_of(x, label, device=[f"d{row // READINGS}" for row in range(ROWS)])


def late(frame: pl.DataFrame, places: int, devices: list[str]) -> pl.DataFrame:
    """Labels of these devices belong to readings so many rows before."""
    moved = pl.col("label").shift(places).over("device")
    is_late = pl.col("device").is_in(devices)
    return frame.with_columns(label=pl.when(is_late).then(moved).otherwise("label")).drop_nulls()


def in_turns(frame: pl.DataFrame) -> pl.DataFrame:
    """All devices read at the same times."""
    turns = frame.sort(pl.int_range(pl.len()).over("device"), maintain_order=True)
    return turns.with_columns(row=pl.int_range(pl.len()))


def examine(frame: pl.DataFrame, folder):
    """A split by blocks of days, so that most neighbours stay together; devices are no inputs."""
    day = np.datetime64("2025-01-01") + np.arange(len(frame)) // 10
    dataset = dataset_of(frame.with_columns(day=day), folder, time="day", features=FEATURES)
    settings = SETTINGS.model_copy(update={"sample_rows": ROWS})
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return check_label_alignment(prepared(Numbers, dataset, settings=settings, training=training))


@pytest.mark.parametrize("places", [1, 3, -5])
def test_labels_that_their_own_readings_do_not_predict_fail(places, tmp_path):
    result = examine(in_turns(late(table(0.0), places, ["d1", "d4"])), tmp_path)
    assert result.outcome == "failed", result.measured
    assert "d1, d4" in result.measured
    assert f"{abs(places)} row" in result.measured


def test_labels_of_slow_series_that_other_readings_predict_better_warn(tmp_path):
    result = examine(late(table(0.9), 4, ["d0", "d2", "d5"]), tmp_path)
    assert result.outcome == "warned", result.measured
    assert "d0, d2, d5" in result.measured
    assert "4 rows behind" in result.measured


def weaker(frame: pl.DataFrame) -> pl.DataFrame:
    noise = np.random.default_rng(5).normal(size=len(frame)) * 3
    is_weak = pl.col("device").is_in(["d1", "d2"])
    return frame.with_columns(label=pl.col("label") + pl.when(is_weak).then(noise).otherwise(0.0))


EVERY = [f"d{device}" for device in range(DEVICES)]
HEALTHY = {
    "as it is": lambda frame: frame,
    "every device is as late, as in a forecast": lambda frame: late(frame, 3, EVERY),
    "two devices are hardly predicted": weaker,
    "one device alone tells more of other rows": lambda frame: late(frame, 2, ["d6"]),
}


def test_a_group_may_be_missing_and_another_be_named_like_that(tmp_path):
    named = pl.when(pl.col("device") == "d1").then(None).otherwise("device").alias("device")
    frame = table(0.9).with_columns(named.replace("d2", "None").alias("device"))
    assert examine(frame, tmp_path).outcome == "passed"


@pytest.mark.parametrize("case", HEALTHY)
def test_devices_that_are_not_shifted_against_each_other_pass(case, tmp_path):
    result = examine(HEALTHY[case](table(0.9)), tmp_path)
    assert result.outcome == "passed", result.measured
