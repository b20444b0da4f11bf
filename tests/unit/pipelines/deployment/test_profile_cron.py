"""A schedule is understood before it is deployed, or the error names the field that is wrong."""

import pytest

from perennial.deployment.profile import check_cron, with_seconds


@pytest.mark.parametrize(
    "text",
    [
        "0 3 * * *",
        "*/15 * * * *",
        "0 9-17 * * mon-fri",
        "30 2 1,15 jan,jul *",
        "0 0/2 * * 0",
        "0 3 31 * *",
        "0 3 29 2 *",
        "0 3 31 */2 *",
        "0 3 28-31 2 *",
        "0 3 31 2,3 *",
        "0 3 31 2-4 *",
        "0 3 31 2/1 *",
        "0 3 31 2 mon",
    ],
)
def test_five_good_fields_are_taken(text):
    assert check_cron(text) == text


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0 0 3 * * *", "6 fields, not five"),
        ("hourly", "1 fields, not five"),
        ("60 3 * * *", "'60' is not valid as minute; it lies between 0 and 59"),
        ("0 3 * * 7", "'7' is not valid as day of the week"),
        ("0 3 0 * *", "'0' is not valid as day of the month"),
        ("0 3 * foo *", "'foo' is not valid as month"),
        ("0 17-9 * * *", "must not run backwards"),
        ("*/90 * * * *", "steps of a minute"),
        ("0 3 31 2 *", "never comes: none of its months has a day 31"),
        ("0 3 30 feb *", "never comes: none of its months has a day 30"),
        ("0 3 31 4,6-6,9-9 *", "never comes: none of its months has a day 31"),
        ("¹ 3 * * *", "is not valid as minute"),
        ("0 3 * * *;", "is not valid as day of the week"),
    ],
)
def test_a_bad_field_is_named(text, complaint):
    with pytest.raises(ValueError, match=complaint.replace("*", r"\*")):
        check_cron(text)


def test_the_server_gets_six_fields_since_it_reads_five_as_something_else():
    assert with_seconds("0 3 * * *") == "0 0 3 * * *"
