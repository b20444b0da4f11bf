"""Columns that keep their distributions and change how they go together are found."""

from datetime import timedelta

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.detect_drift.dependence import dependence_profile
from perennial.detect_drift.reference import measure_windows

REFERENCE, WINDOWS, ROWS = 13, 3, 500


def week(seed, correlation, block, index, kind):
    random = np.random.default_rng(seed)
    x, noise, z = random.normal(size=(3, ROWS))
    y = correlation * x + np.sqrt(1 - correlation**2) * noise
    columns = {"x": x + 0.3 * random.normal(), "y": y, "z": z}
    if kind == "text":
        columns["y"] = ["high" if value > 0 else "low" for value in y]
    if kind == "called other":
        columns["y"] = ["(other)" if value > -0.2 else "low" for value in y]
    if kind == "constant":
        columns["z"] = np.zeros(ROWS)
    if kind == "missing":
        columns["z"] = np.where(random.random(ROWS) < 0.5, np.nan, z)
    # As `validate_data` names such a value.
    named = {"y": [f"{text}'" if text == "(other)" else text for text in columns["y"]]}
    sketch = block(index, columns | named)
    moments = [sketch.start + timedelta(days=7) * row / ROWS for row in range(ROWS)]
    return sketch, pl.DataFrame({"t": moments, "label": random.normal(size=ROWS), **columns})


def measured(block, correlations, kind="numbers", seed=0):
    weeks = [
        week(seed * 100 + index, correlation, block, index, kind)
        for index, correlation in enumerate(correlations)
    ]
    snapshot = Snapshot(
        data=DataSection(uri="d", label="label", time="t"), split=SplitSection(), files=(),
        columns=dict.fromkeys(("label", "t", "x", "y", "z"), "Float64"), rows=0, split_rows={},
    )  # fmt: skip
    blocks = [sketch for sketch, _ in weeks]
    rows = pl.concat([rows for _, rows in weeks]).lazy()
    profile = dependence_profile(rows, snapshot, blocks, REFERENCE)
    assert profile is not None
    return measure_windows(
        blocks[:REFERENCE], blocks[REFERENCE:], TriggersSection(), [profile]
    ).windows


@pytest.mark.parametrize("kind", ["numbers", "text", "called other", "constant", "missing"])
def test_a_correlation_that_comes_up_alarms_though_no_column_moved(block, kind):
    windows = measured(block, [0.0] * REFERENCE + [0.7] * WINDOWS, kind)
    for window in windows:
        (alarmed,) = [column for column in window.columns if column.alarmed]
        assert (alarmed.column, alarmed.statistic) == ("(all columns)", "dependence")


@pytest.mark.parametrize("correlation", [0.0, 0.7])
def test_a_correlation_that_lasts_is_ordinary(block, correlation):
    alarms = [
        window.alarmed
        for seed in range(1, 6)
        for window in measured(block, [correlation] * (REFERENCE + WINDOWS), seed=seed)
    ]
    assert sum(alarms) <= 1


def test_one_column_or_few_rows_are_skipped(block):
    sketches = [block(index, {"x": [1.0, 2.0]}) for index in range(16)]
    snapshot = Snapshot(
        data=DataSection(uri="d", label="label", time="t"), split=SplitSection(), files=(),
        columns=dict.fromkeys(("label", "t", "x"), "Float64"), rows=0, split_rows={},
    )  # fmt: skip
    rows = pl.DataFrame({"t": [s.start for s in sketches], "x": [1.0] * 16, "label": [0.0] * 16})
    assert dependence_profile(rows.lazy(), snapshot, sketches, 13) is None
