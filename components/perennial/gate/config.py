"""The `[gate]` section: the conditions that a challenger must meet to become champion."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from perennial.contracts.data import ColumnName, ModelSection
from perennial.contracts.errors import PerennialError
from perennial.contracts.scoring import ScoringSection
from perennial.contracts.section import Advanced, Layout, Section
from perennial.training_jobs.config import ResourcesSection

NonNegative = Annotated[float, Field(ge=0.0)]
Positive = Annotated[float, Field(gt=0.0)]
LISTS = ("List", "Array")
"""Beginnings of the names of column types with several values in each row."""


class GateSection(Section):
    """The comparison of challenger and champion on the test split.

    Improvements and regressions are in the metric's own unit; positive is better whatever the
    metric's direction.
    """

    metric: str = ""
    """One of the task's metrics, or `loss`; empty means the task's first. Set it to the metric that
    matters in use. `loss` is fair only if the task's loss has the same unit for every training,
    which is not so for tabular regression."""
    confidence: Annotated[float, Field(ge=0.5, lt=1.0)] = 0.95
    """Confidence of each bound of each interval: at 0.95, a challenger that is not better than its
    champion is promoted about once in 20 tests. If earlier challengers of this champion were tested
    on the same days, later ones are tested at a higher confidence, so that one in 20 holds for all
    of them together. Raise it when a change of models is expensive."""
    mode: Literal["superior", "non_inferior"] = "superior"
    """`non_inferior`: the challenger need not be better on the metric, only not worse by `margin`,
    if it is `also_better`. Use it to keep a model fresh, or to make it smaller."""
    margin: NonNegative = 0.0
    """For `non_inferior`: how much worse the metric may be. The improvement's lower bound must be
    above minus this value; 0 is as strict as `superior`."""
    also_better: Annotated[
        tuple[Literal["fresher", "smaller", "faster"], ...], Field(min_length=1)
    ] = ("fresher",)
    """For `non_inferior`: properties that must all be better. `fresher`: its data end later than
    the champion's; `smaller`: its weights and preprocessing take less space; `faster`: it takes
    less time to encode and predict one row, timed in turns with the champion in a clean process."""
    anchor_days: Advanced[Annotated[int, Field(ge=0, le=3650)]] = 365
    """A challenger is also compared with the anchor: the last champion that was shown to be better
    than its predecessor, if it was registered within this many days. `non_inferior` requires that
    it is not worse than the anchor by `margin` either; `superior`, that it is not significantly
    worse. Otherwise, losses within the margin add up over promotions. A year covers every season; 0
    compares with the champion only."""
    min_improvement: NonNegative = 0.0
    """The improvement's lower bound must exceed this value. Raise it to the smallest gain that is
    worth a change of models."""
    worth_finding: Positive | None = None
    """The true improvement that the test split should detect with 80% statistical power. It does
    not affect the decision: if the test split is too small, the report and `perennial check` warn
    and state how many days are needed. Set it to the gain that you retrain for; it must exceed
    `min_improvement`, because the lower bound must exceed that."""
    resamples: Advanced[Annotated[int, Field(ge=200, le=20000)]] = 2000
    """Number of bootstrap draws; the default gives standard errors to within 2%. Lower it only when
    the test split is very large."""
    max_regression: dict[str, NonNegative] = Field(default_factory=dict)
    """Guard metric → how much worse it may be. The improvement's lower bound must be at least minus
    this value, so the challenger must show that it is not worse: 0 requires an improvement, or
    equality without any uncertainty, as of equal predictions.
    """
    required: dict[str, float] = Field(default_factory=dict)
    """Metric → worst acceptable value, with or without a champion. The confidence bound of the
    challenger's own metric must reach it, so a small or noisy test split requires a better
    estimate."""
    slices: tuple[ColumnName, ...] = ()
    """Columns with few values; the challenger must not regress significantly on any value. Name
    the groups that must not get worse for a better average."""
    slice_max_regression: NonNegative = 0.0
    """How much worse a slice may be. A slice blocks the promotion when its upper bound, corrected
    for the number of slices, is below minus this value."""
    slice_min_rows: Advanced[Annotated[int, Field(ge=20)]] = 200
    """Slices with fewer rows are not judged. Lower it for small test splits; intervals get wide."""
    hidden_slices: Literal["block", "show", "off"] = "block"
    """Undeclared groups: a search on one half of the test days proposes them, and the other half
    judges them. `block` makes a regression block the promotion, `show` only reports it; use `show`
    if a group may get worse."""
    hidden_slice_tolerance: Advanced[Annotated[float, Field(ge=0.0, le=1.0)]] = 0.1
    """How much worse a group found by the search may be, as a share of the champion's metric on it;
    at 0.1 a log loss of 0.50 may become 0.55. Lower it if you would not accept that for any group.
    The search compares losses row by row, whatever the gate's metric."""
    must_beat: tuple[Literal["constant", "linear", "last_value", "task", "human"], ...] = (
        "constant",
    )
    """Baselines of check_skeleton that the challenger must beat on the gate's metric: `last_value`
    repeats the previous label, `task` is the task's own, `human` is the value in the contract's
    `skeleton.human`. The others are only shown. Add `linear` if a network that is not better is not
    worth its upkeep. Without a champion to compare with, the lower bound of the difference on the
    same rows must be above 0; with a champion, which had to beat them, the estimate decides. For
    `human`, whose rows are unknown, the bound of the challenger's own metric decides. Where no
    bound exists (a single block, `loss`, more than 10 million predictions), the estimate decides
    and the page reports it."""
    replace_unscored_champion: bool = False
    """Whether a champion that cannot be scored may be replaced without a comparison: its code
    raises an exception, the label's values changed, or its predictions are not finite. The page
    shows when this was used. The gate never replaces a champion whose files are damaged. Set it for
    one run, after you have found the cause."""
    max_megabytes: Positive | None = None
    """Maximum size of the exported model's files. Set it to what the serving system can hold."""
    max_milliseconds: Positive | None = None
    """Maximum time to encode and predict one row: the median of 20 predictions in a clean process
    on the step's machine. Set it if that machine is like the one that serves."""
    min_test_rows: Annotated[int, Field(ge=1)] = 200
    """Below this number of test rows, the challenger is not promoted."""
    min_test_blocks: Advanced[Annotated[int, Field(ge=2)]] = 8
    """Below this number of blocks (days, groups, or rows), the challenger is not promoted. The
    interval's Student quantile is 1.9 at 8 blocks and 6.3 at 2."""
    min_effective_days: Advanced[Annotated[float, Field(ge=1.0)]] = 12.0
    """Effective number of independent days. If a model's errors are correlated from day to day, 27
    days count as 15 independent ones (correlation 0.3) or 7 (0.6). Below this number the challenger
    is not promoted, because so few days cannot show whether errors persist for weeks. Later
    challengers on the same days need more, in proportion to the logarithm of their level. Of tests
    on 9, 18 and 27 independent days, 37, 79 and 95% are judged
    (benchmarks/results/gate_characteristics.md). Lower it only if days are known to be independent:
    at 7, 9 days find 56% instead of 34% of the improvements that 80% of plain tests find."""
    min_rare_rows: Advanced[Annotated[int, Field(ge=1)]] = 50
    """For `roc_auc` and `average_precision` of two classes: below this number of test rows of the
    rarer class, the challenger is not promoted. On 9 to 18 positives, equal challengers were
    promoted in up to 17% of tests, on 50 in 3 to 5% (benchmarks/results/gate_characteristics.md).
    Keep it at 30 or more."""
    min_rare_blocks: Advanced[Annotated[int, Field(ge=2)]] = 8
    """As `min_rare_rows`, for blocks that contain a row of the rarer class. The default equals that
    of `min_test_blocks`, because blocks without such a row carry no information on the ranking."""

    processes: Advanced[Annotated[int, Field(ge=1, le=256)] | None] = None
    """Number of processes that share the test rows; the results are equal bit for bit. If not set,
    one per GPU, else one. Set 1 if memory can hold only one model."""

    @property
    def times_champion(self) -> bool:
        """Whether the champion must be timed, because the decision depends on it."""
        return self.mode == "non_inferior" and "faster" in self.also_better

    @property
    def least_improvement(self) -> float:
        """The value that the improvement's lower bound must exceed."""
        return -self.margin if self.mode == "non_inferior" else self.min_improvement

    def slice_limit(self, champion: float, *, found: bool) -> float:
        """Return how much worse than the champion's metric a slice may be."""
        hidden = self.hidden_slice_tolerance * abs(champion) if found else 0.0
        return max(self.slice_max_regression, hidden)

    def require_slices(self, columns: Mapping[str, str]) -> None:
        """Refuse slices that are not columns of the dataset, or hold lists.

        Args:
            columns: Column of the dataset → type.

        Raises:
            PerennialError: there are some; the action has the nearest names.
        """
        unknown = sorted(set(self.slices) - set(columns))
        if unknown:
            near = [
                name if name in columns else "".join(get_close_matches(name, columns, n=1))
                for name in self.slices
            ]
            shown = ", ".join(f'"{name}"' for name in near if name)
            raise PerennialError(
                f"gate.slices names {unknown}, which are not columns of the dataset",
                evidence=f"its columns are: {', '.join(columns)}",
                action=f"write slices = [{shown}]  # in [gate]",
            )
        lists = {name: columns[name] for name in self.slices if columns[name].startswith(LISTS)}
        if lists:
            raise PerennialError(
                f"gate.slices names {sorted(lists)}, whose values are lists",
                evidence=", ".join(f"{name} is {kind}" for name, kind in lists.items()),
                action="name columns with one value per row, such as one made of these lists",
            )

    @model_validator(mode="after")
    def _worth_more_than_the_least(self) -> Self:
        least = self.least_improvement
        if self.worth_finding is not None and self.worth_finding <= least:
            raise ValueError(
                f"worth_finding = {self.worth_finding:g} cannot be detected: the lower bound must "
                f"exceed min_improvement = {least:g}; state a larger gain, or lower min_improvement"
            )
        return self


class JudgementConfig(Section):
    """Configuration of the step."""

    model: ModelSection
    gate: GateSection = GateSection()
    scoring: Layout[ScoringSection] = ScoringSection()
    resources: Layout[ResourcesSection] = ResourcesSection()
