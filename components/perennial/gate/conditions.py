"""Conditions: correct the improvement for label imbalance of the test days.

On a day when more flights are late, every model errs more, and the one that expects delays errs
less than the other. That share of the improvement comes from the choice of test days, and it can be
removed: how many are late is known on every day of the same months, tested or not, and depends on
neither model. A control variate (Lavenberg and Welch, 1981), known from experiments as CUPED.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.data.dataset import Dataset, period_start
from perennial.engine.evaluation.resampling import (
    Blocks,
    Counts,
    independent_error,
    mean_influences,
    mean_on_draws,
    standard_error,
)
from perennial.engine.evaluation.uncertainty import Estimate, Spread

# The coefficient costs a degree of freedom. On 9 days that takes back most of what is won, and the
# bounds hold too often; on 18 days or more standard errors fall by a fifth and bounds hold as often
# as they should (benchmarks/results/gate_characteristics.md).
FROM_BLOCKS = 16
SMALLEST = 1e-12  # a variance; below, the label is the same on every day
_COUNTABLE = ("Int", "UInt", "Float", "Boolean")


@dataclass(frozen=True)
class Conditions:
    """The label on the test rows and over the whole of their periods.

    Attributes:
        labels: Label of each test row, as a number, shape [N].
        expected: Mean label of all days of the test rows' periods, each period counting as much as
            it has test rows.
        share: Test days among those days, in (0, 1].
    """

    labels: NDArray[np.float64]
    expected: float
    share: float


def conditions_of(dataset: Dataset, rows: pl.DataFrame, kind: str) -> Conditions | None:
    """Return the label's conditions on the test rows' periods; None if unknown.

    It needs a label that counts, and a split that gives each period's days to one part each.

    Args:
        dataset: Holds all rows.
        rows: The test rows' time and label.
        kind: The task's.
    """
    snapshot = dataset.snapshot
    data, rule = snapshot.data, snapshot.split
    countable = snapshot.columns[data.label].startswith(_COUNTABLE)
    by_time = data.time and rule.resolved_method(data) == "time"
    if kind not in {"binary", "regression"} or not countable or not by_time:
        return None
    label = pl.col(data.label).cast(pl.Float64)
    period, day = period_start(data, rule).alias("period"), pl.col(data.time or "").dt.date()
    labelled = dataset.scan().filter(label.is_finite())
    whole = dataset.collect(
        labelled.group_by(period).agg(label.mean().alias("label"), day.n_unique().alias("days"))
    )
    here = rows.group_by(period).agg(pl.len().alias("rows"), day.n_unique().alias("tested"))
    periods = here.join(whole, on="period")
    weights = periods["rows"].to_numpy() / periods["rows"].sum()
    return Conditions(
        rows[data.label].cast(pl.Float64).to_numpy(),
        float(weights @ periods["label"].to_numpy()),
        int(periods["tested"].sum()) / int(periods["days"].sum()),
    )


@dataclass(frozen=True)
class Drawn:
    """A resampled statistic.

    Attributes:
        values: One value per draw, or of the first draws only.
        influences: Influence of each block.
    """

    values: NDArray[np.float64]
    influences: NDArray[np.float64]


def estimate_of(
    value: float, drawn: Drawn, blocks: Blocks, draws: Counts, conditions: Conditions | None
) -> Estimate:
    """Estimate an improvement with its error, corrected for label imbalance where it is known.

    Args:
        value: The improvement on all rows.
        drawn: The improvement on the draws.
        blocks: Independent blocks of the rows.
        draws: The bootstrap draws.
        conditions: Conditions of the same rows.
    """
    values = drawn.values
    plain = Estimate.of(
        value, independent_error(values, blocks), Spread.of(drawn.influences, blocks)
    )
    if conditions is None or blocks.count < FROM_BLOCKS:
        return plain
    labels = mean_on_draws(conditions.labels, blocks, draws[: len(values)])
    pulls = mean_influences(conditions.labels, blocks)
    alone = slice(0, None, blocks.run)  # the draws of single blocks: ordinary least squares
    variance = float(labels[alone].var(ddof=1))
    if variance < SMALLEST:
        return plain
    slope = float(np.cov(labels[alone], values[alone])[0, 1]) / variance
    away = float(conditions.labels.mean()) - conditions.expected
    residual = independent_error(values - slope * labels, blocks, fitted=1)
    # The regression line is less certain far from the mean of the test days.
    leverage = 1.0 + away**2 / (blocks.count * variance)
    left = Estimate.of(
        value - slope * away,
        residual * math.sqrt(leverage),
        Spread.of(drawn.influences - slope * pulls, blocks),
        fitted=1,
        luck=slope * away,
    )
    of_labels = standard_error(labels, blocks)
    of_expected = slope**2 * of_labels**2 * conditions.share
    return replace(left, error=math.sqrt(left.error**2 + of_expected))
