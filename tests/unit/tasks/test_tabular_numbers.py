"""Numbers are bounded in bins, marked when missing, and readable again."""

import math

import numpy as np
import polars as pl
import pytest

from perennial.tasks.columns.tabular_numbers import (
    describe_numbers,
    encode_numbers,
    fit_numbers,
    num_inputs,
)


@pytest.fixture
def table():
    generator = np.random.default_rng(0)
    values = generator.gamma(2.0, 10.0, 2000)
    holes = pl.Series([None if index % 7 == 0 else value for index, value in enumerate(values)])
    return pl.DataFrame({"amount": values, "holed": holes, "constant": [3.0] * 2000})


@pytest.mark.parametrize("bins", [0, 1, 8])
def test_width_is_what_is_promised(table, bins):
    states = fit_numbers(table.lazy(), table.columns, bins)
    assert encode_numbers(states, table).shape == (2000, num_inputs(states))


@pytest.mark.parametrize("bins", [0, 8])
def test_values_are_read_back(table, bins):
    states = fit_numbers(table.lazy(), table.columns, bins)
    inputs = encode_numbers(states, table)
    for row in range(50):
        shown = dict(describe_numbers(states, inputs[row].tolist()))
        assert float(shown["amount"]) == pytest.approx(table["amount"][row], rel=2e-3)
        assert (shown["holed"] == "(missing)") == (table["holed"][row] is None)


def test_bins_keep_unseen_values_bounded_and_standardising_does_not(table):
    unseen = pl.DataFrame({"amount": [1e6, -1e6], "holed": [None, 5.0], "constant": [9.0, 3.0]})
    binned = fit_numbers(table.lazy(), ["amount"], 8)
    assert np.abs(encode_numbers(binned, unseen)).max() <= 0.5
    plain = fit_numbers(table.lazy(), ["amount"], 0)
    assert np.abs(encode_numbers(plain, unseen)).max() > 1000


def test_each_bin_holds_about_as_many_rows(table):
    state = fit_numbers(table.lazy(), ["amount"], 8)["amount"]
    counts, _ = np.histogram(table["amount"].to_numpy(), bins=np.array(state.edges))
    assert counts.min() > 0.8 * 2000 / 8


@pytest.mark.parametrize("bins", [0, 8])
def test_missing_values_are_zero_and_marked(table, bins):
    states = fit_numbers(table.lazy(), ["holed"], bins)
    for missing in (None, math.nan):
        inputs = encode_numbers(
            states, pl.DataFrame({"holed": pl.Series([missing], dtype=pl.Float64)})
        )
        assert inputs[0].tolist() == [0.0] * (len(inputs[0]) - 1) + [1.0]


@pytest.mark.parametrize("bins", [0, 8])
def test_column_that_was_constant_in_training_stays_harmless_when_it_changes(bins):
    constant = pl.DataFrame({"rate": np.full(100_003, 0.1)})  # its deviation is 1e-17, not 0
    states = fit_numbers(constant.lazy(), ["rate"], bins)
    assert np.abs(encode_numbers(states, pl.DataFrame({"rate": [0.2]}))).max() < 1


def test_statistics_are_the_same_bits_every_time(tmp_path):
    values = np.random.default_rng(0).normal(size=200_000)
    for part in range(4):
        pl.DataFrame({"x": values[part::4]}).write_parquet(tmp_path / f"{part}.parquet")
    states = [fit_numbers(pl.scan_parquet(tmp_path), ["x"], 8) for _ in range(5)]
    assert all(state == states[0] for state in states)
