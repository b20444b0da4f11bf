"""Results of `evaluate_model` and `register_model`."""

from typing import ClassVar, Literal

from pydantic import AliasChoices, Field

from perennial.contracts.artifact import Artifact
from perennial.contracts.block import Block
from perennial.contracts.section import Section

Alias = Literal["champion", "challenger"]


class Interval(Section):
    """An estimate with its confidence interval."""

    estimate: float
    low: float
    high: float


class Figure(Section):
    """A model's value of one metric, with its uncertainty."""

    metric: str
    value: float
    interval: Interval | None
    """Each bound holds with the gate's confidence; None where blocks are too few."""


class CalibrationBin(Section):
    """Test rows that were given similar probabilities."""

    rows: int
    predicted: float
    """Mean probability given: of the second class, or of the answer where there are more."""
    observed: float
    """Observed frequency of the event."""


class ReferenceTest(Section):
    """A textbook test of the same improvement, which takes rows for independent."""

    test: Literal["DeLong", "McNemar"]
    p_value: float
    """One-sided: of an improvement so large, if there is none."""
    is_better: bool = Field(validation_alias=AliasChoices("is_better", "says_better"))
    """Whether the p-value is below one minus the gate's confidence."""


class Comparison(Section):
    """Challenger against champion on one metric; positive means that the challenger is better."""

    metric: str
    challenger: float
    champion: float | None
    improvement: Interval | None
    """None without a champion."""
    luck: float = 0.0
    """Part of the two figures' difference that is due to label imbalance of the test days, and that
    the improvement leaves out."""
    standard_error: float | None = None
    """Standard error of the improvement; None without one."""
    degrees: float | None = None
    """Degrees of freedom of the standard error."""
    effective_blocks: float | None = None
    """Independent blocks that would tell as much as the test split's."""
    correlation: float | None = None
    """Correlation of one day's improvement with the next day's."""
    confidence: float | None = None
    """Confidence with which each bound holds; None for the gate's own."""
    reference_test: ReferenceTest | None = Field(
        None, validation_alias=AliasChoices("reference_test", "second_opinion")
    )
    """Shown beside the interval; it decides nothing. None where no test fits the metric."""
    incomparable: str = ""
    """Why the champion's figure cannot be compared with the challenger's, and what to do;
    empty where the two compare, or there is no champion."""


class Repeats(Section):
    """Earlier tests of the champion on the same test days."""

    earlier: int
    """Challengers with other weights whose test shared any of the days."""
    worth: float
    """Number of whole tests: each counts as the share of these days that it had."""
    level: float
    """Probability of promoting a challenger that is not better: one minus the confidence."""


class AnchorComparison(Section):
    """Challenger against the last champion that was shown to be better than the one before it."""

    version: str
    comparison: Comparison | None = None
    """Improvement in the gate's metric; None where the anchor could not be scored."""
    failure: str = ""
    """Why the anchor could not be scored."""


class SliceComparison(Section):
    """Challenger against champion on the gate's metric, on the test rows of one slice."""

    column: str
    """Empty for a slice that was found by search."""
    value: str
    """The column's value; for a slice that was found, the conditions that its rows meet."""
    found: bool = False
    """Whether it was found by search, among other test rows than those it was judged on."""
    rows: int
    challenger: float
    champion: float
    improvement: Interval
    regressed: bool
    """Clearly worse than the gate allows, counting how many slices were looked at."""

    @property
    def title(self) -> str:
        """Name of the slice for people."""
        return self.value if self.found else f"{self.column} = {self.value}"


class Reach(Section):
    """Statistical power of a test split of this size."""

    detectable: float
    """The smallest true improvement that would be promoted in 80 of 100 such tests."""
    worth_finding: float | None
    """The contract's."""
    blocks: int
    """Independent blocks of the test split."""
    blocks_needed: int | None
    """Blocks needed to find `worth_finding`; None where it is not set, or no number suffices."""

    @property
    def sufficient(self) -> bool:
        """Whether what is worth finding would be found."""
        return self.worth_finding is None or self.detectable <= self.worth_finding


class Classification(Section):
    """Predicted and true classes of the challenger on the test rows, as dashboards show them."""

    classes: tuple[int, ...]
    """The most frequent ones, where there are more than a screen shows."""
    counts: tuple[tuple[int, ...], ...]
    """Rows by true class (down) and predicted class (across)."""
    roc: tuple[tuple[float, float, float], ...] = ()
    """False positive rate, true positive rate and threshold; empty with more than two classes."""


