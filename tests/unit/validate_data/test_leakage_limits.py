"""What may predict the label almost alone: its own past, and contents that a model is to read."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from perennial.contracts.errors import BadDataError
from perennial.contracts.validation import ValidationReport
from perennial.data.pictures import encode_png

HOURS = 1500


def series(meters: int = 1) -> pl.DataFrame:
    """Hourly loads that change slowly, with the two hours before each, by meter."""
    random = np.random.default_rng(7)
    hours = np.arange(HOURS // meters)
    tables = []
    for meter in range(meters):
        walk = random.normal(0, 1, len(hours) + 2).cumsum() + 40 * meter
        load = walk + 3 * np.sin(np.arange(len(walk)) / 4)
        tables.append(
            pl.DataFrame(
                {
                    "id": [f"{meter}-{hour}" for hour in hours],
                    "at": [datetime(2024, 1, 1) + timedelta(hours=int(hour)) for hour in hours],
                    "meter": f"m{meter}",
                    "lag_1": load[1:-1],
                    "lag_2": load[:-2],
                    "warmth": random.normal(size=len(hours)),
                    "label": load[2:],
                }
            )
        )
    return pl.concat(tables)


def aucs(report, severity):
    return {each.subject for each in report.expectations
            if each.outcome == "failed" and each.severity == severity and "auc" in each.expected}  # fmt: skip


@pytest.mark.parametrize("meters", [1, 5])
def test_the_labels_own_past_is_no_leak(meters, snapshot_of, validate):
    roles = {"group": "meter"} if meters > 1 else {"meta": ("meter",)}
    validate(snapshot_of(series(meters), available_at={}, **{"meta": (), "group": None} | roles))
    report = ValidationReport.read(validate.out / "validation")
    assert report.facts["leakage_auc:lag_1"] > 0.95
    assert report.failures == ()


def test_what_is_known_after_the_label_is_a_leak_beside_its_past(snapshot_of, validate):
    rows = series().with_columns(billed=pl.col("label") * 1.1 + pl.col("warmth") / 1000)
    with pytest.raises(BadDataError, match="billed: leakage auc"):
        validate(snapshot_of(rows, available_at={}, meta=("meter",), group=None))


def test_without_a_time_the_past_is_unknown(snapshot_of, validate):
    """What the label's own past excuses, is a leak where rows have no order."""
    rows = series().drop("at").with_columns(lag_1=pl.col("label") + pl.col("warmth") / 10)
    with pytest.raises(BadDataError, match="lag_1: leakage auc"):
        validate(snapshot_of(rows, time=None, available_at={}, meta=("meter",), group=None))


def test_contents_that_tell_the_label_warn_and_copies_of_it_fail(snapshot_of, validate, healthy):
    random = np.random.default_rng(9)
    rows = healthy.head(1000).select("id", "at", "user", "label")
    labels = rows["label"].to_numpy()
    tiles = [
        encode_png(random.normal(120, 20 + 9 * label, (8, 8)).clip(0, 255).astype(np.uint8))
        for label in labels
    ]
    rows = rows.with_columns(tile=pl.Series(tiles))
    validate(snapshot_of(rows, available_at={}))
    assert "tile.contrast" in aucs(ValidationReport.read(validate.out / "validation"), "warning")
    answers = np.column_stack([random.normal(size=1000) / 100, labels])
    rows = rows.with_columns(readings=pl.Series(answers.tolist()))
    with pytest.raises(BadDataError, match=r"readings\.mean: leakage auc"):
        validate(snapshot_of(rows, available_at={}))
