"""Counts merge: the same tables and figures whatever the order and grouping of the rows."""

import math
import statistics
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.validate_data.suites import counts
from perennial.validate_data.suites.counts import Moments, SuiteMeasures, counted_values

MEASURES = SuiteMeasures(
    numbers={
        "rows": pl.len().cast(pl.Int64), "column.min:x": pl.col("x").min(),
        "column.max:x": pl.col("x").max(), "positive": (pl.col("x") > 0).sum().cast(pl.Int64),
    },
    moments={"x": pl.col("x")},
    values={"word": pl.col("word")},
    hashes={"x": pl.when(pl.col("x").is_not_null()).then(pl.col("x").hash())},
    sampled=["x", "word"],
    sample_rows=10,
)  # fmt: skip

NUMBERS = st.one_of(
    st.none(), st.floats(allow_nan=False), st.integers(-5, 5).map(float), st.just(1e16)
)
ROWS = st.lists(st.tuples(NUMBERS, st.sampled_from(["a", "b", "ä", "", None])), max_size=40)


def table(rows):
    return pl.DataFrame(rows, schema={"x": pl.Float64, "word": pl.String}, orient="row")


def measured(parts):
    return MEASURES.merge([MEASURES.state_of(table(part)) for part in parts])


@given(ROWS, st.integers(0, 40), st.randoms())
@settings(max_examples=60)
def test_parts_in_any_order_and_grouping_give_the_same_tables(rows, cut, random):
    whole = measured([rows])
    shuffled = random.sample(rows, len(rows))
    first = MEASURES.state_of(table(shuffled[:cut]))
    rest = [MEASURES.state_of(table([row])) for row in shuffled[cut:]]
    grouped = MEASURES.merge(
        [MEASURES.merge([first]), MEASURES.merge([*rest, first][:-1] or [first])]
    )
    if not rest:
        grouped = MEASURES.merge([first])
    for name in ("numbers", "moments", "values"):
        order = [column for column in ("key", "hash") if column in whole[name].columns]
        ours, theirs = (
            each[name].sort(order) if order else each[name] for each in (grouped, whole)
        )
        assert ours.equals(theirs, null_equal=True), name
    assert sorted(grouped["sample"].rows(), key=repr) == sorted(whole["sample"].rows(), key=repr)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=30))
@settings(max_examples=100)
def test_sum_mean_and_deviation_are_rounded_once(values):
    found = Moments.of(measured([[(each, None) for each in values]])["moments"], "x")
    exact = [Fraction(each) for each in values]
    assert found.count == len(values)
    try:
        assert found.sum == float(sum(exact))
        assert found.mean == float(sum(exact) / len(exact))
        variance = float(statistics.variance(exact))
    except OverflowError:
        return
    assert math.isclose(found.standard_deviation, math.sqrt(variance), rel_tol=1e-15)


@pytest.mark.parametrize(
    ("values", "mean"),
    [([1.0, np.inf], np.inf), ([1.0, -np.inf], -np.inf), ([np.inf, -np.inf], np.nan), ([], np.nan)],
)
def test_infinite_values_and_none_give_what_pandas_gives(values, mean):
    found = Moments.of(measured([[(each, None) for each in values]])["moments"], "x")
    assert np.array_equal(found.mean, mean, equal_nan=True)
    assert math.isnan(found.standard_deviation)


def test_a_small_spread_far_from_zero_is_not_lost():
    values = [1e9 + each / 1000 for each in range(1000)]
    found = Moments.of(measured([[(each, None) for each in values]])["moments"], "x")
    assert math.isclose(found.standard_deviation, np.std(values, ddof=1), rel_tol=1e-9)


def test_too_many_values_are_halved_by_hash_with_all_their_rows(monkeypatch):
    monkeypatch.setattr(counts, "MAX_VALUES", 64)
    rows = [(None, f"word {index % 1_000}") for index in range(3_000)]
    values = measured([rows[start : start + 500] for start in range(0, 3_000, 500)])["values"]
    found, halvings = counted_values(values, "word", pl.String())
    assert halvings >= 4
    assert found.height <= 64
    assert set(found["count"]) == {3}
    assert values.sort("hash").equals(measured([rows[::-1]])["values"].sort("hash"))


def test_sample_is_of_the_rows_whatever_their_order():
    rows = [(float(index), "a") for index in range(500)]
    found = measured([rows])["sample"]
    assert found.height == 10
    again = measured([rows[300:], rows[:300]])["sample"]
    assert set(found["x"]) == set(again["x"])
    assert found["x"].max() > 100
