"""The `[gate]` section: what a challenger must show before it becomes champion."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from perennial.contracts.data import ColumnName, ModelSection
from perennial.contracts.section import Section

NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]


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
    that is no better than its champion is promoted about once in 20. Where the same test days have
    judged other challengers of this champion, later ones must show more, so that one in 20 holds
    for all of them together. Raise it when a change of models is expensive."""
    mode: Literal["superior", "non_inferior"] = "superior"
    """`non_inferior`: the challenger need not be better on the metric, only not worse by `margin`,
    if it is `also_better`. Take it to keep a model fresh, or to make it smaller."""
    margin: NonNegative = 0.0
    """For `non_inferior`: how much worse the metric may be. The improvement's lower bound must lie
    above minus this; at 0 nothing is won over `superior`."""
    also_better: Annotated[
        tuple[Literal["fresher", "smaller", "faster"], ...], Field(min_length=1)
    ] = ("fresher",)
    """For `non_inferior`: what must be better for certain, all of it. `fresher`: its data end later
    than the champion's; `smaller`: its weights and preprocessing take less space; `faster`: it
    takes less time to encode and predict one row, in turns with the champion in a clean process."""
    anchor_days: Annotated[int, Field(ge=0, le=3650)] = 365
    """Beside the champion a challenger is compared with the anchor: the last champion that was
    shown to be better than the one before it, if it was registered in so many days. `non_inferior`
    asks that it is not worse than that one by `margin` either, `superior` that it is not clearly
    worse. Without this, promotions within the margin add up. A year has seen every season; 0
    compares with the champion alone."""
    min_improvement: NonNegative = 0.0
    """The improvement's lower bound must exceed this. Raise it to the smallest gain that is worth
    a change of models."""
    worth_finding: Positive | None = None
    """The true improvement that the test split should be large enough to find, in 80 of 100 tests.
    It decides nothing: where the test rows cannot find it, the report and `perennial check` say so
    and how many days would. Set it to the gain that you retrain for; it lies above
    `min_improvement`, because a bound must exceed that."""
    resamples: Annotated[int, Field(ge=200, le=20000)] = 2000
    """Draws of the bootstrap; the default knows a standard error to within 2%. Lower it only when
    the test split is very large."""
    max_regression: dict[str, NonNegative] = Field(default_factory=dict)
    """Guard metric → how much worse it may be. The improvement's lower bound must lie above minus
    this, so the challenger has to show that it is not worse: a limit of 0 asks for an improvement.
    """
    required: dict[str, float] = Field(default_factory=dict)
    """Metric → worst value that is acceptable at all, champion or not. The bound of the
    challenger's own figure must reach it, with the gate's confidence: a test split that is small
    or varies must show more than the value."""
    slices: tuple[ColumnName, ...] = ()
    """Columns with few values; on each value the challenger must not clearly regress. Name the
    groups that must not pay for a better average."""
    slice_max_regression: NonNegative = 0.0
    """How much worse a slice may be. A slice blocks when its upper bound, corrected for the number
    of slices, lies below minus this."""
    slice_min_rows: Annotated[int, Field(ge=20)] = 200
    """Smaller slices are left out. Lower it for small test splits; intervals get wide."""
    hidden_slices: Literal["block", "show", "off"] = "block"
    """Groups that nobody declared, searched for on one half of the test days and judged on the
    other. `show` leaves the decision to the other conditions; take it where a group may pay."""
    hidden_slice_tolerance: Annotated[float, Field(ge=0.0, le=1.0)] = 0.1
    """How much worse a group that was found may be, as a share of the champion's figure on it; at
    0.1 a log loss of 0.50 may become 0.55. Lower it if you would not accept that of any group. The
    search looks at losses row by row, whatever the gate's metric."""
    must_beat: tuple[Literal["constant", "linear", "last_value", "task", "human"], ...] = (
        "constant",
    )
    """Baselines of check_skeleton that the challenger must beat on the gate's metric: `last_value`
    repeats the label before, `task` is the task's own, `human` the figure in the contract's
    `skeleton.human`. The others are shown only. Add `linear` when a network that is no better is
    not worth its upkeep. Where no champion is compared with, the lower bound of the difference on
    the same rows must be above 0; beside a champion, which had to beat them, the estimate decides.
    `human`, whose rows nobody knows, must be beaten by the bound of the challenger's own figure.
    Where there is no bound (a single block, `loss`, more than 10 million predictions), the estimate
    decides and the page says so."""
    replace_unscored_champion: bool = False
    """Whether a champion that cannot be scored may be replaced without a comparison: its code
    raises, the label's values changed, or its predictions are not finite. The page shows when this
    was used. A champion whose files are damaged is never replaced by the gate. Set it for one run,
    after you have looked at why."""
    max_megabytes: Positive | None = None
    """How large the exported model's files may be. Set it to what the place of serving can hold."""
    max_milliseconds: Positive | None = None
    """How long encoding and predicting one row may take, as the median of 20 in a clean process on
    the step's machine. Set it if that machine is like the one that serves."""
    min_test_rows: Annotated[int, Field(ge=1)] = 200
    """Fewer test rows decide nothing."""
    min_test_blocks: Annotated[int, Field(ge=2)] = 8
    """With fewer blocks (days, groups, or rows) the champion is kept. The interval's Student
    quantile is 1.9 at 8 blocks and 6.3 at 2."""
    min_effective_days: Annotated[float, Field(ge=1.0)] = 7.0
    """Where a model errs on one day as on the day before, 27 days tell as much as 7 independent
    ones (at a correlation of 0.6) or 2 (at 0.9). With fewer than this the champion is kept, because
    the correlation itself is too uncertain (benchmarks/results/gate_characteristics.md). Lower it
    only if you know that days are independent."""
    min_rare_rows: Annotated[int, Field(ge=1)] = 50
    """For `roc_auc` and `average_precision` of two classes: with fewer test rows of the rarer class
    the champion is kept. On 9 to 18 positives equal challengers were promoted in up to 17% of
    tests, on 50 in 3 to 5% (benchmarks/results/gate_characteristics.md). Keep 30 at least."""
    min_rare_blocks: Annotated[int, Field(ge=2)] = 8
    """The same for the blocks that hold a row of the rarer class; the default is that of
    `min_test_blocks`, because blocks without one tell nothing of the order of the classes."""

    @property
    def times_champion(self) -> bool:
        """Whether the champion's time decides."""
        return self.mode == "non_inferior" and "faster" in self.also_better

    @model_validator(mode="after")
    def _worth_more_than_the_least(self) -> Self:
        least = -self.margin if self.mode == "non_inferior" else self.min_improvement
        if self.worth_finding is not None and self.worth_finding <= least:
            raise ValueError(
                f"worth_finding = {self.worth_finding:g} can never be found: the lower bound must "
                f"exceed min_improvement = {least:g}; state a larger gain, or lower min_improvement"
            )
        return self


class JudgementConfig(Section):
    """What the step receives."""

    model: ModelSection
    gate: GateSection
