from datetime import timedelta

import pytest

from components.contracts.errors import PerennialError
from components.contracts.monitoring import Reference
from components.detect_drift.windows import choose_blocks, newest_streak


@pytest.fixture
def weeks(block):
    return [block(i, {"x": [1.0, 2.0], "t": ["a", "b"]}, rows=1000) for i in range(16)]


def reference(blocks, time_max):
    return Reference(
        snapshot_digest="", time_max=time_max, rows=0, blocks=tuple(blocks), performance=()
    )


def test_windows_are_the_complete_blocks_after_the_champions_newest_row(weeks):
    # The champion's snapshot ends in the middle of week 10, the newest one in that of week 14.
    known = reference(weeks[:11], weeks[10].start + timedelta(days=3))
    chosen = choose_blocks(known, weeks[:15], weeks[14].start + timedelta(days=2))
    assert chosen.reference == tuple(weeks[:10])
    assert chosen.windows == tuple(weeks[11:14])
    assert any("not complete" in note for note in chosen.notes)


def test_a_block_that_is_nearly_over_counts(weeks):
    almost = weeks[13].end - timedelta(hours=10)
    chosen = choose_blocks(reference(weeks[:12], weeks[11].end), weeks[:14], almost)
    assert chosen.windows == tuple(weeks[12:14])
    assert chosen.notes == ()


def test_thin_blocks_are_left_out_and_said(weeks):
    thin = weeks[13].model_copy(update={"rows": 499})
    first = weeks[0].model_copy(update={"rows": 12})
    known = reference([first, *weeks[1:12]], weeks[11].end)
    chosen = choose_blocks(known, [first, *weeks[1:13], thin, weeks[14]], weeks[14].end)
    assert first not in chosen.reference
    assert chosen.windows == (weeks[12], weeks[14])
    assert any("1 of 3 new blocks" in note for note in chosen.notes)


def test_nothing_new_is_said_first(weeks):
    chosen = choose_blocks(reference(weeks[:12], weeks[11].end), weeks[:12], weeks[11].end)
    assert chosen.windows == ()
    assert chosen.notes[0].startswith("no complete block of new data since")


@pytest.mark.parametrize("known_blocks", [0, 1], ids=["none", "one incomplete"])
def test_without_a_complete_reference_block_there_are_no_windows(weeks, known_blocks):
    time_max = weeks[0].start + timedelta(days=1)
    chosen = choose_blocks(reference(weeks[:known_blocks], time_max), weeks, weeks[-1].end)
    assert chosen.windows == ()
    assert "holds no complete block" in chosen.notes[0]


def test_data_without_a_time_has_nothing_to_compare():
    chosen = choose_blocks(reference([], None), [], None)
    assert (chosen.reference, chosen.windows) == ((), ())
    assert "no time column" in chosen.notes[0]


def test_blocks_of_another_length_are_an_error_that_says_what_to_do(weeks):
    days = [week.model_copy(update={"end": week.start + timedelta(days=1)}) for week in weeks[12:]]
    with pytest.raises(PerennialError, match=r"blocks of 1 and 7 days[\s\S]*block_days"):
        choose_blocks(reference(weeks[:12], weeks[11].end), days, weeks[-1].end)


def test_columns_that_came_went_or_changed_their_kind_are_named(weeks, block):
    changed = block(12, {"x": ["1", "2"], "y": [1.0, 2.0]}, rows=1000)
    chosen = choose_blocks(
        reference(weeks[:12], weeks[11].end), [*weeks[:12], changed], changed.end
    )
    said = " ".join(chosen.notes)
    assert "t (categorical), x (numeric)" in said
    assert "x (categorical), y (numeric)" in said


@pytest.mark.parametrize(
    ("alarms", "streak"),
    [([], 0), ([True], 1), ([True, True, False], 0), ([False, True, True], 2), ([True] * 4, 4)],
)
def test_only_a_row_that_reaches_the_newest_window_counts(alarms, streak):
    assert newest_streak(alarms) == streak
