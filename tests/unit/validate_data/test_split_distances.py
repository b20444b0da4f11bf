"""Splits of one stream are alike; a split that follows something else is named."""

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import Split
from perennial.contracts.validation import CategoricalSketch, NumericSketch, ValidationReport
from perennial.data.dataset import SPLIT_COLUMN
from perennial.validate_data.split_distances import split_distances

TYPES = {"amount": pl.Float64(), "city": pl.String()}


def sample(rows=4_000, shift=0.0, seed=0, city="Kiel"):
    """Rows of three splits; validation's amounts are shifted, and some of test's cities replaced."""
    random = np.random.default_rng(seed)
    split = random.choice([each.value for each in Split], rows, p=[0.6, 0.2, 0.2])
    amount = random.normal(50, 10, rows) + shift * (split == "validation")
    cities = np.where(
        (split == "test") & (random.random(rows) < 0.3), city, random.choice(["Ulm", "Kiel"], rows)
    )
    return pl.DataFrame({SPLIT_COLUMN: split, "amount": amount, "city": cities})


def beyond(rows, blocks=()):
    return {
        (each.column, each.split.value)
        for each in split_distances(rows, TYPES, blocks)
        if each.distance > each.limit
    }


class Block:
    """A block's sketch: amounts around a mean, and two cities."""

    def __init__(self, mean, ulm=0.5):
        quantiles = tuple(np.linspace(mean - 20, mean + 20, 21))
        self.numeric = {"amount": NumericSketch(quantiles=quantiles, nulls=0)}
        counts = {"Ulm": round(1_000 * ulm), "Kiel": round(1_000 * (1 - ulm))}
        self.categorical = {"city": CategoricalSketch(counts=counts, nulls=0)}


@pytest.mark.parametrize("seed", range(20))
def test_splits_of_equal_rows_are_not_beyond_their_limits(seed):
    assert beyond(sample(city="Ulm" if seed % 2 else "Kiel", rows=400, seed=seed)) == set()


def test_shifted_numbers_and_new_categories_are_found():
    assert beyond(sample(shift=8.0, city="Bonn")) == {("amount", "validation"), ("city", "test")}


def test_what_blocks_differ_by_anyway_is_not_reported():
    rows = sample(shift=8.0, city="Bonn")
    restless = [Block(mean, ulm) for mean, ulm in [(20, 0.1), (80, 0.9), (30, 0.2), (70, 0.8)]]
    assert beyond(rows, restless) == set()
    calm = [Block(50) for _ in range(20)]
    assert beyond(rows, calm) == {("amount", "validation"), ("city", "test")}


def test_too_few_rows_are_not_compared():
    assert list(split_distances(sample(rows=100), TYPES, ())) == []


def test_warning_names_the_feature_and_the_page_shows_all(healthy, snapshot_of, validate):
    late = pl.col("at").dt.day() > 25
    rows = healthy.with_columns(
        visits=pl.when(late).then(pl.col("visits") + 15).otherwise("visits")
    )
    validate(snapshot_of(rows, split={"method": "time", "test_fraction": 0.2}))
    report = ValidationReport.read(validate.out / "validation")
    warned = {
        e.subject for e in report.expectations if e.outcome == "failed" and "distance" in e.expected
    }
    assert warned == {"visits"}
    assert "How far validation and test are from training" in (validate.out / "report").read_text()
