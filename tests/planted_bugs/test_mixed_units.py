"""Columns of which some rows are in another unit, and groups of rows that really differ."""

import numpy as np
import polars as pl
import pytest

from unit_tables import examine

ROWS = 1200
RANDOM = np.random.default_rng(11)
IS_OTHER = RANDOM.random(ROWS) < 0.2


def table(**columns) -> pl.DataFrame:
    frame = {
        "row": range(ROWS),
        "label": RANDOM.normal(size=ROWS),
        "other": RANDOM.normal(size=ROWS),
    }
    return pl.DataFrame(frame | columns)


def amounts(deviation: float = 0.1, level: float = 100.0) -> np.ndarray:
    return level * np.exp(deviation * RANDOM.normal(size=ROWS))


def in_other_unit(values: np.ndarray, factor: float) -> np.ndarray:
    return np.where(IS_OTHER, values * factor, values)


def windows(factor: float) -> pl.DataFrame:
    """Readings on many levels, and the next one: the unit shows in their ratio alone."""
    level = np.exp(RANDOM.normal(4, 1, ROWS))
    series = level[:, None] * np.exp(0.05 * RANDOM.normal(size=(ROWS, 9)))
    seen = in_other_unit(series[:, :8].T, factor).T.round(3)
    return table(readings=seen.tolist(), label=series[:, 8])


def pay(factor: float) -> pl.DataFrame:
    """Pay that follows from a rank and years, some of it in another unit: no column is in two."""
    rank, years = RANDOM.integers(0, 8, ROWS), RANDOM.uniform(0, 30, ROWS)
    a_year = 20_000 * 1.5**rank * 1.02**years * amounts(0.2, 1)
    return table(rank=rank, years=years.round(1), label=in_other_unit(a_year, 1 / factor).round(1))


