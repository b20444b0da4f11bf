"""Placeholders among labels and features: one repeated number far outside all others is named."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch

import other_styles as styles
from other_styles import dataset_of, numbers_table, table_of
from perennial.check_skeleton.checks.data.values.placeholders import find_placeholder
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, WEIGHT
from skeleton_tables import SETTINGS
from workshop import results_of

X, SCORE = numbers_table(1200)
READINGS = (130 + 10 * SCORE).round(1)
IS_LOST = np.random.default_rng(0).random(len(SCORE)) < 0.04


class WithoutWeight(styles.Numbers):
    """Rows whose label was lost have weight 0."""

    def encode(self, rows):
        batch = super().encode(rows)
        if "label" not in rows.columns:
            return batch
        is_known = torch.from_numpy(rows["label"].to_numpy() > 0)
        return {**batch, WEIGHT: is_known.float()}


class NotCounted(styles.Numbers):
    """The loss leaves out rows whose label was lost."""

    def losses(self, output, batch):
        return torch.where(batch[LABEL] > 0, super().losses(output, batch), 0.0)


def examine(folder, task_type, labels):
    dataset = dataset_of(table_of(X, labels), folder)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    training = TrainingSection(steps=400, global_batch_size=128, seed=1)
    return results_of(Subject.prepare(make, dataset, SETTINGS, training), "labels")["labels"]


@pytest.mark.parametrize("value", [0.0, -1.0, 999.0])
def test_a_number_filled_in_for_lost_labels_is_named_with_its_share(value, tmp_path):
    result = examine(tmp_path, styles.Numbers, np.where(IS_LOST, value, READINGS))
    assert result.outcome == "warned", result
    assert result.measured.startswith(f"{value:g} is the label of "), result
    assert "standard deviations" in result.measured
    assert "never measured" in result.hint


RAIN = np.where(SCORE > 0, np.exp(SCORE).round(2) - 0.9, 0.0)
LABELS = {
    "readings": READINGS,
    "amounts beside zeros": RAIN,
    "logarithms of amounts beside zeros": np.log1p(RAIN),
    "readings up to the range of the device": READINGS.clip(100, 150),
    "counts": np.random.default_rng(0).poisson(np.exp(1 + SCORE / 2)).astype(float),
    "stars": np.digitize(SCORE, [-1, 0, 1, 2]) + 1.0,
    "one far outlier": np.where(np.arange(len(SCORE)) == 7, 999.0, READINGS),
}


@pytest.mark.parametrize("name", LABELS)
def test_zeros_limits_counts_and_single_outliers_are_no_placeholders(name):
    assert find_placeholder(LABELS[name]) is None


@pytest.mark.parametrize("task_type", [WithoutWeight, NotCounted])
def test_placeholders_that_the_loss_does_not_count_pass(task_type, tmp_path):
    result = examine(tmp_path, task_type, np.where(IS_LOST, 0.0, READINGS))
    assert result.outcome == "passed", result


class Fills(styles.Numbers):
    """Takes the placeholder for the middle of the other values."""

    def fit(self, train):
        super().fit(train.with_columns(filled("x0")))

    def encode(self, rows):
        return super().encode(rows.with_columns(filled("x0")))


def filled(name):
    return pl.when(pl.col(name) > -50).then(pl.col(name)).otherwise(0.0).alias(name)


def examine_feature(folder, task_type, value):
    x = X.copy()
    x[:, 0] = np.where(IS_LOST, value, x[:, 0])
    dataset = dataset_of(table_of(x, SCORE), folder)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    subject = Subject.prepare(make, dataset, SETTINGS, TrainingSection(seed=1))
    return results_of(subject, "input_scale")["input_scale"]


@pytest.mark.parametrize(
    ("value", "outcome"), [(-99.0, "failed"), (-999.0, "failed"), (9999.0, "warned")]
)
def test_a_number_filled_in_for_a_missing_feature_is_named(value, outcome, tmp_path):
    """A time that is not known may be a longest time; nothing measured is below zero alone."""
    result = examine_feature(tmp_path, styles.Numbers, value)
    assert result.outcome == outcome, result
    assert result.measured.startswith(f"{value:g} is x0 of "), result


@pytest.mark.parametrize(("task_type", "value"), [(Fills, -99.0), (styles.Numbers, 52.0)])
def test_what_encode_fills_and_a_longest_delay_pass(task_type, value, tmp_path):
    result = examine_feature(tmp_path, task_type, value)
    assert result.outcome == "passed", result


class LastOfFour(styles.Numbers):
    """Reads the last of four readings, standardised with all of them."""

    def fit(self, train):
        super().fit(train.with_columns(pl.col("x0").list.last()))

    def encode(self, rows):
        return super().encode(rows.with_columns(pl.col("x0").list.last()))


class FilledLists(LastOfFour):
    def encode(self, rows):
        kept = pl.when(pl.element() > -50).then(pl.element()).otherwise(0.0)
        return super().encode(rows.with_columns(pl.col("x0").list.eval(kept)))

    def fit(self, train):
        kept = pl.when(pl.element() > -50).then(pl.element()).otherwise(0.0)
        super().fit(train.with_columns(pl.col("x0").list.eval(kept)))


def mean_of(kept):
    """The mean of the readings that are kept, cut below -3, and 0 where there is none."""
    return kept.list.drop_nulls().list.mean().fill_null(0.0).clip(-3.0)


class CutMeans(styles.Numbers):
    """Averages whatever is there, and cuts what is far too low."""

    kept = pl.element().fill_nan(None)

    def shown(self, rows):
        return rows.with_columns(mean_of(pl.col("x0").list.eval(self.kept)).alias("x0"))

    def fit(self, train):
        super().fit(self.shown(train))

    def encode(self, rows):
        return super().encode(self.shown(rows))


class MeansOfReadings(CutMeans):
    """Leaves out what is no reading."""

    kept = pl.when(pl.element() > -50).then(pl.element())


@pytest.mark.parametrize(
    ("task_type", "outcome"),
    [
        (LastOfFour, "failed"),
        (FilledLists, "passed"),
        (CutMeans, "failed"),
        (MeansOfReadings, "passed"),
    ],
)
def test_a_number_filled_into_lists_is_named(task_type, outcome, tmp_path):
    lost = np.stack([np.roll(IS_LOST, place) for place in range(4)], axis=1)
    readings = np.where(lost, -9999.0, X[:, :1] + 0.1 * np.arange(4))
    frame = table_of(X, SCORE).with_columns(x0=pl.Series(readings.tolist()))
    dataset = dataset_of(frame, tmp_path)
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    subject = Subject.prepare(make, dataset, SETTINGS, TrainingSection(seed=1))
    result = results_of(subject, "input_scale")["input_scale"]
    assert result.outcome == outcome, result
