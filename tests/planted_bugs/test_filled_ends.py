"""Windows whose gaps are filled from the future, and lines that know nothing of it."""

import numpy as np
import polars as pl
import pytest

from mixed_numbers import Numbers, subject_of
from perennial.check_skeleton.checks.data.leaks.telling_columns import check_telling_columns

SIZE, AHEAD, GAP = 24, 6, 6
LENGTH = 12_000


def readings(seed=4, digits=1):
    """A level that swings, with noise."""
    rng = np.random.default_rng(seed)
    drift = np.zeros(LENGTH)
    for step in range(1, LENGTH):
        drift[step] = 0.97 * drift[step - 1] + rng.normal()
    return (100 + 10 * np.sin(np.arange(LENGTH) / 40) + 3 * drift).round(digits)


def windows(series, label=None, fill=None):
    """Windows of a series and the reading half an hour later; `fill` changes the last six of half."""
    label = series if label is None else label
    rng, rows = np.random.default_rng(1), []
    for end in range(SIZE, LENGTH - AHEAD, 7):
        window = series[end - SIZE : end].copy()
        if fill and rng.random() < 0.5:
            window = fill(window, float(label[end + AHEAD - 1])).round(1)
        rows.append((window.tolist(), float(label[end + AHEAD - 1])))
    frame = pl.DataFrame(rows, schema=["history", "label"], orient="row")
    return frame.with_columns(row=pl.int_range(pl.len()))


def towards_the_label(window, later):
    line = np.linspace(window[-GAP - 1], later, GAP + AHEAD + 1)
    return np.append(window[:-GAP], line[1 : GAP + 1])


def towards_the_last(window, later):
    """The last reading is real: only the past is drawn through."""
    line = np.linspace(window[-GAP - 1], window[-1], GAP + 1)
    return np.append(window[:-GAP], line[1:])


def on_from_the_past(window, later):
    slope = (window[-GAP - 1] - window[-GAP - 4]) / 3
    return np.append(window[:-GAP], window[-GAP - 1] + slope * np.arange(1, GAP + 1))


def held(window, later):
    return np.append(window[:-GAP], np.full(GAP, window[-GAP - 1]))


def filled_series(gap, share=0.6):
    """Gaps all over the series are interpolated before it is cut."""
    series, rng, step = readings(), np.random.default_rng(2), 5
    filled = series.copy()
    while step < LENGTH - gap - 2:
        if rng.random() < share:
            filled[step : step + gap + 1] = np.linspace(series[step], series[step + gap], gap + 1)
            step += gap
        step += int(rng.integers(2, 8))
    return filled.round(1)


def triangles():
    return (np.abs(np.arange(LENGTH) % 100 - 50) * 0.7).round(1)


def examine(frame, folder):
    return check_telling_columns(subject_of(Numbers, frame, folder))


def test_ends_that_are_drawn_to_the_label_fail(tmp_path):
    result = examine(windows(readings(), fill=towards_the_label), tmp_path)
    assert result.outcome == "failed", result.measured
    assert "end in a straight line" in result.measured


def test_a_series_of_long_filled_gaps_warns(tmp_path):
    """Lines are in all parts of the windows, as in series that rise and fall in lines."""
    series = filled_series(12)
    result = examine(windows(series), tmp_path)
    assert result.outcome == "warned", result.measured
    assert "end in a straight line" in result.measured


HEALTHY = {
    "nothing is filled": lambda: windows(readings()),
    "filled up to a real reading": lambda: windows(readings(), fill=towards_the_last),
    "drawn on from the past": lambda: windows(readings(), fill=on_from_the_past),
    "the last reading is held": lambda: windows(readings(), fill=held),
    "triangles": lambda: windows(triangles()),
    "a smooth swing": lambda: windows(np.sin(np.arange(LENGTH) / 40)),
    "whole numbers that hardly move": lambda: windows(readings(digits=-1) / 10),
    "a counter": lambda: windows(np.cumsum(np.arange(LENGTH) % 50 < 30).astype(float)),
}


@pytest.mark.parametrize("case", HEALTHY)
def test_other_ends_pass(case, tmp_path):
    result = examine(HEALTHY[case](), tmp_path)
    assert "straight line" not in result.measured, result.measured
