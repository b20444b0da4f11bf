"""Amounts that count in relation to another column, whose limits hold for the ratio."""

import numpy as np
import polars as pl
import pytest

from mixed_numbers import Numbers, subject_of
from perennial.check_skeleton.checks.data.values.lost_values import check_lost_values

ROWS = 1500


def orchards() -> pl.DataFrame:
    """Blocks of very different areas: many trees for a small one are few for a large one."""
    rng = np.random.default_rng(3)
    acres = rng.lognormal(0.5, 1.0, ROWS)
    density = rng.normal(900, 220, ROWS).clip(300)
    return pl.DataFrame(
        {
            "row": range(ROWS),
            "acres": acres,
            "trees": (density * acres).round(),
            "label": density / 300 + rng.normal(0, 0.4, ROWS),
        }
    )


class Dense(Numbers):
    """Trees for each acre, within what there is in training."""

    limit = 2000.0

    def numbers(self, frame):
        density = (frame["trees"] / frame["acres"]).to_numpy().clip(0, self.limit)
        return np.stack([density, frame["acres"].to_numpy()], axis=1)


class FewTrees(Dense):
    """The limit of another table, for the trees themselves."""

    def numbers(self, frame):
        return super().numbers(frame.with_columns(pl.col("trees").clip(0, 300)))


@pytest.mark.parametrize("first", ["small", "large"])
def test_a_limit_of_a_ratio_is_judged_in_a_row_that_keeps_it(first, tmp_path):
    frame = (
        orchards()
        .sort("acres", descending=first == "large")
        .with_columns(row=pl.int_range(pl.len()))
    )
    result = check_lost_values(subject_of(Dense, frame, tmp_path))
    assert result.outcome == "passed", result.measured


def test_a_limit_of_the_amount_itself_is_not_passed(tmp_path):
    result = check_lost_values(subject_of(FewTrees, orchards(), tmp_path))
    assert result.outcome == "warned"
    assert "values of trees become" in result.measured
