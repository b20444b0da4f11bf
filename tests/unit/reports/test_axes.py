import math
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.reports.drawing import MINUS, Axis, DateAxis, padded_range

VALUES = st.lists(st.floats(), max_size=6)


@pytest.mark.parametrize(
    ("limits", "labels"),
    [
        ((0, 1), ["0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        ((0, 10_000), ["0", "2,000", "4,000", "6,000", "8,000", "10,000"]),
        ((-1, 1), ["-1.0", "-0.5", "0", "0.5", "1.0"]),
        ((0.31, 0.79), ["0.4", "0.5", "0.6", "0.7"]),
        ((0, 3e-4), ["0", "50", "100", "150", "200", "250", "300"]),
        ((0, 2.5e9), ["0", "0.5", "1.0", "1.5", "2.0", "2.5"]),
    ],
)  # fmt: skip
def test_ticks_are_round_numbers(limits, labels):
    expected = [label.replace("-", MINUS) for label in labels]

    assert Axis(*limits, 0, 100).tick_labels == expected


@pytest.mark.parametrize(
    ("high", "title"),
    [(1, "y"), (9e5, "y"), (2e6, "y (\u00d710\u2076)"), (3e-4, "y (\u00d710\u207b\u2076)")],
)
def test_left_out_power_of_ten_is_part_of_the_title(high, title):
    assert Axis(0, high, 0, 100).title("y") == title


@given(VALUES, st.floats(0, 0.1), st.integers(1, 8))
def test_any_values_get_an_axis_with_distinct_ticks_inside(values, padding, max_ticks):
    low, high = padded_range(values, padding)
    axis = Axis(low, high, 10, 500, max_ticks)

    assert low < high
    assert len(axis.ticks) <= max_ticks + 1
    assert len(set(axis.tick_labels)) == len(axis.tick_labels) == len(axis.ticks)
    assert all(9.9 <= axis.at(tick) <= 500.1 for tick in axis.ticks)
    known = [value for value in values if math.isfinite(value) and abs(value) < 1e300]
    assert all(10 <= axis.at(value) <= 500 for value in known)


def moment(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        ("2026-01-05T00:00", "2026-01-05T05:00", ["01-05 00:00", "01-05 01:00", "01-05 02:00",
                                                  "01-05 03:00", "01-05 04:00", "01-05 05:00"]),
        ("2026-02-26", "2026-03-02", ["2026-02-26", "2026-02-27", "2026-02-28", "2026-03-01",
                                      "2026-03-02"]),
        ("2026-01-01", "2026-02-01", ["2026-01-05", "2026-01-12", "2026-01-19", "2026-01-26"]),
        ("2025-11-15", "2026-05-02", ["2025-12", "2026-01", "2026-02", "2026-03", "2026-04",
                                      "2026-05"]),
        ("2024-01-01", "2026-01-01", ["2024-01", "2024-07", "2025-01", "2025-07", "2026-01"]),
        ("2016-05-01", "2026-05-01", ["2018", "2020", "2022", "2024", "2026"]),
        ("0001-01-01", "9999-12-01", ["2000", "4000", "6000", "8000"]),
    ],
)  # fmt: skip
def test_dates_are_labelled_at_calendar_steps(low, high, labels):
    axis = DateAxis(moment(low), moment(high), 0, 500)

    assert axis.tick_labels == labels
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
    assert axis.title("time") == "time"


@given(st.floats(-6e10, 2.5e11), st.floats(1e-3, 2e11), st.integers(1, 7))
def test_any_time_span_has_few_ticks_inside(low, span, max_ticks):
    high = min(low + span, 2.53e11)
    axis = DateAxis(low, high, 0, 500, max_ticks)

    assert len(axis.ticks) <= max_ticks + 2
    assert all(axis.low <= tick <= axis.high for tick in axis.ticks)
    assert len(axis.tick_labels) == len(axis.ticks)


def test_calendar_ends_somewhere():
    assert DateAxis.can_show(0, 2e9)
    assert not DateAxis.can_show(0, 1e300)
    assert not DateAxis.can_show(-1e12, 0)
