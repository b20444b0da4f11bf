"""Copies and windows across splits: what no chance explains is refused, what nature repeats is not."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from mixed_numbers import Numbers, TwoClasses, WithMissingNumbers, subject_of, walk
from other_styles import numbers_table, table_of
from perennial.check_skeleton.checks.data.leaks.leakage import (
    check_split_overlap,
    find_independent_columns,
)
from perennial.check_skeleton.checks.data.leaks.near_copies import MOST_COLUMNS, find_near_copies

RNG = np.random.default_rng
X, SCORE = numbers_table(rows=1200)
CLASS = (SCORE > 0.9).astype(int)


def numbered(frame):
    return frame.sample(fraction=1.0, shuffle=True, seed=1).with_columns(row=pl.int_range(pl.len()))


def test_of_lists_that_are_too_long_no_more_amounts_are_counted_than_decide(monkeypatch, tmp_path):
    """The values of all 16,000 amounts of a sound took seconds."""
    amounts = RNG(1).normal(size=(1200, 2000))
    rows = pl.DataFrame({"sound": amounts.tolist(), "label": CLASS})
    subject = subject_of(TwoClasses, numbered(rows), tmp_path)
    counted, unique = [], np.unique
    monkeypatch.setattr(np, "unique", lambda *args, **kw: counted.append(1) or unique(*args, **kw))
    assert find_near_copies(subject) is None
    assert len(counted) <= MOST_COLUMNS + 1


def twice():
    rows = table_of(X.round(3), CLASS)
    return numbered(pl.concat([rows, rows]))


def oversampled():
    """The rarer class six times."""
    rows = table_of(X.round(3), CLASS)
    return numbered(pl.concat([rows, *[rows.filter(pl.col("label") == 1)] * 5]))


def doubled_by_a_join():
    """A quarter of the rows found two partners."""
    rows = table_of(X.round(3), CLASS, place=[f"p{i % 40}" for i in range(len(X))])
    return numbered(pl.concat([rows, rows.gather_every(4), rows.gather_every(4)]))


def windows(every=1, *, of=None, size=24, label="next"):
    """Windows of one series and what comes next, or whether it rises."""
    series = walk(1600) if of is None else of
    ends = range(size, len(series) - 3, every)
    labels = {
        "next": [float(series[i]) for i in ends],
        "in three": [float(series[i + 2]) * 1.8 + 32 for i in ends],
        "rises": [int(series[i] > series[i - 1]) for i in ends],
    }[label]
    return pl.DataFrame(
        {
            "row": range(len(ends)),
            "history": [series[i - size : i].tolist() for i in ends],
            "label": labels,
        }
    )


def lags():
    """The last twelve values as columns."""
    rows = windows(size=12)
    columns = [pl.col("history").list.get(11 - k).alias(f"lag_{k:02}") for k in range(12)]
    return rows.with_columns(columns).drop("history")


def pictures_twice():
    rows = windows(24, of=walk(24 * 900))
    return numbered(pl.concat([rows, rows]))


def measured_again(times=5, noise=0.01, **columns):
    """Each of 240 plates, measured several times by a device that is nearly exact."""
    rng, plates = RNG(6), X[:240]
    again = np.repeat(np.arange(240), times)
    values = plates[again] * (1 + noise * rng.normal(size=(len(again), X.shape[1])))
    # A label of the plate that its numbers tell only in part.
    label = (SCORE[:240] + 1.5 * RNG(7).normal(size=240) > 0.9).astype(int)[again]
    return numbered(table_of(values, label, plate=again, **columns))


def one_missing(missing, rows=1200):
    return pl.Series([missing, *RNG(8).normal(size=rows - 1)], dtype=pl.Float64)


def spectra_measured_again():
    """Three spectra of each sample."""
    rng = RNG(10)
    centres = rng.uniform(0, 1, (300, 4))
    again = np.repeat(np.arange(300), 3)
    shapes = np.exp(-((np.linspace(0, 1, 32)[None, None] - centres[..., None]) ** 2) / 0.01)
    amounts = rng.lognormal(size=(300, 4, 1))
    spectra = (shapes * amounts).sum(axis=1)[again] + 0.001 * rng.normal(size=(900, 32))
    label = (rng.normal(size=300) + amounts[:, 0, 0])[again]
    return numbered(pl.DataFrame({"history": spectra.tolist(), "label": label}))


class GapsAreZero(Numbers):
    def window(self, values):
        return np.nan_to_num(values)


def with_gaps(rows, gaps):
    """Items of the history are missing where `gaps` [N, L] says so."""
    history = np.where(gaps, np.nan, np.array(rows["history"].to_list()))
    return rows.with_columns(history=pl.Series(history.tolist())).with_columns(
        pl.col("history").list.eval(pl.element().fill_nan(None))
    )


def gaps_at_random(rows):
    return with_gaps(rows, RNG(14).random((len(rows), 24)) < 0.03)


BUGS = {
    "things were measured five times": (TwoClasses, measured_again, "near for independent rows"),
    "things were measured five times, and one number is missing": (
        WithMissingNumbers, lambda: measured_again(extra=one_missing(None)),
        "near for independent rows"),
    "things were measured five times, and one number is not a number": (
        WithMissingNumbers, lambda: measured_again(extra=one_missing(np.nan)),
        "near for independent rows"),
    "spectra were measured again": (
        Numbers, spectra_measured_again, "near for independent rows"),
    "lists of numbers stand twice": (Numbers, pictures_twice, "same number of copies"),
    "each row stands twice": (TwoClasses, twice, "copies"),
    "the rarer class was repeated": (TwoClasses, oversampled, "copies"),
    "a join multiplied rows": (TwoClasses, doubled_by_a_join, "copies"),
    "windows are split at random": (Numbers, windows, "labels of .* history"),
    "labels stand three steps on": (
        Numbers, lambda: windows(label="in three"), "labels of .* history"),
    "directions of overlapping windows": (
        TwoClasses, lambda: windows(label="rises"), "labels of .* history"),
    "windows that move by some steps": (Numbers, lambda: windows(3), "labels of .* history"),
    "windows with gaps are split at random": (
        GapsAreZero, lambda: gaps_at_random(windows()), "labels of .* history"),
    "lags as columns": (Numbers, lags, "labels of .* lag_11 … lag_00"),
}  # fmt: skip


def examined(task_type, rows, folder, **data):
    return check_split_overlap(subject_of(task_type, rows, folder, **data))


@pytest.mark.parametrize("name", BUGS)
def test_rows_and_labels_in_both_splits_fail(name, tmp_path):
    task_type, rows, measured = BUGS[name]
    result = examined(task_type, rows(), tmp_path)
    assert (result.outcome, result.measured) == ("failed", result.measured)
    assert pl.Series([result.measured]).str.contains(measured)[0], result.measured


# Healthy neighbours


def clicks():
    """Few values in each column, drawn again and again."""
    rng, n = RNG(1), 6000
    user, item = rng.zipf(1.5, n) % 50, rng.zipf(1.5, n) % 40
    columns = {
        "user": user, "item": item, "hour": rng.integers(0, 24, n), "device": rng.integers(0, 3, n),
        "label": (rng.random(n) < 0.1 + 0.2 * (user % 3 == 0)).astype(int),
    }  # fmt: skip
    return numbered(pl.DataFrame(columns))


def stations():
    """A station brings place, height and six more numbers along."""
    rng, n = RNG(2), 4000
    station = rng.integers(0, 25, n)
    known = rng.normal(size=(25, 9)).round(4)[station]
    rain = rng.poisson(1, n)
    columns = {f"known_{k}": known[:, k] for k in range(9)}
    return numbered(
        pl.DataFrame(
            {
                **columns,
                "hour": rng.integers(0, 4, n),
                "rain": rain,
                "label": (rng.random(n) < 0.2 + 0.1 * rain).astype(int),
            }
        )
    )


def stuck():
    """Sensors that report the same for hours."""
    values = RNG(3).normal(size=(2000, 8)).round(4)
    values[700:900] = values[700]
    values[1500:1650] = values[1500]
    label = (values[:, 0] + RNG(4).normal(size=2000) > 0).astype(int)
    label[700:900], label[1500:1650] = 1, 0
    return table_of(values, label)


def weekly_prices():
    """Nine prices and discounts of a hundred weeks, bought at by many customers."""
    rng, n = RNG(13), 1000
    prices = rng.uniform(1.0, 3.0, (100, 9)).round(2)[rng.integers(0, 100, n)]
    loyalty = rng.random(n).round(6)
    label = (rng.random(n) < loyalty).astype(int)
    return numbered(table_of(prices, label, loyal=loyalty))


def similar_customers():
    """Class, sex, age in years, fare by class: many are alike."""
    rng, n = RNG(5), 2500
    rank = rng.integers(1, 4, n)
    female = rng.integers(0, 2, n)
    fare = np.array([60.0, 13.0, 7.9])[rank - 1] + rng.choice([0, 0, 0, 0.35, 1.2], n)
    columns = {
        "rank": rank, "female": female, "fare": fare,
        "age": np.where(rng.random(n) < 0.3, -1, rng.normal(30, 10, n).round()),
        "siblings": rng.poisson(0.4, n),
        "label": (rng.random(n) < 0.2 + 0.5 * female).astype(int),
    }  # fmt: skip
    return numbered(pl.DataFrame(columns))


def draws():
    """Drawn from a thousand that exist, as pictures of few shapes are."""
    kinds = RNG(8).normal(size=(1000, 16)).round(2)
    drawn = RNG(9).integers(0, 1000, 1100)
    labels = {"label": kinds[drawn].sum(axis=1)}
    return numbered(pl.DataFrame({"history": kinds[drawn].tolist(), **labels}))


def by_time(frame):
    start = datetime(2024, 1, 1)
    return frame.with_columns(
        at=pl.Series([start + timedelta(hours=3 * i) for i in range(frame.height)])
    )


def series_of_their_own():
    """A window of each of many series."""
    series = [walk(25, seed) for seed in range(800)]
    return pl.DataFrame(
        {
            "row": range(800),
            "history": [each[:24].tolist() for each in series],
            "label": [float(each[24]) for each in series],
        }
    )


def short_histories():
    """Before the first visit there is nothing."""
    lengths = RNG(13).choice([2, 3, 24], size=(800, 1))
    return with_gaps(series_of_their_own(), np.arange(24) < 24 - lengths)


def clusters():
    """Twelve kinds of things, of which each row is another one."""
    rng = RNG(11)
    centres, kind = 4 * rng.normal(size=(12, 6)), rng.integers(0, 12, 2000)
    values = centres[kind] + rng.lognormal(-1.0, 0.7, (2000, 1)) * rng.normal(size=(2000, 6))
    return table_of(values, (kind % 2 == 0).astype(int))


def on_a_curve():
    """Five numbers that one latent amount determines, nearly."""
    rng = RNG(12)
    amount = rng.uniform(0, 6, 2000)
    waves = np.stack([np.sin(amount * k) + 0.02 * rng.normal(size=2000) for k in range(1, 6)], 1)
    return table_of(waves, (amount + rng.normal(size=2000) > 3).astype(int))


HEALTHY = {
    "things measured again, split by thing": (
        TwoClasses, measured_again, {"group": "plate"}),
    "kinds of things": (TwoClasses, clusters, {}),
    "numbers along a curve": (TwoClasses, on_a_curve, {}),
    "a log of clicks": (TwoClasses, clicks, {}),
    "a station's own numbers": (TwoClasses, stations, {}),
    "sensors that are stuck": (TwoClasses, stuck, {}),
    "customers who are alike": (TwoClasses, similar_customers, {}),
    "pictures of few shapes": (Numbers, draws, {}),
    "rows that all differ": (TwoClasses, lambda: table_of(X, CLASS), {}),
    "windows that were cut in time": (Numbers, lambda: by_time(windows()), {"time": "at"}),
    "windows that do not overlap": (Numbers, lambda: windows(24, of=walk(20000)), {}),
    "series of their own": (Numbers, series_of_their_own, {}),
    "windows with gaps that were cut in time": (
        GapsAreZero, lambda: by_time(gaps_at_random(windows())), {"time": "at"}),
}  # fmt: skip


@pytest.mark.parametrize("name", HEALTHY)
def test_rows_that_repeat_naturally_pass(name, tmp_path):
    task_type, rows, data = HEALTHY[name]
    result = examined(task_type, rows(), tmp_path, **data)
    assert result.outcome != "failed", (result.measured, result.hint)
    assert "raises" not in result.measured


def test_windows_are_not_shared_where_both_are_empty(tmp_path):
    result = examined(GapsAreZero, short_histories(), tmp_path)
    assert (result.outcome, result.measured) == ("passed", result.measured)


def test_columns_that_repeat_together_are_no_windows(tmp_path):
    result = examined(TwoClasses, weekly_prices(), tmp_path)
    assert (result.outcome, result.measured) == ("passed", result.measured)


def test_windows_that_overlap_at_a_split_in_time_pass(tmp_path):
    result = examined(Numbers, by_time(windows()), tmp_path, time="at")
    assert (result.outcome, result.measured) == ("passed", result.measured)


def test_a_column_that_another_decides_is_no_evidence():
    rows = stations()
    names = [name for name in rows.columns if name not in ("row", "label")]
    kept = find_independent_columns(rows, names)
    assert sorted(name for name in kept if "known" not in name) == ["hour", "rain"]
    assert len(kept) == 3
