"""Stretches of the data whose labels belong to other rows, and healthy data that changes."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Binary, Classes, Numbers, dataset_of, numbers_table, table_of
from perennial.check_skeleton.checks.data.labels.label_alignment import check_label_alignment
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from skeleton_tables import SETTINGS, prepared

ROWS = 3000
TONES = np.random.default_rng(4).integers(0, 4, ROWS)


class Tones(Classes):
    """A wave of a class's pitch, which begins anywhere."""

    def fit(self, train):
        labels = train.select(self.columns.label).collect()[self.columns.label]
        self.fitted = {"mean": [0.0] * 96, **self.fit_label(labels)}

    def encode(self, rows):
        batch = {"x": torch.tensor(rows["wave"].to_list(), dtype=torch.float32)}
        if self.columns.label in rows.columns:
            batch[LABEL] = self.encode_label(rows[self.columns.label])
        return batch


def tones() -> pl.DataFrame:
    generator = np.random.default_rng(5)
    pitch = 0.3 + 0.5 * TONES[:, None]
    waves = np.sin(pitch * np.arange(96) + generator.uniform(0, 6.28, (ROWS, 1)))
    waves += generator.normal(size=waves.shape)
    return pl.DataFrame({"row": range(ROWS), "wave": waves.tolist(), "label": TONES})


KINDS = {"amounts": Numbers, "two classes": Binary, "four classes": Classes}


def table(kind: str) -> pl.DataFrame:
    x, score = numbers_table(ROWS)
    made = {
        "amounts": score * 10,
        "two classes": (score > 0.5).astype(float),
        "four classes": np.digitize(score, [-1.5, 0, 1.5]),
    }
    return table_of(x, made[kind])


def examine(frame: pl.DataFrame, task_type, folder):
    dataset = dataset_of(frame, folder)
    settings = SETTINGS.model_copy(update={"sample_rows": ROWS})
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)
    return check_label_alignment(prepared(task_type, dataset, settings=settings, training=training))


def in_stretch(frame: pl.DataFrame, change, first: float, last: float, name: str = "label"):
    """The column changed by `change` between these shares of the rows."""
    rows = slice(int(first * len(frame)), int(last * len(frame)))
    values = frame[name].to_numpy().copy()
    values[rows] = change(values[rows])
    return frame.with_columns(pl.Series(name, values))


def shuffled(values):
    return np.random.default_rng(0).permutation(values)


def exchanged(values):
    return values.max() + values.min() - values


BUGS = {
    "half sorted alone": lambda frame: in_stretch(frame, np.sort, 0.5, 1.0),
    "one partition of eight shuffled": lambda frame: in_stretch(frame, shuffled, 0.5, 0.625),
    "one row late from the middle on": lambda frame: in_stretch(
        frame, lambda values: np.roll(values, 1), 0.4, 1.0
    ),
    "turned over in a third": lambda frame: in_stretch(frame, exchanged, 0.0, 0.33),
}


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_other_rows_fail(kind, bug, tmp_path):
    result = examine(BUGS[bug](table(kind)), KINDS[kind], tmp_path)
    assert result.outcome == "failed", result.measured
    assert "in file order" in result.measured


def test_labels_of_other_waves_fail(tmp_path):
    """No number of a wave says what its pitch is; the power of its bands does."""
    assert "usually by 0.8" in examine(tones(), Tones, tmp_path / "sound").measured
    result = examine(in_stretch(tones(), shuffled, 0.5, 0.75), Tones, tmp_path / "shuffled")
    assert result.outcome == "failed", result.measured


def sorted_with_their_rows(frame):
    half = frame.head(ROWS // 2)
    return pl.concat([half, frame.tail(ROWS // 2).sort("label")])


def related_otherwise(frame):
    """The first column's effect is the second's from the middle on."""
    is_late = pl.int_range(pl.len()) >= ROWS // 2
    first, second = pl.col("x0"), pl.col("x1")
    return frame.with_columns(
        x0=pl.when(is_late).then(second).otherwise(first),
        x1=pl.when(is_late).then(first).otherwise(second),
    )


HEALTHY = {
    "as it is": lambda frame: frame,
    "sorted with their rows": lambda frame: frame.sort("label"),
    "half sorted with their rows": sorted_with_their_rows,
    "another world from the middle on": related_otherwise,
    "one label for a while": lambda frame: in_stretch(
        frame, lambda values: np.full_like(values, values[0]), 0.2, 0.4
    ),
    "labels that nothing predicts": lambda frame: in_stretch(frame, shuffled, 0.0, 1.0),
    "a level that rises": lambda frame: frame.with_columns(x5=pl.col("x5") + pl.col("row") / 500),
}


@pytest.mark.parametrize("case", HEALTHY)
@pytest.mark.parametrize("kind", KINDS)
def test_data_that_changes_passes(kind, case, tmp_path):
    result = examine(HEALTHY[case](table(kind)), KINDS[kind], tmp_path)
    assert result.outcome == "passed", result.measured


def test_sensors_that_were_off_for_a_while_pass(tmp_path):
    frame = table("amounts")
    for name in ("x0", "x1", "x2"):
        frame = in_stretch(frame, np.zeros_like, 0.3, 0.5, name)
    result = examine(frame, Numbers, tmp_path)
    assert result.outcome == "passed", result.measured
