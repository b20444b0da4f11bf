"""Columns with the same mistake share one remedy, with the line to paste for all of them."""

from perennial.contracts.validation import Expectation
from perennial.validate_data.claims import _HINTS
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.report import remedies

LEAK = _HINTS["leakage_auc"]


def unmet(subject, hint):
    return Expectation(
        name="expect", subject=subject, severity="critical", outcome="failed", expected="",
        observed="", hint=hint,
    )  # fmt: skip


def test_several_columns_that_tell_the_label_get_one_line_for_each_way_out(snapshot_of, healthy):
    snapshot = snapshot_of(healthy)
    section = ExpectationsSection(leakage_allow=("city",))
    found = [unmet("amount", LEAK), unmet("visits", LEAK), unmet("amount", LEAK)]
    ((subjects, text),) = remedies(found, snapshot, section)
    assert subjects == "amount, visits"
    assert text.splitlines()[-2:] == [
        'meta = ["user", "amount", "visits"]  # in [data]',
        'leakage_allow = ["city", "amount", "visits"]  # in [expectations]',
    ]


def test_what_is_no_column_is_not_proposed_as_meta(snapshot_of, healthy):
    ((_, text),) = remedies(
        [unmet("photo.width", LEAK)], snapshot_of(healthy), ExpectationsSection()
    )
    assert "meta = " not in text
    assert text.endswith('leakage_allow = ["photo.width"]  # in [expectations]')


def test_a_wrong_name_in_the_list_is_not_proposed_again(snapshot_of, healthy):
    hint = "leakage_allow names no such feature: correct it or remove it"
    section = ExpectationsSection(leakage_allow=("amuont",))
    ((_, text),) = remedies([unmet("amuont", hint)], snapshot_of(healthy), section)
    assert text == hint
