"""Sources that report in another unit, or with parts in another order, and groups that differ."""

import numpy as np
import polars as pl
import pytest

import unit_tables

ROWS, SOURCES = 2400, 10
RANDOM = np.random.default_rng(23)
SOURCE = RANDOM.integers(0, SOURCES, ROWS)
OWN = 0.05 * np.array([1, -2, 3, -4, 5, -5, 4, -3, 2, -1])[SOURCE]
COVER = np.where(RANDOM.random(ROWS) < 0.4, 0.0, 40 * np.exp(OWN + 0.8 * RANDOM.normal(size=ROWS)))
HOURS = 100 + 60 * np.sin(np.arange(24) / 4 - 1) + 8 * RANDOM.normal(size=(ROWS, 24))
EVENTS = np.random.default_rng(9).poisson(0.25, 120)
DAY = np.random.default_rng(4).integers(0, 110, ROWS)
MINUTES = RANDOM.gamma([9.0, 4.0, 2.0, 30.0, 1.0], 20.0, (ROWS, 5))


def examine(folder, **columns):
    names = [f"s{each}" for each in SOURCE]
    other, label = RANDOM.normal(size=(2, ROWS))
    frame = {"row": range(ROWS), "source": names, "other": other, "label": label}
    return unit_tables.examine(pl.DataFrame(frame | columns), folder)


def of(*sources):
    """Whether a row is of one of the sources."""
    return np.isin(SOURCE, sources)


def reordered(lists, order, *sources):
    return np.where(of(*sources)[:, None], lists[:, order], lists).tolist()


def test_labels_that_some_sources_report_as_fractions_fail(tmp_path):
    found = examine(tmp_path, label=np.where(of(2, 5, 7), COVER / 100, COVER))
    assert found.outcome == "failed", found.measured
    assert "label of source s2, s5, s7 is a factor of 100" in found.measured


def test_labels_of_a_single_source_warn(tmp_path):
    steady = 40 * np.exp(0.5 * RANDOM.normal(size=ROWS))
    assert examine(tmp_path, label=np.where(of(7), 100 * steady, steady)).outcome == "warned"


def test_features_in_another_unit_warn_as_the_source_tells_them_apart(tmp_path):
    metres = 800 * np.exp(0.5 * RANDOM.normal(size=ROWS))
    found = examine(tmp_path, height=np.where(of(4), metres / 1000, metres))
    assert found.outcome == "warned"
    assert "height of source s4 is a factor of 1000" in found.measured


@pytest.mark.parametrize("label", [
    COVER,
    # Stores of all sizes; two that are forty times larger; cars, a hundred times dearer, and of
    # another shape.
    40 * np.exp(2 * RANDOM.normal(size=SOURCES)[SOURCE] + 0.5 * RANDOM.normal(size=ROWS)),
    np.where(of(1, 8), 40, 1) * np.exp(OWN + 0.5 * RANDOM.normal(size=ROWS)),
    np.where(of(3), 100 * np.exp(2 * RANDOM.normal(size=ROWS)), np.exp(RANDOM.normal(size=ROWS))),
])  # fmt: skip
def test_sources_that_differ_pass(label, tmp_path):
    assert examine(tmp_path, label=label).outcome in ("passed", "skipped")


@pytest.mark.parametrize("sources", [(0, 3, 6), (9,)])
def test_lists_whose_parts_have_another_order_in_some_sources_fail(sources, tmp_path):
    found = examine(tmp_path, minutes=reordered(MINUTES, [2, 3, 0, 4, 1], *sources))
    assert found.outcome == "failed", found.measured
    assert "parts of minutes come in another order" in found.measured


def test_days_of_another_time_zone_warn(tmp_path):
    found = examine(tmp_path, hours=reordered(HOURS, np.roll(np.arange(24), 6), 1, 2))
    assert found.outcome == "warned"


@pytest.mark.parametrize("lists", [
    MINUTES, HOURS,
    # More of one part in some sources, noise alone, and equal parts.
    MINUTES * np.where(of(1, 4)[:, None], [1.0, 3.0, 1.0, 0.5, 1.0], 1.0),
    RANDOM.normal(size=(ROWS, 6)),
    RANDOM.gamma(2.0, 1.0, (ROWS, 8)) * np.exp(OWN)[:, None],
    # Rare events of the next days, the same for all sources.
    EVENTS[DAY[:, None] + np.arange(7)],
])  # fmt: skip
def test_lists_of_one_order_pass(lists, tmp_path):
    found = examine(tmp_path, lists=lists.tolist())
    assert found.outcome in ("passed", "skipped"), found.measured
