"""The `[gate]` section: what a challenger must show before it becomes champion."""

from typing import Annotated, Literal

from pydantic import Field

from components.contracts.data import ColumnName, ModelSection
from components.contracts.section import Section

NonNegative = Annotated[float, Field(ge=0.0)]


class GateSection(Section):
    """The comparison of challenger and champion on the test split.

    Improvements and regressions are in the metric's own unit; positive is better whatever the
    metric's direction.
    """

    metric: str = ""
    """One of the task's metrics, or `loss`; empty means the task's first. Change it to what the
    model is used for. `loss` is fair only if the task's loss has the same unit for every training:
    the tabular regression's has not."""
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.95
    """Each bound of each interval is meant to hold with this probability: at 0.95, a challenger
    that is no better than its champion is promoted about once in 20 (measured: 3.5 to 6.3% on 8 to
    60 test days). Raise it when a change of models is expensive."""
    min_improvement: NonNegative = 0.0
    """The improvement's lower bound must exceed this. Raise it to the smallest gain that is worth
    a change of models."""
    resamples: Annotated[int, Field(ge=200, le=20000)] = 2000
    """Draws of the bootstrap; the default knows a standard error to within 2%. Lower it only when
    the test split is very large."""
    max_regression: dict[str, NonNegative] = Field(default_factory=dict)
    """Guard metric → how much worse it may be. The improvement's lower bound must lie above minus
    this, so the challenger has to show that it is not worse: a limit of 0 asks for an improvement.
    """
    required: dict[str, float] = Field(default_factory=dict)
    """Metric → worst value that is acceptable at all, champion or not."""
    slices: tuple[ColumnName, ...] = ()
    """Columns with few values; on each value the challenger must not clearly regress. Name the
    groups that must not pay for a better average."""
    slice_max_regression: NonNegative = 0.0
    """How much worse a slice may be. A slice blocks when its upper bound, corrected for the number
    of slices, lies below minus this."""
    slice_min_rows: Annotated[int, Field(ge=20)] = 200
    """Smaller slices are left out. Lower it for small test splits; intervals get wide."""
    must_beat: tuple[Literal["constant", "linear", "last_value", "task", "human"], ...] = (
        "constant",
    )
    """Baselines of check_skeleton that the challenger must beat on the gate's metric: `last_value`
    repeats the label before, `task` is the task's own, `human` the figure in the contract's
    `skeleton.human`. The others are shown only. Add `linear` when a network that is no better is
    not worth its upkeep."""
    min_test_rows: Annotated[int, Field(ge=1)] = 200
    """Fewer test rows decide nothing."""
    min_test_blocks: Annotated[int, Field(ge=2)] = 8
    """Fewer independent blocks (days, groups, or rows) decide nothing. The interval's Student
    quantile is 1.9 at 8 blocks and 6.3 at 2."""


class EvaluateModelConfig(Section):
    """What the step receives."""

    model: ModelSection
    gate: GateSection
