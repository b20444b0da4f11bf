from datetime import UTC, datetime, timedelta

import pytest

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import PerennialError
from perennial.contracts.monitoring import Reference
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import CategoricalSketch
from perennial.detect_drift.windows import (
    OTHER,
    align_categories,
    choose_blocks,
    newest_streak,
)


@pytest.fixture
def weeks(block):
    return [block(i, {"x": [1.0, 2.0], "t": ["a", "b"]}, rows=1000) for i in range(16)]


def until(time_max, dtype="Datetime(time_unit='us', time_zone=None)"):
    return Snapshot(
        data=DataSection(uri="d", label="y", time="when"), split=SplitSection(), files=(),
        columns={"when": dtype}, rows=0, split_rows={}, time_max=time_max,
    )  # fmt: skip


def reference(blocks, time_max):
    return Reference(
        snapshot_digest="", time_max=time_max, rows=0, blocks=tuple(blocks), performance=()
    )


def test_windows_are_the_complete_blocks_after_the_champions_newest_row(weeks):
    # The champion's snapshot ends in the middle of week 10, the newest one in that of week 14.
    known = reference(weeks[:11], weeks[10].start + timedelta(days=3))
    chosen = choose_blocks(known, weeks[:15], until(weeks[14].start + timedelta(days=2)))
    assert chosen.reference == tuple(weeks[:10])
    assert chosen.windows == tuple(weeks[11:14])
    assert any("incomplete" in note for note in chosen.notes)


def test_a_block_that_begins_with_the_champions_newest_row_is_no_window(weeks):
    # Dates without a time: the newest day's rows all lie at the beginning of its block.
    chosen = choose_blocks(
        reference(weeks[:12], weeks[11].start), weeks[:14], until(weeks[13].start)
    )
    assert chosen.reference == tuple(weeks[:11])
    assert chosen.windows == (weeks[12],)


def test_a_block_that_is_nearly_over_counts(weeks):
    almost = weeks[13].end - timedelta(hours=10)
    chosen = choose_blocks(reference(weeks[:12], weeks[11].end), weeks[:14], until(almost))
    assert chosen.windows == tuple(weeks[12:14])
    assert chosen.notes == ()


@pytest.mark.parametrize("dtype", ["Date", "Datetime(time_unit='us', time_zone=None)"])
def test_a_block_whose_days_are_all_there_is_complete(weeks, dtype):
    last_day = timedelta(days=6)
    chosen = choose_blocks(
        reference(weeks[:12], weeks[11].start + last_day),
        weeks[:14],
        until(weeks[13].start + last_day, dtype),
    )
    assert (chosen.reference, chosen.windows) == (tuple(weeks[:12]), tuple(weeks[12:14]))
    assert chosen.notes == ()
    earlier = until(weeks[13].start + last_day - timedelta(days=1), dtype)
    chosen = choose_blocks(reference(weeks[:12], weeks[11].start + last_day), weeks[:14], earlier)
    assert chosen.windows == (weeks[12],)


def test_a_block_of_one_date_may_not_be_over(weeks):
    days = [week.model_copy(update={"end": week.start + timedelta(days=1)}) for week in weeks]
    known = reference(days[:12], days[11].start + timedelta(days=1))
    assert choose_blocks(known, days[:14], until(days[13].start, "Date")).windows == (days[12],)


def test_thin_blocks_are_left_out_and_said(weeks):
    thin = weeks[13].model_copy(update={"rows": 499})
    first = weeks[0].model_copy(update={"rows": 12})
    known = reference([first, *weeks[1:12]], weeks[11].end)
    chosen = choose_blocks(known, [first, *weeks[1:13], thin, weeks[14]], until(weeks[14].end))
    assert first not in chosen.reference
    assert chosen.windows == (weeks[12], weeks[14])
    assert any("1 of 3 new blocks" in note for note in chosen.notes)


def test_nothing_new_is_reported_first(weeks):
    chosen = choose_blocks(reference(weeks[:12], weeks[11].end), weeks[:12], until(weeks[11].end))
    assert chosen.windows == ()
    assert chosen.notes[0].startswith("no complete block of new data since")