POSSIBLE = {
    "seconds and milliseconds": lambda: table(latency=in_other_unit(amounts(0.8, 0.2), 1000)),
    "centimetres and inches": lambda: table(height=in_other_unit(amounts(0.06, 66), 2.54).round()),
    "kilometres and miles, beside the time": lambda: table(
        minutes=(time := amounts(1.0, 30)).round(1),
        distance=in_other_unit(time * amounts(0.05, 0.8), 1.609344).round(2),
    ),
    "unique names tell nothing": lambda: table(
        latency=in_other_unit(amounts(0.8, 0.2), 1000), name=[f"n{row}" for row in range(ROWS)]
    ),
    "mice and rats": lambda: table(weight=in_other_unit(amounts(0.12, 25), 16).round(1)),
    "two lines of products": lambda: table(
        price=in_other_unit(amounts(0.15, 20), 10).round(2), label=np.where(IS_OTHER, 50, 500)
    ),
    "walks and drives": lambda: table(
        minutes=(time := amounts(0.6, 30)), label=in_other_unit(time * amounts(0.08, 0.08), 10)
    ),
    "one and twelve months paid": lambda: table(
        fee=(fee := amounts(0.7, 30)), paid=in_other_unit(fee * amounts(0.02, 1), 12)
    ),
    "a tax on some": lambda: table(
        net=(net := amounts(0.7, 30)), gross=in_other_unit(net * amounts(0.003, 1), 1.15)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", POSSIBLE)
def test_groups_that_may_be_units_warn(case, tmp_path):
    """Nothing in these tables tells two units from two kinds of things."""
    result = examine(POSSIBLE[case](), tmp_path)
    assert result.outcome == "warned", result.measured
    assert "by a factor of" in result.measured


BUGS = {
    "windows in mmol/l, labels in mg/dl": lambda: windows(1 / 18),
    "windows in thousandths": lambda: windows(1000),
    "one height reported and measured, in inches": lambda: table(
        reported=(height := amounts(0.06, 170)).round(1),
        measured=in_other_unit(height * amounts(0.01, 1), 1 / 2.54).round(1),
    ),
    "pay of a month in some adverts for a year": lambda: pay(12),
    "grams in some rows of kilograms": lambda: pay(1000),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_one_quantity_in_two_units_fails(bug, tmp_path):
    result = examine(BUGS[bug](), tmp_path)
    assert result.outcome == "failed", result.measured
    assert "equal in the other rows" in result.measured


def by_utility(factor: float, *utilities: str) -> pl.DataFrame:
    """Loads that one of several utilities reports in another unit."""
    utility = RANDOM.choice(["amp", "ohm", "volta", "watt"], ROWS)
    load = np.where(np.isin(utility, utilities), factor, 1.0) * amounts(0.6, 4)
    return table(load=load.round(3), utility=utility)


def test_a_source_that_is_no_feature_and_reports_thousandths_fails(tmp_path):
    result = examine(by_utility(1000, "volta"), tmp_path, features=("load", "other"))
    assert result.outcome == "failed", result.measured
    assert "utility, no feature, tells them apart" in result.measured


@pytest.mark.parametrize("factor", [1.0, 10.0])
def test_a_source_of_larger_amounts_does_not_fail(factor, tmp_path):
    result = examine(by_utility(factor, "volta"), tmp_path, features=("load", "other"))
    assert result.outcome != "failed", result.measured


def test_the_units_are_named(tmp_path):
    measured = examine(windows(1 / 18), tmp_path).measured
    assert "the last of readings / label" in measured
    assert "mg/dl and mmol/l" in measured


HEALTHY = {
    "one unit": lambda: table(latency=amounts(0.8, 0.2)),
    "a feature names the unit": lambda: table(
        latency=in_other_unit(amounts(0.8, 0.2), 1000),
        unit=np.where(IS_OTHER, "ms", "s"),
    ),
    "groups that lie apart by no unit": lambda: table(size=in_other_unit(amounts(0.05), 5.3)),
    "packs of one and of twelve": lambda: table(pack=in_other_unit(np.ones(ROWS), 12.0)),
    "prices of packs, beside the pack": lambda: table(
        price=in_other_unit(amounts(0.05), 12.0), pack=in_other_unit(np.ones(ROWS), 12.0)
    ),
    "groups of other widths": lambda: table(
        size=np.where(IS_OTHER, amounts(0.3, 1e5), amounts(0.05, 100))
    ),
    "many orders of magnitude": lambda: table(wealth=amounts(3.0)),
    "sizes of two sexes": lambda: table(height=in_other_unit(amounts(0.04, 165), 1.08)),
    "weekdays and weekends, beside the date": lambda: table(
        visits=np.where((np.arange(ROWS) + 2) % 7 > 4, amounts(0.15, 700), amounts(0.15, 100)),
        day=pl.Series(np.arange("2020-01-01", ROWS, dtype="datetime64[D]")),
    ),
    "day and night, beside the time": lambda: table(
        light=np.where(np.arange(ROWS) % 24 < 12, amounts(0.3, 5000), amounts(0.3, 50)),
        at=pl.Series(np.datetime64(0, "us") + np.arange(ROWS) * np.timedelta64(3_600_000_000, "us")),
    ),
    "winter and summer in degrees": lambda: table(
        degrees=np.where(IS_OTHER, RANDOM.normal(2, 1, ROWS).clip(0.1), RANDOM.normal(24, 2, ROWS))
    ),
    "counts of short and long times": lambda: table(
        count=np.where(IS_OTHER, RANDOM.poisson(1000, ROWS), RANDOM.poisson(100, ROWS))
    ),
    "currencies of twenty countries": lambda: table(
        amount=np.where((country := RANDOM.integers(0, 20, ROWS)) < 6, amounts(0.5, 1e4), amounts(0.5)),
        country=[f"c{each}" for each in country],
    ),
    "windows in one unit": lambda: windows(1.0),
    "pay of a year": lambda: pay(1.0),
    "pay of two trades that nothing tells apart": lambda: pay(5.0),
    "bonuses of every size": lambda: table(
        rank=(rank := RANDOM.integers(0, 8, ROWS)), label=amounts(0.3) * 1.2**rank * np.where(
            IS_OTHER, RANDOM.uniform(1, 12, ROWS), 1.0)
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HEALTHY)
def test_groups_that_really_differ_pass(case, tmp_path):
    result = examine(HEALTHY[case](), tmp_path)
    assert result.outcome == "passed", result.measured


def test_numbers_with_a_sign_have_no_ratio(tmp_path):
    result = examine(table(change=in_other_unit(amounts(), -10.0)), tmp_path)
    assert result.outcome == "skipped", result.measured


def graphs(*, from_one: float = 0.0, last: float = 0.8) -> pl.DataFrame:
    """Lines between the nodes of a network, and a load for each node."""
    heads, loads = [], []
    for row in range(ROWS):
        nodes = int(RANDOM.integers(3, 9))
        places = [*RANDOM.integers(0, nodes, nodes - 1), nodes - 1 if RANDOM.random() < last else 0]
        heads.append([int(place) + (row < from_one * ROWS) for place in places])
        loads.append(RANDOM.gamma(2.0, 3.0, nodes).tolist())
    return table(head=heads, load=loads)


def test_places_that_some_rows_count_from_one_fail(tmp_path):
    result = examine(graphs(from_one=0.2), tmp_path)
    assert result.outcome == "failed", result.measured
    assert "head holds places in load, counted from 0 in 82% of the rows" in result.measured


def test_places_counted_alike_pass(tmp_path):
    assert examine(graphs(), tmp_path).outcome == "passed"
    assert examine(graphs(from_one=1.0), tmp_path / "one").outcome == "passed"


def test_numbers_that_are_no_places_pass(tmp_path):
    counts = [RANDOM.integers(0, 12, RANDOM.integers(3, 9)).tolist() for _ in range(ROWS)]
    loads = [RANDOM.gamma(2.0, 3.0, RANDOM.integers(3, 9)).tolist() for _ in range(ROWS)]
    assert examine(table(counts=counts, load=loads), tmp_path).outcome == "passed"


def rides(*, exchanged: float = 0.0) -> pl.DataFrame:
    """Where rides begin; some rows name the longitude first."""
    north, east = 40.7 + 0.1 * RANDOM.normal(size=ROWS), -74 + 0.1 * RANDOM.normal(size=ROWS)
    is_other, is_known = RANDOM.random(ROWS) < exchanged, RANDOM.random(ROWS) > 0.02
    first, second = np.where(is_other, [east, north], [north, east]) * is_known
    return table(lat=first, lon=second)


def test_columns_that_some_rows_exchange_fail(tmp_path):
    result = examine(rides(exchanged=0.1), tmp_path)
    assert result.outcome == "failed", result.measured
    assert "lat and lon are exchanged in" in result.measured


def test_columns_in_one_order_pass(tmp_path):
    assert examine(rides(), tmp_path).outcome != "failed"


def test_columns_of_one_range_are_not_compared(tmp_path):
    scores = {name: RANDOM.poisson(2.0, ROWS) for name in ("home", "away")}
    assert examine(table(**scores), tmp_path).outcome != "failed"


def test_flags_and_shares_of_which_one_is_large_pass(tmp_path):
    """Two thirds of the rows are of the first."""
    is_first = RANDOM.random(ROWS) < 0.67
    share = np.where(is_first, RANDOM.uniform(0.9, 1, ROWS), RANDOM.uniform(0, 0.1, ROWS))
    columns = {"first": is_first * 1, "second": 1 - is_first, "own": share, "rest": 1 - share}
    assert examine(table(**columns), tmp_path).outcome != "failed"


def test_rows_that_are_far_off_in_one_column_pass(tmp_path):
    ages = np.where(RANDOM.random(ROWS) < 0.02, 30_000.0, RANDOM.normal(40, 10, ROWS))
    pay = 30_000 * np.exp(0.4 * RANDOM.normal(size=ROWS))
    assert examine(table(age=ages, pay=pay), tmp_path).outcome != "failed"
