"""Verdict of a hyperparameter study, as `analyze_study` writes it."""

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from perennial.contracts.artifact import Artifact
from perennial.contracts.gate import Interval, Repeats
from perennial.contracts.section import Section

Decision = Literal["adopt", "reject", "inconclusive"]


class Confirmed(Section):
    """A finalist against the baseline, or one scientific value against another, on test rows."""

    trial: int
    against: int
    values: dict[str, JsonValue] = Field(default_factory=dict)
    """Of the finalist."""
    test: float
    """Mean of the metric over its confirmations, on the test rows."""
    test_against: float
    improvement: Interval | None
    """Simultaneous over all comparisons of its kind; positive means that `trial` is better. None
    where test rows or confirmations are too few for an interval."""
    seed_error: float | None
    """Standard error from the variance between seeds, beyond what `data_error` has of it."""
    data_error: float | None
    """Standard error from the choice of the test rows."""
    degrees: float
    """Degrees of freedom, by Satterthwaite."""
    decision: Decision
    searched: float | None = None
    """The improvement that the search showed, on validation rows."""
    confirmations_needed: int | None = None
    """Confirmations per candidate that would settle it; None if no number of them does."""
    diverged: tuple[int, ...] = ()
    """Those of the two trials of which a confirmation diverged; it is not in the improvement."""
    text: str

    @property
    def is_clear(self) -> bool:
        """Whether one of the two is certainly better, and did not diverge."""
        found = self.improvement
        if found is None or found.low <= 0.0 <= found.high:
            return False
        return (self.trial if found.low > 0.0 else self.against) not in self.diverged


class ScientificAnswer(Section):
    """The answer to one scientific question."""

    option: str
    comparisons: tuple[Confirmed, ...] = ()
    text: str


class StudyJudgement(Artifact):
    """The verdict on the finalists, by confirmations that nothing was chosen by.

    File tree: `judgement.json`.
    """

    file_name: ClassVar[str] = "judgement.json"

    study: str
    """Digest of the plan."""
    model: str
    snapshot: str
    metric: str
    decision: Decision
    winner: int | None
    """The finalist that is adopted; None unless the decision is `adopt`."""
    changes: dict[str, JsonValue] = Field(default_factory=dict)
    """Option → value to write into the contract."""
    baseline: dict[str, JsonValue] = Field(default_factory=dict)
    """Option → the contract's value of the same options when the study was planned."""
    fixed: dict[str, JsonValue] = Field(default_factory=dict)
    """Option → value that the conclusion holds for, where the study fixed one."""
    min_improvement: float = 0.0
    confidence: float
    """Of the interval of all comparisons together, after earlier studies on the same rows."""
    comparisons: tuple[Confirmed, ...] = ()
    answers: tuple[ScientificAnswer, ...] = ()
    repeats: Repeats | None = None
    test_rows: int = 0
    test_blocks: int = 0
    unit: str = "row"
    summary: str
