"""Verdicts from counts are those of Great Expectations on pandas: healthy and corrupt flights."""

import re
from pathlib import Path

import pytest

from flight_suites import CORRUPTIONS, ON_FACTS, ON_ROWS, SUITE
from judged_suites import from_counts, stock
from perennial.validate_data.suites.document import Suite

FAST = (
    "healthy", "an infinite temperature", "distances as texts", "origin and destination swapped",
    "no rows", "a column is missing",
)  # fmt: skip
TABLE = Path(__file__).parents[4] / "docs" / "expectations.md"
FACTS = Suite(name="facts", expectations=ON_FACTS)
ALL = [pytest.param(name, marks=() if name in FAST else pytest.mark.full) for name in CORRUPTIONS]


def rounded(text):
    """The numbers of a text to 12 digits: pandas rounds sums along the way, counts do not."""
    return re.sub(r"\d+\.\d{9,}", lambda found: f"{float(found[0]):.9g}", text)


@pytest.mark.parametrize("name", ALL)
def test_verdicts_and_observations_are_those_of_great_expectations(name, january, tmp_path):
    rows = CORRUPTIONS[name](january.gather_every(9 if name in FAST else 3))
    rows.write_parquet(tmp_path / "rows.parquet")
    suite = FACTS if name in FAST else SUITE
    expected = stock(suite, tmp_path / "rows.parquet")
    judged = from_counts(suite, rows)
    found = [(each.outcome, each.observed) for each in judged]
    for expectation, ours, theirs in zip(suite.expectations, found, expected, strict=True):
        assert (ours[0], rounded(ours[1])) == (theirs[0], rounded(theirs[1])), expectation


def test_healthy_flights_meet_the_suite(january):
    assert {each.outcome for each in from_counts(FACTS, january)} == {"passed"}


@pytest.mark.full
def test_each_corruption_but_other_labels_and_letters_is_found(january):
    quiet = {
        name
        for name, corrupt in CORRUPTIONS.items()
        if all(each.outcome == "passed" for each in from_counts(FACTS, corrupt(january)))
    }
    # Great Expectations finds a column whatever the case of its name.
    assert quiet == {"healthy", "labels shuffled", "labels as booleans", "a column is renamed"}


def test_the_documentation_lists_what_is_judged_from_facts():
    listed = re.findall(r"^\| `(\w+)` \| (\w+)", TABLE.read_text(), re.MULTILINE)
    from_facts = {each.type for each in ON_FACTS}
    assert {name for name, basis in listed if basis == "facts"} == from_facts
    on_rows = {each.type for each in ON_ROWS} - from_facts
    assert {name for name, basis in listed if basis == "rows"} == on_rows


def test_suite_is_large_enough_to_prove_something():
    assert len(ON_FACTS) >= 40
    assert len(CORRUPTIONS) > 30
    assert len({each.type for each in (*ON_FACTS, *ON_ROWS)}) >= 35
