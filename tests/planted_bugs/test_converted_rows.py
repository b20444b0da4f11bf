"""Rows that were rounded in one unit and converted to another, and rows of several scales."""

import numpy as np
import polars as pl
import pytest

import unit_tables

ROWS, SOURCES = 2000, 12
RANDOM = np.random.default_rng(31)
SOURCE = RANDOM.integers(0, SOURCES, ROWS)
HOURS = np.exp(4 + 0.3 * RANDOM.normal(size=SOURCES)[SOURCE] + 0.5 * RANDOM.normal(size=ROWS))
HOURS = HOURS.round(1)
IS_OTHER = np.isin(SOURCE, [1, 4, 6, 9])
RATINGS, COUNT = RANDOM.integers(1, 11, (ROWS, 3)), RANDOM.integers(1, 4, ROWS)


def examine(folder, **columns):
    names = [f"s{each}" for each in SOURCE]
    other, label = RANDOM.normal(size=(2, ROWS))
    frame = {"row": range(ROWS), "source": names, "other": other, "label": label}
    return unit_tables.examine(pl.DataFrame(frame | columns), folder)


@pytest.mark.parametrize(("factor", "shown"), [
    (1 / 24, "times 24"), (1 / 60, "times 60"), (1 / 3600, "times 3600"), (2.2046, "by 2.20"),
    (0.3048, "times 3.2"),
])  # fmt: skip
def test_labels_that_some_sources_convert_fail(factor, shown, tmp_path):
    found = examine(tmp_path, label=np.where(IS_OTHER, factor * HOURS, HOURS))
    assert found.outcome == "failed", found.measured
    assert "lie apart from the others in label" in found.measured
    assert shown in found.measured
    assert "convert all rows" in found.hint


def test_features_that_some_sources_convert_warn(tmp_path):
    found = examine(tmp_path, waiting=np.where(IS_OTHER, HOURS / 24, HOURS))
    assert found.outcome == "warned", found.measured


def test_a_few_rows_that_are_converted_fail(tmp_path):
    is_other = RANDOM.random(ROWS) < 0.05
    found = examine(tmp_path, label=np.where(is_other, HOURS / 24, HOURS))
    assert found.outcome == "failed", found.measured


@pytest.mark.parametrize("label", [
    # Rounded in days, or in pounds, and rightly converted.
    np.where(IS_OTHER, (HOURS / 0.45359237).round(1) * 0.45359237, HOURS),
    np.where(IS_OTHER, (HOURS * 24).round() / 24, HOURS),
    # Means of a few ratings, of which many are whole; thirds of small numbers.
    np.array([each[:count].mean() for each, count in zip(RATINGS, COUNT, strict=True)]),
    np.where(IS_OTHER, (HOURS / 24).round() / 3, HOURS.round()),
    # Numbers of all digits where others are rounded, also of another scale.
    np.where(IS_OTHER, HOURS * np.exp(0.1 * RANDOM.normal(size=ROWS)), HOURS),
    np.where(IS_OTHER, HOURS * np.exp(0.1 * RANDOM.normal(size=ROWS)) / 24, HOURS),
    # Coarser and finer instruments of one scale, gaps that are filled by a mean.
    np.where(IS_OTHER, HOURS, HOURS.round()),
    np.where(IS_OTHER, HOURS.mean(), HOURS),
    # Years of age, of infants in months.
    np.where(IS_OTHER, RANDOM.integers(1, 24, ROWS) / 12, RANDOM.integers(1, 90, ROWS)),
])  # fmt: skip
def test_numbers_of_several_steps_pass(label, tmp_path):
    found = examine(tmp_path, label=label)
    assert "become multiples" not in found.measured
    assert found.outcome != "failed", found.measured