@pytest.mark.parametrize("known_blocks", [0, 1], ids=["none", "one incomplete"])
def test_without_a_complete_reference_block_there_are_no_windows(weeks, known_blocks):
    time_max = weeks[0].start + timedelta(days=1)
    chosen = choose_blocks(reference(weeks[:known_blocks], time_max), weeks, until(weeks[-1].end))
    assert chosen.windows == ()
    assert "has no complete block" in chosen.notes[0]


def test_a_time_column_without_times_has_nothing_to_compare(weeks):
    chosen = choose_blocks(reference(weeks, weeks[-1].end), [], until(None))
    assert (chosen.reference, chosen.windows) == ((), ())
    assert "the time column has no values" in chosen.notes[0]


def test_a_champion_without_a_time_column_cannot_judge_blocks_of_time(weeks):
    chosen = choose_blocks(reference([], None), weeks, until(weeks[-1].end))
    assert (chosen.reference, chosen.windows) == ((), ())
    assert "trained without a time column" in chosen.notes[0]


def test_blocks_of_another_length_are_an_error_that_names_the_next_action(weeks):
    days = [week.model_copy(update={"end": week.start + timedelta(days=1)}) for week in weeks[12:]]
    with pytest.raises(PerennialError, match=r"blocks of 1 and 7 days[\s\S]*block_days"):
        choose_blocks(reference(weeks[:12], weeks[11].end), days, until(weeks[-1].end))


def test_columns_that_came_went_or_changed_their_kind_are_named(weeks, block):
    changed = block(12, {"x": ["1", "2"], "y": [1.0, 2.0]}, rows=1000)
    chosen = choose_blocks(
        reference(weeks[:12], weeks[11].end), [*weeks[:12], changed], until(changed.end)
    )
    output = " ".join(chosen.notes)
    assert "t (categorical), x (numeric)" in output
    assert "x (categorical), y (numeric)" in output


@pytest.mark.parametrize(
    ("alarms", "streak"),
    [([], 0), ([True], 1), ([True, True, False], 0), ([False, True, True], 2), ([True] * 4, 4)],
)
def test_only_a_row_that_reaches_the_newest_window_counts(alarms, streak):
    assert newest_streak(alarms) == streak


def test_moments_are_compared_by_the_clock_of_the_time_column(weeks):
    # Blocks are local days; in Tokyo nine hours of 14 January have passed when it begins in UTC.
    days = [
        week.model_copy(
            update={
                "start": weeks[0].start + timedelta(days=index),
                "end": weeks[0].start + timedelta(days=index + 1),
            }
        )
        for index, week in enumerate(weeks)
    ]
    tokyo = "Datetime(time_unit='us', time_zone='Asia/Tokyo')"
    nine = datetime(2024, 1, 14, tzinfo=UTC)
    newest = until(datetime(2024, 1, 17, 14, 30, tzinfo=UTC), tokyo)
    chosen = choose_blocks(reference(days[:11], nine), days[:14], newest)
    assert chosen.reference == tuple(days[:10])
    assert [window.start.day for window in chosen.windows] == [15, 16, 17]


def test_values_that_a_side_may_count_among_others_are_others_on_both_sides(block):
    def labelled(index, counts):
        sketch = CategoricalSketch(counts=counts, nulls=0)
        return block(index, {"x": [1.0]}, rows=10).model_copy(update={"categorical": {"t": sketch}})

    old, new = {"a": 5, "b": 3, OTHER: 2}, {"a": 5, "c": 3, OTHER: 2}
    (before,), (now,) = align_categories([labelled(0, old)], [labelled(1, new)])
    assert before.categorical["t"].counts == now.categorical["t"].counts == {"a": 5, OTHER: 5}
    # A complete list names every value: what it lacks is new.
    (before,), (now,) = align_categories([labelled(0, {"a": 5})], [labelled(1, {"a": 4, "c": 1})])
    assert before.categorical["t"].counts == {"a": 5}
    assert now.categorical["t"].counts == {"a": 4, "c": 1}
