import math

import pytest

from components.engine.optimization.config import Schedule
from components.engine.optimization.schedule import learning_rate


@pytest.mark.parametrize(
    ("shape", "step", "expected"),
    [
        ("constant", 0, 0.1),
        ("constant", 4, 0.5),
        ("constant", 9, 1.0),
        ("constant", 99, 1.0),
        ("linear", 9, 1.0),
        ("linear", 10, 1.0),
        ("linear", 55, 0.5),
        ("linear", 99, 1 / 90),
        ("cosine", 10, 1.0),
        ("cosine", 55, 0.5),
        ("cosine", 99, 0.5 * (1 + math.cos(math.pi * 89 / 90))),
    ],
)
def test_closed_form(shape, step, expected):
    schedule = Schedule(shape=shape, warmup_fraction=0.1)
    assert learning_rate(2.0, schedule, step, 100) == pytest.approx(2.0 * expected)


@pytest.mark.parametrize("shape", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("warmup", [0.0, 0.05, 0.999])
@pytest.mark.parametrize("steps", [1, 2, 7, 100])
def test_every_rate_is_positive_and_at_most_the_peak(shape, warmup, steps):
    schedule = Schedule(shape=shape, warmup_fraction=warmup)
    rates = [learning_rate(1.0, schedule, step, steps) for step in range(steps)]
    assert all(0.0 < rate <= 1.0 for rate in rates)


def test_it_falls_after_the_warmup_and_never_rises_again():
    schedule = Schedule(shape="cosine", warmup_fraction=0.2)
    rates = [learning_rate(1.0, schedule, step, 50) for step in range(50)]
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
