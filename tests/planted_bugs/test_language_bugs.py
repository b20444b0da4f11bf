"""Planted bugs of language models: each must be caught by the check that is meant for it."""

import pytest

from language_bugs import BUGS
from planted import require_caught

MISSES = (
    "attention scores are not divided by the root of the head's width: it trains, only worse",
    "an encoder that answers once for each text has no positions: order is probed token by token",
)
"""What no check sees, and why."""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)
