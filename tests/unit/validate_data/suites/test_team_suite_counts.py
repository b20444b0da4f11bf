"""Counts of a suite are made once for each partition, and judged the same however rows are parted."""

import logging
from pathlib import Path

import polars as pl
import pytest

from flight_suites import expect
from perennial.clients.object_store import open_store
from perennial.contracts.validation import ValidationReport
from perennial.validate_data.suites.document import Suite

SUITE = Suite(
    name="own",
    expectations=(
        expect("column_mean_to_be_between", "amount", min_value=0, max_value=100),
        expect("column_stdev_to_be_between", "amount", min_value=0, max_value=100),
        expect("column_values_to_be_unique", "id"),
        expect("column_distinct_values_to_equal_set", "city", value_set=["Ulm", "Bonn", "Kiel"]),
        expect("column_value_z_scores_to_be_less_than", "amount", threshold=9, double_sided=True),
    ),
).to_json()


def own(out):
    report = ValidationReport.read(out / "validation")
    return [each for each in report.expectations if each.basis]


@pytest.fixture
def counted(validate, caplog, tmp_path):
    """Validates and returns the suite's expectations and how many partitions were counted."""

    def run(snapshot, **options):
        run.store.delete("monitoring/demo/validation.json")
        caplog.clear()
        with caplog.at_level(logging.INFO):
            validate(snapshot, **options)
        messages = [each.getMessage() for each in caplog.records]
        lines = [each for each in messages if each.startswith("suite ")]
        return own(validate.out), lines

    run.store = open_store(str(tmp_path / "store"))
    return run


def test_only_new_partitions_are_counted(healthy, snapshot_of, counted):
    first, second = healthy.head(2_000), healthy.tail(1_000)
    _, lines = counted(snapshot_of(first), suite=SUITE)
    assert lines == ["suite partitions=1 measured=1"]
    grown, lines = counted(snapshot_of(first, second), suite=SUITE)
    assert lines == ["suite partitions=2 measured=1"]
    whole, _ = counted(snapshot_of(healthy), suite=SUITE)
    assert grown == whole
    again, lines = counted(snapshot_of(second, first), suite=SUITE)
    assert lines == ["suite partitions=2 measured=0"]
    assert again == whole


def test_a_partition_that_was_counted_is_not_opened_again(healthy, snapshot_of, counted):
    counted(snapshot_of(healthy.head(2_000)), suite=SUITE)
    grown = snapshot_of(healthy.head(2_000), healthy.tail(1_000))
    Path(grown.files[0].uri).unlink()
    _, lines = counted(grown, suite=SUITE)
    assert lines == ["suite partitions=2 measured=1"]


def test_another_suite_or_sample_is_counted_again(healthy, snapshot_of, counted):
    counted(snapshot_of(healthy), suite=SUITE)
    _, lines = counted(snapshot_of(healthy), suite=SUITE, suite_sample_rows=1_000)
    assert lines == ["suite partitions=1 measured=1"]
    other = SUITE.replace('"max_value":100', '"max_value":101')
    _, lines = counted(snapshot_of(healthy), suite=other)
    assert lines == ["suite partitions=1 measured=1"]


@pytest.mark.hostile
@pytest.mark.parametrize(
    "damage",
    [lambda old: old[:-9], lambda old: b"", lambda old: b"x" * 99],
    ids=["cut", "empty", "other"],
)
def test_damaged_counts_are_counted_again(healthy, snapshot_of, counted, damage):
    before, _ = counted(snapshot_of(healthy), suite=SUITE)
    (key,) = [each.key for each in counted.store.list("") if "/suite-" in each.key]
    counted.store.write(key, damage(counted.store.read(key)))
    for each in counted.store.list("facts/merged/"):
        counted.store.delete(each.key)
    after, lines = counted(snapshot_of(healthy), suite=SUITE)
    assert (after, lines) == (before, ["suite partitions=1 measured=1"])
    assert counted(snapshot_of(healthy), suite=SUITE)[1] == ["suite partitions=1 measured=0"]


def test_rows_without_any_are_judged(snapshot_of, healthy, counted):
    rows = [healthy, healthy.head(0)]
    found, _ = counted(snapshot_of(*rows), suite=SUITE)
    assert found == counted(snapshot_of(healthy), suite=SUITE)[0]
    assert pl.Series([each.outcome for each in found]).unique().to_list() == ["passed"]
