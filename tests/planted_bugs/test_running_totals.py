"""Sources that export running totals where others export what is added, and series that rise."""

import numpy as np
import polars as pl
import pytest

import unit_tables

ROWS, PAST = 1200, 14
RANDOM = np.random.default_rng(41)
HOUSE = RANDOM.integers(0, 4, ROWS)
SCALE = np.array([20.0, 150.0, 60.0, 90.0])[HOUSE] * np.exp(0.4 * RANDOM.normal(size=ROWS))
SOLD = RANDOM.poisson(SCALE[:, None] * RANDOM.gamma(4, 0.25, (ROWS, PAST))).astype(float)
NEXT = RANDOM.poisson(SCALE).astype(float)


def of(*houses):
    return np.isin(HOUSE, houses)


def examine(folder, lists, label=NEXT, **columns):
    frame = {"row": range(ROWS), "house": [f"h{each}" for each in HOUSE], "past": lists.tolist()}
    more = {"other": RANDOM.normal(size=ROWS), "label": label}
    return unit_tables.examine(pl.DataFrame(frame | more | columns), folder)


def totals(*houses, start=0.0):
    return np.where(of(*houses)[:, None], SOLD.cumsum(axis=1) + start, SOLD)


@pytest.mark.parametrize("lists", [totals(0, 2), totals(3), totals(1, start=5000.0)])
def test_running_totals_of_some_houses_fail(lists, tmp_path):
    found = examine(tmp_path, lists)
    assert found.outcome == "failed", found.measured
    assert "never fall" in found.measured
    assert "take differences" in found.hint


def test_running_totals_beside_labels_of_another_quantity_warn(tmp_path):
    found = examine(tmp_path, totals(0, 2), label=RANDOM.normal(size=ROWS))
    assert found.outcome == "warned", found.measured


@pytest.mark.parametrize("lists", [
    SOLD, totals(0, 1, 2, 3), np.sort(SOLD, axis=1),
    # A kind of series that rises from some height, one that mostly rises, and one that stands.
    np.where(of(2)[:, None], 300 + np.sort(SOLD, axis=1), SOLD),
    np.where(of(2)[:, None], SOLD + 30 * np.arange(PAST), SOLD),
    np.where(of(2)[:, None], 0.0, SOLD),
])  # fmt: skip
def test_other_series_pass(lists, tmp_path):
    assert "never fall" not in examine(tmp_path, lists).measured
