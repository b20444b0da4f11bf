"""Dates as people write them become times where there is one reading; texts lose stray spaces."""

import datetime as dt
import tomllib

import polars as pl
import pytest

from perennial.cli import main
from perennial.first_steps.written_dates import parse_written_dates, parse_written_values

DAYS = [dt.date(1999, 3, 1) + dt.timedelta(days=row) for row in range(400)]


def parse(*texts):
    table, notes = parse_written_dates(pl.LazyFrame({"when": texts}))
    return table.collect()["when"], " ".join(notes)


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (("1/31/2025", "2/1/2025"), dt.date(2025, 1, 31)),
        (("31/1/2025", "1/2/2025"), dt.date(2025, 1, 31)),
        (("31.1.25", "1.2.25"), dt.date(2025, 1, 31)),
        (("1.2.2025", "3.4.2025"), dt.date(2025, 2, 1)),
        (("14/08/93", "14/08/2002"), dt.date(1993, 8, 14)),
        (("02-Jun-06", None), dt.date(2006, 6, 2)),
        (("January 31st, 2025", "Feb 1, 2025"), dt.date(2025, 1, 31)),
        (("1/31/2025 4:05 PM", "2/1/2025 12:00 AM"), dt.datetime(2025, 1, 31, 16, 5)),
        (("2025-1-31T04:05:06", "2025-02-01 00:00"), dt.datetime(2025, 1, 31, 4, 5, 6)),
    ],
)
def test_dates_with_one_reading_are_times(written, read):
    times, note = parse(*written)
    assert times[0] == read
    assert times.null_count() == written.count(None)
    assert f"dates: 'when', written as {written[0]!r}" in note


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (("1/2/2025", "3/4/2025"), "can be read in two ways"),
        (("7/21/62", "8/22/64"), "years of two digits"),
        (("1/31/2025",) * 20 + ("unknown",), "1 of 21 values are not dates"),
        (("2/30/2025",) * 2 + ("1/31/2025",) * 30, "2 of 32 values are not dates"),
        (("1.2.3.4", "2.2.2.2"), ""),
        (("2100 - 2850", "19-Dec"), ""),
        (("00123", "00456"), ""),
    ],
)
def test_texts_that_are_not_surely_dates_stay_texts(written, said):
    times, note = parse(*written)
    assert times.to_list() == list(written)
    assert said in note


def test_a_time_of_day_is_a_number_of_hours():
    table, notes = parse_written_dates(pl.LazyFrame({"at": [dt.time(18, 30), None]}))
    assert table.collect()["at"].to_list() == [18.5, None]
    assert notes == ["numbers: 'at', a time of day, in hours"]


@pytest.mark.parametrize("pattern", ["%Y-%m", "%B-%Y", "%b %Y"])
def test_months_begin_with_their_first_day(pattern):
    table, _ = parse_written_dates(pl.LazyFrame({"m": [day.strftime(pattern) for day in DAYS]}))
    assert table.collect()["m"].to_list() == [day.replace(day=1) for day in DAYS]


@pytest.mark.parametrize("text", ["1.2.2025 or later", "2025", "12025-13", "model 3/2025/1", ""])
def test_other_texts_stay_as_they_are(text):
    given = pl.LazyFrame({"text": [text] * 9, "number": range(9)})
    table, notes = parse_written_dates(given)
    assert table.collect().equals(given.collect())
    assert not notes


def test_a_series_with_american_dates_is_split_by_time(tmp_path):
    days = [f"{day.month}/{day.day}/{day.year}" for day in DAYS]
    rows = pl.DataFrame({"day": days, "low": [row % 9 for row in range(400)], "high": range(400)})
    rows.write_csv(tmp_path / "w.csv")
    assert main(["init", "table", str(tmp_path / "w.csv"), "--label", "high", "--out", str(tmp_path)]) == 0  # fmt: skip
    assert tomllib.loads((tmp_path / "contract.toml").read_text())["data"]["time"] == "day"


def test_texts_that_differ_by_spaces_around_them_are_one():
    """Spaces around every value stay: rows that are predicted later have them, too."""
    texts = {"sick": ["yes", "yes\t", None, " no"], "job": [" clerk", " clerk", " cook", None]}
    table, notes = parse_written_values(pl.LazyFrame(texts))
    assert table.collect()["sick"].to_list() == ["yes", "yes", None, "no"]
    assert table.collect()["job"].to_list() == texts["job"]
    assert notes == ["texts: 'sick', spaces around values removed: some differ by them"]
