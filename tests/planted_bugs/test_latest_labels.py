"""What is known of a patient at the time of a row, or only later: joins with and without the time."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from other_styles import dataset_of
from perennial.tasks.tabular import TabularClassification
from skeleton_tables import prepared
from workshop import results_of

PATIENTS, VISITS = 220, 4


def visits():
    """Each patient is seen four times; an earlier result says something of the next."""
    random = np.random.default_rng(5)
    rows = PATIENTS * VISITS
    patient = np.repeat(np.arange(PATIENTS), VISITS)
    days = np.tile(np.arange(VISITS), PATIENTS) * 40 + random.integers(0, 30, rows)
    risk = random.normal(size=PATIENTS)[patient]
    return pl.DataFrame(
        {
            "row": np.arange(rows),
            "patient": patient,
            "day": [date(2024, 1, 1) + timedelta(days=int(each)) for each in days],
            "age": 50 + 10 * risk + random.normal(0, 5, rows),
            "sex": np.where(random.random(PATIENTS)[patient] < 0.5, "f", "m"),
            "label": (risk + random.normal(size=rows) > 0).astype(int),
        }
    )


def with_earlier(rows):
    earlier = pl.col("label").sort_by("day").shift(1).over("patient", mapping_strategy="explode")
    return rows.sort("patient", "day").with_columns(
        before=earlier.fill_null(2).replace_strict({0: "S", 1: "R", 2: "none"})
    )


def with_latest(rows):
    latest = pl.col("label").sort_by("day").last().over("patient")
    return rows.with_columns(before=latest.replace_strict({0: "S", 1: "R"}))


def with_latest_as_number(rows):
    return with_latest(rows).with_columns(before=(pl.col("before") == "R").cast(pl.Float64))


def with_ward(rows):
    """A patient's own, which says something of all of its results."""
    mean = pl.col("label").mean().over("patient")
    return rows.with_columns(before=pl.when(mean > 0.5).then(pl.lit("A")).otherwise(pl.lit("B")))


@pytest.mark.parametrize(
    ("join", "is_caught"),
    [(visits, False), (with_earlier, False), (with_ward, False), (with_latest, True),
     (with_latest_as_number, True)],
)  # fmt: skip
def test_a_column_that_knows_the_last_label_of_a_group_fails(join, is_caught, tmp_path):
    rows = visits() if join is visits else join(visits())
    shuffled = rows.sample(fraction=1.0, shuffle=True, seed=1)
    dataset = dataset_of(shuffled, tmp_path, meta=("day",), group="patient")
    found = results_of(prepared(TabularClassification, dataset), "telling_columns")[
        "telling_columns"
    ]
    assert ("tells the last one by day" in found.measured) == is_caught, found
    assert (found.outcome == "failed") == is_caught
