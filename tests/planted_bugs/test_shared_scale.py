"""Columns of several units by one mean and one deviation, and columns that share them for a reason."""

import re

import numpy as np
import pytest

from mixed_numbers import Numbers, subject_of
from other_styles import numbers_table, table_of
from perennial.check_skeleton.checks.data.values.input_scale import check_input_scale

ROWS = 900
X, SCORE = numbers_table(ROWS)
UNITS = {"age": (45, 11), "income": (3900, 1400), "visits": (12, 3.3)}
TABLE = table_of(X[:, :0], SCORE).with_columns(
    **{name: mean + spread * X[:, i] for i, (name, (mean, spread)) in enumerate(UNITS.items())}
)
# Borders of pictures hardly vary.
PIXELS = table_of(X[:, :0], SCORE).with_columns(
    **{f"pixel_{i}": 30 + (0.3, 50, 60, 0.2)[i] * X[:, i] for i in range(4)}
)
ROOMS = table_of(X[:, :0], SCORE).with_columns(
    kitchen=21 + 2 * X[:, 0], attic=16 + 5 * X[:, 1], cellar=13 + 1.1 * X[:, 2]
)


class WithoutAnAxis(Numbers):
    """One mean and one deviation, of all numbers of the table."""

    def statistics(self, x):
        return x.mean(), x.std()

    def fit(self, train):
        super().fit(train)
        x = self.numbers(train.collect())
        mean, std = self.statistics(x)
        width = x.shape[1]
        self.fitted |= {"mean": [float(mean)] * width, "std": [float(std)] * width}


class ByMedianAndQuartiles(WithoutAnAxis):
    def statistics(self, x):
        low, middle, high = np.quantile(x, [0.25, 0.5, 0.75])
        return middle, high - low


class ByRoundNumbers(WithoutAnAxis):
    def statistics(self, x):
        return 100.0, 1000.0


@pytest.mark.parametrize("task_type", [WithoutAnAxis, ByMedianAndQuartiles])
def test_columns_of_several_units_by_the_statistics_of_all_warn(task_type, tmp_path):
    result = check_input_scale(subject_of(task_type, TABLE, tmp_path))
    assert result.outcome == "warned"
    assert re.search(
        r"visits, age, income are all normalised .* leaves visits a deviation of 0\.00\d",
        result.measured,
    )


@pytest.mark.parametrize(("task_type", "table"), [
    (Numbers, TABLE), (ByRoundNumbers, TABLE), (WithoutAnAxis, PIXELS), (WithoutAnAxis, ROOMS),
], ids=["its own", "chosen", "pixels", "rooms"])  # fmt: skip
def test_statistics_that_columns_share_for_a_reason_pass(task_type, table, tmp_path):
    result = check_input_scale(subject_of(task_type, table, tmp_path))
    assert result.outcome == "passed" or "normalised with" not in result.measured