class Serving(Section):
    """An exported model, served in a process of its own."""

    megabytes: float
    """Size of all its files, in MB."""
    model_megabytes: float | None = None
    """Size of weights and preprocessing alone, for comparison with the champion."""
    rows: int = 0
    """Test rows that it predicted."""
    milliseconds: float | None = None
    """One row (as few as the task allows) through MLflow's pyfunc, read, encoded and predicted;
    the median, and None if it failed."""
    loading_seconds: float | None = None
    failure: str = ""
    """Errors of loading or predicting, or a prediction that differs from the evaluation."""
    champion_milliseconds: float | None = None
    """The champion's, measured in turns, in a process of its own; None where nobody asked or it
    does not serve."""
    times_as_fast: float | None = None
    """Lower 95% bound of the champion's time by the challenger's, over the turns."""


class Measurement(Section):
    """The number that a condition of the gate compares with its threshold."""

    quantity: str
    """What is measured, with its unit, as the label of an axis."""
    value: float
    threshold: float
    interval: Interval | None = None
    bound: Literal["lower", "upper"] = "lower"
    """Which bound of the interval is compared; without an interval, the value is."""
    side: Literal["above", "below"] = "above"
    """Where it must lie for the condition to hold."""

    @property
    def decisive(self) -> float:
        """The number that is compared with the threshold."""
        if self.interval is None:
            return self.value
        return self.interval.low if self.bound == "lower" else self.interval.high


class GateReason(Section):
    """One condition of the gate and whether it held."""

    condition: str
    held: bool
    detail: str
    measured: Measurement | None = None
    """None where the condition is no comparison of numbers."""


class BlockPerformance(Block):
    """Mean loss on the held-out rows of one block."""

    rows: int
    loss: float


class Verdict(Artifact):
    """Verdict of the gate: whether the challenger may become champion.

    File tree: `verdict.json`.
    """

    file_name: ClassVar[str] = "verdict.json"

    promote: bool
    summary: str
    """The decision and its main reason, in a sentence."""
    reasons: tuple[GateReason, ...]
    comparisons: tuple[Comparison, ...]
    """The gate's metric first."""
    slices: tuple[SliceComparison, ...] = ()
    reach: Reach | None = None
    """Statistical power of the comparison; None without one."""
    repeats: Repeats | None = None
    """Earlier tests on these days; None where nothing was compared."""
    anchor: AnchorComparison | None = None
    """None where the champion itself is the anchor."""
    serving: Serving | None = None
    """The challenger in a clean process; None in verdicts from before this was looked at."""
    notes: tuple[str, ...] = ()
    """Warnings about the comparison, such as test rows that the champion was trained on."""
    baselines: dict[str, dict[str, float]]
    champion_version: str = ""
    """The version compared with; empty when there was none."""
    test_rows: int
    test_blocks: int
    """Independent blocks that the intervals rest on."""
    performance_reference: tuple[BlockPerformance, ...]
    """The challenger on held-out rows, block by block: what later decay is measured against."""
    figures: tuple[Figure, ...] = ()
    """The challenger by itself on the test rows, the gate's metric first."""
    calibration: tuple[CalibrationBin, ...] = ()
    """Calibration bins from low to high probability; empty for tasks without probabilities."""
    champion_calibration: tuple[CalibrationBin, ...] = ()
    """The champion's on the same rows; empty without one that was scored."""
    classification: Classification | None = None
    """None for tasks without classes."""
    expected_calibration_errors: dict[str, float] = Field(default_factory=dict)
    """Expected calibration error of `challenger` and `champion`; empty as above."""

    @property
    def calibration_error(self) -> float | None:  # read by the model card's template
        """Mean distance of probabilities from what came true, over all test rows."""
        rows = sum(each.rows for each in self.calibration)
        away = (each.rows * abs(each.predicted - each.observed) for each in self.calibration)
        return sum(away) / rows if rows else None


class Registration(Artifact):
    """A registered model version.

    File tree: `registration.json`.
    """

    file_name: ClassVar[str] = "registration.json"

    name: str
    version: str
    """Empty where the challenger was not better than the champion, and none was made."""
    aliases: tuple[Alias, ...]
    weights_sha256: str
    tracking_run_id: str
    replaced_version: str = ""
    judged_again: Verdict | None = None
    """Verdict on a champion that came meanwhile; None where that of `evaluate_model` holds."""

    @property
    def is_champion(self) -> bool:
        """Whether it was made the model's champion."""
        return "champion" in self.aliases
