"""Planted bugs of language models: each must be caught by the check that is meant for it."""

import re

import pytest

from language_bugs import BUGS
from workshop import results_of

MISSES = (
    "attention scores are not divided by the root of the head's width: it trains, only worse",
    "an encoder that answers once for each text has no positions: order is probed token by token",
)
"""What no check sees, and why."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    result = results_of(bug.subject(workshop), bug.check)[bug.check]
    assert (result.outcome, result.measured) == (bug.outcome, result.measured)
    assert re.search(bug.hint, result.hint), result.hint
    assert result.measured
    assert result.expected
    assert result.source
