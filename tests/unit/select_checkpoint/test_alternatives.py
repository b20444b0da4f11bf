"""What early stopping with patience would have shipped."""

import pytest

from components.select_checkpoint.alternatives import EarlyStop, early_stop

CURVES = {
    "ever better": ([1, 2, 3, 4, 5], EarlyStop(4, 4, False)),
    "best, then worse": ([1, 3, 2, 2, 2, 9], EarlyStop(1, 4, True)),
    "a late best within its patience": ([1, 3, 2, 2, 4, 3], EarlyStop(4, 5, False)),
    "patience ends with the curve": ([3, 1, 1, 1], EarlyStop(0, 3, False)),
    "equal is no new best": ([2, 2, 2, 2, 5], EarlyStop(0, 3, True)),
    "one point": ([7], EarlyStop(0, 0, False)),
}


@pytest.mark.parametrize("name", CURVES)
def test_early_stopping_ships_the_best_until_its_patience_ends(name):
    values, expected = CURVES[name]
    assert early_stop(values, patience=3) == expected


def test_more_patience_waits_longer():
    assert early_stop([1, 3, 2, 2, 2, 9], patience=4) == EarlyStop(5, 5, False)
