"""Numbers and names that are missing because of the outcome, and those that are missing anyway."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS = 900
RANDOM = np.random.default_rng(8)
IS_GONE = RANDOM.random(ROWS) < 0.4
CHANCE = RANDOM.random(ROWS)


class Bills(Classes):
    """Reads a bill, 0 where there is none, and a name, "" where there is none."""

    names = ()

    def fit(self, train):
        self.fitted = {"mean": [0.0], **self.fit_label(train.collect()["label"])}

    def encode(self, rows):
        has_name = rows["name"].is_not_null().cast(pl.Float32)
        numbers = rows.select("age", pl.col("bill").fill_null(0.0) / 100).with_columns(has_name)
        batch = {"x": torch.from_numpy(numbers.to_numpy().astype(np.float32, order="C"))}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch


def without(missing, values):
    return [None if gone else own for gone, own in zip(missing, values, strict=True)]


def table(*, bill=None, name=None):
    """Passengers of whom some are gone, with what is missing of some."""
    nothing = np.zeros(ROWS, dtype=bool)
    bills, names = RANDOM.gamma(2.0, 50.0, ROWS), [f"name {row % 40}" for row in range(ROWS)]
    return pl.DataFrame(
        {
            "row": range(ROWS),
            "age": RANDOM.normal(size=ROWS) + IS_GONE,
            "bill": without(nothing if bill is None else bill, bills),
            "name": without(nothing if name is None else name, names),
            "label": np.where(IS_GONE, "gone", "here"),
        }
    )


def examine(frame, folder):
    subject = prepared(Bills, dataset_of(frame, folder))
    return results_of(subject, "telling_columns")["telling_columns"]


@pytest.mark.parametrize("column", ["bill", "name"])
def test_what_is_missing_because_of_the_outcome_fails(column, tmp_path):
    """Most accounts of those who are gone were closed, and a few others."""
    missing = np.where(IS_GONE, CHANCE < 0.85, CHANCE < 0.04)
    result = examine(table(**{column: missing}), tmp_path)
    assert result.outcome == "failed", result.measured
    assert f"missing values of {column} alone" in result.measured


@pytest.mark.parametrize(("gone", "here"), [(0.2, 0.2), (0.45, 0.15), (0.6, 0.3)])
def test_what_is_missing_more_often_in_a_class_passes(gone, here, tmp_path):
    missing = np.where(IS_GONE, gone > CHANCE, here > CHANCE)
    result = examine(table(bill=missing, name=missing), tmp_path)
    assert result.outcome == "passed", result.measured
