"""Rows that a model was trained on are known again, whatever types their columns have since.

Identifiers become fractions as soon as one is missing, and a dataset is written anew in another
time zone: rows then fall into other splits, and nothing else tells it.
"""

import polars as pl
import pytest

from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.data.dataset import Dataset, count_seen_rows
from perennial.snapshot_data.manifest import take_snapshot
from small_models import stream

UTC = pl.col("time").dt.replace_time_zone("UTC")
CHATHAM = UTC.dt.convert_time_zone("Pacific/Chatham")
TIMES = {"naive": pl.col("time"), "utc": UTC, "chatham": CHATHAM, "day": pl.col("time").dt.date()}
IDS = {
    "integer": pl.col("row"),
    "fraction": pl.col("row").cast(pl.Float64),
    "text": pl.col("row").cast(pl.String),
}


@pytest.fixture
def snapshot_of(tmp_path):
    rows = stream(days=60)

    def take(name, column, **data):
        folder = tmp_path / name
        folder.mkdir()
        rows.with_columns(column, order=pl.int_range(pl.len())).write_parquet(folder / "a.parquet")
        section = DataSection(uri=str(folder), label="label", meta=("order", "region"), **data)
        return take_snapshot(section, SplitSection())

    return take


def seen_before(now, then):
    """Test rows of today that were trained or selected on then, by the order of the file."""
    parts = [Dataset(then).scan(part) for part in (Split.TRAIN, Split.VALIDATION)]
    known = pl.concat([part.select("order") for part in parts]).collect()["order"]
    return Dataset(now).scan(Split.TEST).select("order").collect()["order"].is_in(known.implode())


@pytest.mark.parametrize(("then", "now"), [("integer", "fraction"), ("fraction", "integer"),
                                           ("integer", "text"), ("text", "integer")])  # fmt: skip
@pytest.mark.parametrize("role", ["ids", "group"])
def test_identifiers_of_another_type_move_rows_and_are_known_again(snapshot_of, role, then, now):
    data = {"ids": ("row",)} if role == "ids" else {"group": "row"}
    before, after = (snapshot_of(name, IDS[name], **data) for name in (then, now))
    moved = int(seen_before(after, before).sum())
    assert (moved > 0) == ("fraction" in (then, now))
    assert not before.splits_as(after)
    assert count_seen_rows(Dataset(after), before) == moved


@pytest.mark.parametrize(
    ("then", "now"),
    [("utc", "chatham"), ("chatham", "utc"), ("naive", "chatham"), ("chatham", "naive"),
     ("naive", "utc"), ("day", "utc"), ("utc", "day")],
)  # fmt: skip
def test_times_of_another_zone_move_days_and_are_known_again(snapshot_of, then, now):
    before, after = (
        snapshot_of(name, TIMES[name], time="time", ids=("row",)) for name in (then, now)
    )
    moved = int(seen_before(after, before).sum())
    assert (moved > 0) == ("chatham" in (then, now))
    assert not before.splits_as(after)
    assert count_seen_rows(Dataset(after), before) == moved


def test_equal_types_split_alike_and_types_that_nobody_recorded_count_as_equal(snapshot_of):
    before, after = (snapshot_of(name, IDS["integer"], time="time", ids=("row",)) for name in "ab")
    assert before.splits_as(after)
    assert before.model_copy(update={"columns": {"label": "Int64"}}).splits_as(after)
    # Under a split by time the type of the identifiers moves no row.
    other = snapshot_of("c", IDS["text"], time="time", ids=("row",))
    assert before.splits_as(other)
