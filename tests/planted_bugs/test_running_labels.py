"""Sums and means of labels over time: those that end before the row, and those that end with it."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from other_styles import Numbers, dataset_of
from skeleton_tables import SETTINGS, prepared
from workshop import results_of

DAYS, SHOPS = 240, 6
RANDOM = np.random.default_rng(5)
OWN, HEAT = pl.col("label"), pl.col("heat")
PAST = OWN.shift(1)


def sales(mean: pl.Expr, *, shops: int = SHOPS, days: int = DAYS) -> pl.DataFrame:
    """Days of several shops, and a column of them, by the name of `mean`."""
    shop, day = np.repeat(np.arange(shops), days), np.tile(np.arange(days), shops)
    heat, noise = RANDOM.normal(size=(2, shops * days))
    frame = pl.DataFrame(
        {
            "row": range(shops * days),
            "day": [date(2024, 1, 1) + timedelta(days=int(each)) for each in day],
            "shop": [f"shop {each}" for each in shop],
            "heat": heat.round(2),
            "label": (50 + 5 * shop + 8 * np.sin(day / 20) + 4 * heat + 6 * noise).round(),
        }
    )
    return frame.with_columns(mean.over("shop", order_by="day").fill_null(50).alias("mean")).sample(
        fraction=1.0, shuffle=True, seed=1
    )


def examine(frame, folder, **data):
    """The result on the earliest rows, all of which are the sample."""
    dataset = dataset_of(frame, folder, time="day", features=("heat", "mean"), **data)
    settings = SETTINGS.model_copy(update={"sample_rows": frame.height})
    subject = prepared(Numbers, dataset, settings=settings)
    return results_of(subject, "telling_columns")["telling_columns"]


BUGS = {
    "a mean of seven days, with today": OWN.rolling_mean(7),
    "a mean with today, rounded": OWN.rolling_mean(3).round(1),
    "a sum of a fortnight": OWN.rolling_sum(14),
    "an exponential mean": OWN.ewm_mean(alpha=0.4),
    "the change since yesterday": OWN.diff(),
    "a centred mean": OWN.shift(-2).rolling_mean(5),
}


@pytest.mark.parametrize("bug", BUGS)
def test_labels_up_to_the_own_one_fail(bug, tmp_path):
    result = examine(sales(BUGS[bug]), tmp_path)
    assert result.outcome == "failed", result.measured
    assert "mean is a sum of labels" in result.measured


HEALTHY = {
    "a mean of the seven days before": PAST.rolling_mean(7),
    "a sum of the fortnight before": PAST.rolling_sum(14),
    "an exponential mean of the days before": PAST.ewm_mean(alpha=0.4),
    "the day before": PAST,
    "the last change": PAST.diff(),
    "something that moves with it": OWN + 3 * HEAT,
    "a mean of the weather, with today": HEAT.rolling_mean(7),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_labels_of_the_past_pass(case, tmp_path):
    result = examine(sales(HEALTHY[case]), tmp_path)
    assert result.outcome != "failed", result.measured


def test_a_single_series_needs_no_groups(tmp_path):
    frame = sales(OWN.rolling_mean(7), shops=1, days=800).drop("shop")
    assert examine(frame, tmp_path).outcome == "failed"


def gifts(moved):
    """Mailings of 300 donors at irregular times, and how many gifts each had given before.

    `moved` puts answers to another mailing of the donor.
    """
    rng = np.random.default_rng(9)
    donors, days = np.repeat(np.arange(300), 4), rng.integers(1, 90, (300, 4)).cumsum(axis=1)
    gave = rng.random((300, 4)) < 0.35
    before = rng.integers(0, 5, (300, 1)) + gave.cumsum(axis=1) - gave
    label = np.roll(gave, moved, axis=1)
    return pl.DataFrame(
        {
            "row": range(1200),
            "day": [date(2024, 1, 1) + timedelta(days=int(each)) for each in days.ravel()],
            "donor": [f"donor {each}" for each in donors],
            "heat": rng.normal(size=1200),
            "mean": before.ravel(),
            "label": label.ravel().astype(float),
        }
    ).sample(fraction=1.0, shuffle=True, seed=1)


@pytest.mark.parametrize(("moved", "outcome"), [(0, "passed"), (1, "failed")])
def test_a_count_that_grows_by_the_own_label_fails(moved, outcome, tmp_path):
    """As where answers are joined to the mailing after the one that they answer."""
    result = examine(gifts(moved), tmp_path, meta=("donor",))
    assert result.outcome == outcome, result.measured
