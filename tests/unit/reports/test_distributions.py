import random

import pytest

from perennial.reports.charts import histogram_chart
from perennial.reports.distributions import Bins


def test_shares_are_of_each_bin():
    bins = Bins.of([0.0, 0.5, 1.0], 4)

    assert bins.shares([0.0, 0.1, 0.3, 0.9, 1.0]) == [0.4, 0.2, 0.0, 0.4]
    assert bins.shares([]) == [0.0] * 4


def test_whole_numbers_get_bins_of_their_own():
    bins = Bins.of([1.0, 2.0, 2.0, 5.0], 30)

    assert (bins.low, bins.high, bins.count) == (0.5, 5.5, 5)
    assert bins.shares([1.0, 2.0, 2.0, 5.0]) == [0.25, 0.5, 0.0, 0.0, 0.25]


def test_one_far_value_does_not_set_the_axis_and_is_counted():
    draw = random.Random(1)
    ordered = sorted([draw.gauss(0, 1) for _ in range(999)] + [1e9])
    bins = Bins.of(ordered, 30)

    assert bins.high < 20
    assert bins.outside(ordered) == 1
    assert sum(bins.shares(ordered)) == pytest.approx(1)
    svg = histogram_chart({"a": ordered}, x_label="x")
    assert "outermost bins include 1 from beyond the axis" in svg


@pytest.mark.parametrize(
    "ordered",
    [
        [0.0] * 990 + [float(i) + 0.5 for i in range(10)],
        [i / 100 for i in range(1_000)],
        [-1e300, 0.1, 1e300],
        [5.25],
    ],
)
def test_everything_else_is_inside(ordered):
    assert Bins.of(ordered, 30).outside(ordered) == 0


def test_no_bin_is_refused():
    with pytest.raises(ValueError, match="at least one bin"):
        histogram_chart({"a": [1.0]}, x_label="x", bins=0)
