"""Dates as people write them: `perennial init` splits by them, and asks where they are unclear."""

import datetime as dt
import tomllib

import polars as pl
import pytest

from perennial.cli import main
from perennial.first_steps.written_dates import parse_written_dates

DAYS = [dt.datetime(1999, 3, 1) + dt.timedelta(days=row) for row in range(400)]


@pytest.mark.parametrize(
    "pattern",
    ["%m/%d/%Y", "%d/%m/%Y", "%d.%m.%Y", "%Y/%m/%d", "%d-%b-%Y", "%B %d, %Y", "%m/%d/%Y %H:%M",
     "%m/%d/%Y %I:%M:%S %p"],
)  # fmt: skip
@pytest.mark.parametrize("short", [False, True], ids=["padded", "short"])
def test_days_become_times(pattern, short):
    written = [day.strftime(pattern.replace("%d", "%-d") if short else pattern) for day in DAYS]
    table, notes = parse_written_dates(pl.LazyFrame({"day": [*written, None]}))
    assert table.collect()["day"].to_list() == [*DAYS, None]
    assert notes[0].startswith("times: 'day', written ")


@pytest.mark.parametrize("pattern", ["%Y-%m", "%B-%Y", "%b %Y"])
def test_months_begin_with_their_first_day(pattern):
    table, _ = parse_written_dates(pl.LazyFrame({"m": [day.strftime(pattern) for day in DAYS]}))
    assert table.collect()["m"].to_list() == [day.replace(day=1) for day in DAYS]


def test_dates_with_two_readings_stay_texts_and_are_named():
    table, notes = parse_written_dates(pl.LazyFrame({"day": ["1/2/2025", "3/4/2025"]}))
    assert table.collect()["day"].to_list() == ["1/2/2025", "3/4/2025"]
    assert "month/day/year and as day/month/year" in notes[0]


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
