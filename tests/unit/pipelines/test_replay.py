"""Partitions arrive one by one, each is handled once, and an interrupted replay goes on."""

import pytest

from perennial.contract import Contract
from perennial.contracts.data import DataSection, ModelSection
from perennial.contracts.errors import PerennialError
from perennial.replay import Replay


@pytest.fixture
def contract(tmp_path):
    for month in range(1, 6):
        path = tmp_path / "data" / f"month={month}" / "part.parquet"
        path.parent.mkdir(parents=True)
        path.write_text(f"month {month}")
    return Contract(
        model=ModelSection(name="m", task="a:B"),
        data=DataSection(uri=str(tmp_path / "data"), label="y", ids=("i",)),
    )


def arrived(replay):
    return sorted(path.parent.name for path in (replay._folder / "data").rglob("*.parquet"))


def test_first_partitions_are_trained_on_and_later_ones_monitored(contract, tmp_path):
    replay = Replay(contract, tmp_path / "replay")
    seen = []
    for arrival in replay.arrivals(3, None):
        seen.append((arrival.number, arrival.pipeline, len(arrival.keys)))
        assert len(arrived(replay)) == arrival.number
    assert seen == [
        (3, "continuous_training", 3),
        (4, "drift_monitoring", 1),
        (5, "drift_monitoring", 1),
    ]
    assert replay.contract.data.uri == str(tmp_path / "replay" / "data")


def test_months_arrive_by_their_numbers_not_by_their_letters(contract, tmp_path):
    for month in (10, 11):
        path = tmp_path / "data" / f"month={month}" / "part.parquet"
        path.parent.mkdir()
        path.write_text(f"month {month}")
    keys = [each.keys for each in Replay(contract, tmp_path / "replay").arrivals(2, None)]
    months = [key.partition("/")[0].removeprefix("month=") for arrival in keys for key in arrival]
    assert months == ["1", "2", "3", "4", "5", "10", "11"]


def test_replay_stops_at_the_given_month_and_continues_later(contract, tmp_path):
    first = [a.number for a in Replay(contract, tmp_path / "replay").arrivals(2, 3)]
    later = [a.number for a in Replay(contract, tmp_path / "replay").arrivals(2, None)]
    assert (first, later) == ([2, 3], [4, 5])


def test_arrival_that_was_not_handled_comes_again(contract, tmp_path):
    arrivals = Replay(contract, tmp_path / "replay").arrivals(2, None)
    next(arrivals)
    assert next(arrivals).number == 3
    arrivals.close()  # killed while the third was being handled
    again = Replay(contract, tmp_path / "replay").arrivals(2, None)
    assert next(again).number == 3


@pytest.mark.parametrize("change", ["rewritten", "removed", "added before"])
def test_replay_does_not_go_on_with_copies_of_other_data(contract, tmp_path, change):
    list(Replay(contract, tmp_path / "replay").arrivals(2, 3))
    path = tmp_path / "data" / "month=2" / "part.parquet"
    if change == "rewritten":
        path.write_text("month B")
    elif change == "removed":
        path.unlink()
        path.parent.rmdir()
    else:
        path.with_name("more.parquet").write_text("month 2, more")
    with pytest.raises(PerennialError, match="not the one that this replay began with") as caught:
        next(Replay(contract, tmp_path / "replay").arrivals(2, None))
    assert "month=2" in str(caught.value)


def test_replay_goes_on_where_files_were_copied_and_later_ones_changed(contract, tmp_path):
    list(Replay(contract, tmp_path / "replay").arrivals(2, 3))
    for month in (1, 2, 3):  # a fresh clone: other times, equal bytes
        path = tmp_path / "data" / f"month={month}" / "part.parquet"
        content = path.read_bytes()
        path.unlink()
        path.write_bytes(content)
    (tmp_path / "data" / "month=5" / "part.parquet").write_text("month five")
    again = Replay(contract, tmp_path / "replay")
    assert [each.number for each in again.arrivals(2, None)] == [4, 5]


def test_too_few_partitions_is_reported(contract, tmp_path):
    with pytest.raises(PerennialError, match="cannot start with 6"):
        next(Replay(contract, tmp_path / "replay").arrivals(6, None))


def test_replay_never_goes_beyond_the_data(contract, tmp_path):
    numbers = [a.number for a in Replay(contract, tmp_path / "replay").arrivals(4, 9)]
    assert numbers == [4, 5]


@pytest.mark.parametrize(("first", "until"), [(0, None), (3, 2), (3, 0)])
def test_impossible_bounds_are_refused(contract, tmp_path, first, until):
    with pytest.raises(PerennialError, match="cannot start"):
        next(Replay(contract, tmp_path / "replay").arrivals(first, until))
