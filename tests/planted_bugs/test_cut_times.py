"""Times until a delivery: those that were known, and those that end at the export."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from other_styles import Numbers, dataset_of
from skeleton_tables import SETTINGS, prepared
from workshop import results_of

ROWS = 1500
RANDOM = np.random.default_rng(4)
START = datetime(2024, 1, 1)
FAR = RANDOM.uniform(0, 500, ROWS)
AT = np.sort(RANDOM.uniform(0, 90 * 24, ROWS))
HOURS = 20 + FAR / 10 + RANDOM.gamma(2.0, 12.0, ROWS)
EVERY = 250


def parcels(hours, digits=1):
    at = [START + timedelta(hours=float(each)) for each in AT.round(2)]
    frame = {"row": range(ROWS), "at": at, "far": FAR, "label": hours.round(digits)}
    return pl.DataFrame(frame)


def examine(frame, folder):
    dataset = dataset_of(frame, folder, time="at", features=("far",))
    settings = SETTINGS.model_copy(update={"sample_rows": ROWS})
    found = results_of(prepared(Numbers, dataset, settings=settings), "label_alignment")
    return found["label_alignment"]


def cut(until):
    """The hours so far, of what is on its way then."""
    return np.where(until < AT + HOURS, (until - AT).clip(0.1), HOURS)


@pytest.mark.parametrize("digits", [0, 1, 2])
def test_times_that_end_at_an_export_fail(digits, tmp_path):
    """Of every ten days or so there is an export."""
    result = examine(parcels(cut((AT // EVERY + 1) * EVERY), digits), tmp_path)
    assert result.outcome == "failed", result.measured
    assert "and no label lasts beyond one" in result.measured
    assert "labels, as hours, end at" in result.measured


@pytest.mark.parametrize("hours", [
    HOURS,
    # Vans arrive at eight, or at whole hours; others last beyond.
    np.where(RANDOM.random(ROWS) < 0.3, (AT + HOURS) // 24 * 24 + 32 - AT, HOURS),
    np.ceil(AT + HOURS) - AT,
])  # fmt: skip
def test_times_that_were_known_pass(hours, tmp_path):
    result = examine(parcels(hours, 2), tmp_path)
    assert result.outcome == "passed", result.measured


def test_counts_of_days_pass(tmp_path):
    """Parts that were asked for on a day: nobody asks on the last ones."""
    day = (AT // 24).astype(int)
    frame = parcels(np.where(day > 55, 0.0, RANDOM.poisson(1.0, ROWS)))
    at = [START + timedelta(days=int(each)) for each in day]
    result = examine(frame.with_columns(at=pl.Series(at)), tmp_path)
    assert "no label lasts beyond" not in result.measured
