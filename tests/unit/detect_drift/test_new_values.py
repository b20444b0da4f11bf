"""A value that the reference never had has a test of its own, unless new values are ordinary."""

import numpy as np
import pytest

from perennial.contracts.triggers import TriggersSection
from perennial.detect_drift.reference import measure_windows

TRIGGERS = TriggersSection()


def judged(block, weeks):
    blocks = [block(index, {"city": list(values)}) for index, values in enumerate(weeks)]
    windows = measure_windows(blocks[:12], blocks[12:], TRIGGERS).windows
    return [
        [c for c in window.columns if c.statistic == "new_values" and c.alarmed]
        for window in windows
    ]


def cities(seed, share_of_new=0.0, rows=500):
    random = np.random.default_rng(seed)
    usual = random.choice(list("abcd"), size=rows, p=[0.4, 0.3, 0.2, 0.1])
    return np.where(random.random(rows) < share_of_new, "new", usual)


def test_six_percent_of_rows_in_a_new_category_alarm(block):
    weeks = [cities(week) for week in range(12)] + [cities(20, 0.06), cities(21, 0.06)]
    for alarmed in judged(block, weeks):
        (city,) = alarmed
        assert city.effect == pytest.approx(0.06, abs=0.03)


def test_a_few_rows_of_a_new_category_do_not(block):
    weeks = [cities(week) for week in range(12)] + [cities(20, 0.01), cities(21)]
    assert judged(block, weeks) == [[], []]


def test_names_that_are_new_in_every_block_are_ordinary(block):
    weeks = [[f"user-{week}-{row % 40}" for row in range(200)] for week in range(14)]
    assert judged(block, weeks) == [[], []]


def test_values_beyond_the_named_ones_are_not_taken_for_new(block):
    weeks = [[*cities(week), *["(other)"] * 50] for week in range(12)]
    assert judged(block, [*weeks, cities(20, 0.1), cities(21, 0.1)]) == [[], []]
