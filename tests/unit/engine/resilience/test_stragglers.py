import pytest

from perennial.contracts.training import CollectiveWaits
from perennial.engine.resilience.stragglers import describe, slow_rank


@pytest.mark.parametrize(
    ("waits", "step", "expected"),
    [
        # The measurements of three ranks, one delayed by 150 ms in data, forward or backward pass.
        ([0.150, 0.0034, 0.154], 0.158, 1),
        ([0.202, 0.050, 0.199], 0.21, 1),
        ([0.003, 0.153], 0.16, 0),
        # Nobody stands out: equal, two groups, little against the step.
        ([0.010, 0.011, 0.009], 0.05, None),
        ([0.100, 0.002, 0.002], 0.15, None),
        ([0.010, 0.0, 0.012], 0.50, None),
    ],
)
def test_the_rank_that_waits_least_is_the_slow_one(waits, step, expected):
    assert slow_rank(waits, step) == expected


def test_the_line_for_people():
    sample = CollectiveWaits(
        step=503, wait_seconds=(0.150, 0.0034, 0.154), step_seconds=0.158, slow_rank=1
    )
    assert describe(sample) == (
        "rank 1 is slow: in a step of 158.0 ms it waits 3.4 ms for others, the others 152.0 ms"
    )
