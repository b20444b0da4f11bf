import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.reports.text import (
    duration,
    escaped,
    is_numeric,
    number,
    printable,
    shortened,
    shown,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (-0.0, "0"),
        (81_000, "81,000"),
        (10**30, f"{10**30:,}"),
        (0.5, "0.5"),
        (1.0, "1"),
        (0.123456, "0.1235"),
        (123.456, "123.5"),
        (-12_345.6, "-12,346"),
        (9_999_999.0, "9,999,999"),
        (1.5e7, "1.5e7"),
        (0.0001, "0.0001"),
        (0.00001, "1e-5"),
        (-1.7e308, "-1.7e308"),
        (5e-324, "4.941e-324"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (True, "yes"),
        (False, "no"),
        (None, "\N{EN DASH}"),
        (np.int64(81_000), "81,000"),
        (np.float32(0.25), "0.25"),
        ("as it is", "as it is"),
    ],
)
def test_values_are_written_for_people(value, text):
    assert shown(value) == text


@given(st.floats(-1e308, 1e308))
def test_number_keeps_four_significant_digits(value):
    read = float(number(value).replace(",", ""))

    assert math.isclose(read, value, rel_tol=5.1e-4, abs_tol=0.0)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (3.21, "3.2 s"),
        (9.99, "10.0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (724, "12 min 4 s"),
        (3599.7, "1 h 0 min"),
        (90_061, "25 h 1 min"),
        (-1, "\N{EN DASH}"),
        (math.nan, "\N{EN DASH}"),
    ],
)
def test_durations_have_two_units(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("tab\tand\nline", "tab\tand\nline"),
        ("dos\r\nline", "dos\nline"),
        ("nul\x00", r"nul\x00"),
        ("bell\x07 escape\x1b", r"bell\x07 escape\x1b"),
        ("next line\x85", r"next line\x85"),
        ("over\u202eride", r"over\u202eride"),
        ("half\ud800", r"half\ud800"),
        ("naïve 乗客 🙂", "naïve 乗客 🙂"),
    ],
)
def test_what_cannot_be_shown_is_spelled_out(text, spelled):
    assert printable(text) == spelled


@given(st.text())
def test_escaped_text_can_always_be_stored_and_never_opens_a_tag(text):
    safe = escaped(text)

    assert not set("<>\"'") & set(safe)
    safe.encode()


@given(st.text(), st.integers(3, 40))
def test_shortened_text_keeps_both_ends(text, limit):
    cut = shortened(text, limit)

    assert len(cut) <= max(limit, 0)
    if len(text) <= limit:
        assert cut == text
    else:
        head, _, tail = cut.rpartition("…")
        assert text.startswith(head)
        assert text.endswith(tail)


@pytest.mark.parametrize(
    "value", [1, 2.5, "81,000", "12.3 %", "-4", ".5", "3.2 GiB", "1e-5", "7s", np.float32(1)]
)
def test_numbers_with_or_without_unit_are_numeric(value):
    assert is_numeric(value)


@pytest.mark.parametrize(
    "value", [True, "", "v3", "2026-01-01", "12 of 30", "10.0.0.1", "UA", "1,2 3"]
)
def test_other_text_is_not_numeric(value):
    assert not is_numeric(value)
