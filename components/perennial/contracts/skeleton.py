"""Results of `check_skeleton`, the sanity checks of a task."""

from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from perennial.contracts.artifact import Artifact
from perennial.contracts.section import Section


class CheckResult(Section):
    """The outcome of one sanity check."""

    check: str
    """The check's name, as in the contract's `skeleton.waivers`."""
    outcome: Literal["passed", "warned", "failed", "skipped"]
    measured: str
    expected: str
    tolerance: str = ""
    """Largest difference of `measured` from `expected`, where that is a number."""
    evidence: dict[str, JsonValue] = Field(default_factory=dict)
    """Numbers behind the verdict, drawn in the report."""
    hint: str = ""
    """Advice for a failure; for a skipped check, why it was skipped."""
    source: str
    """Source of the check and its threshold."""
    severity: Literal["", "fail", "warn", "off"] = ""
    """The contract's severity for this check, where it changed the outcome: `fail` made a failure
    of a warning, `warn` a warning of a failure, `off` left the check out."""
    is_unmeasured: bool = False
    """Whether a warning is of a check that applies, and could not be made: no time, no memory,
    inputs that the task refuses. What it looks for may be there."""
    waived: str = ""
    """The contract's reason for letting a failure pass; idle while there is none."""
    seconds: float = 0.0

    @property
    def shown_outcome(self) -> str:
        """The outcome as the console and the pages name it."""
        if self.is_unmeasured:
            return "not measured"
        if self.outcome != "skipped":
            return self.outcome
        return "switched off" if self.severity == "off" else "not applicable"

    @property
    def blocks(self) -> bool:
        """Whether this outcome must stop the training."""
        return self.outcome == "failed" and not self.waived

    @property
    def is_idly_waived(self) -> bool:
        """Whether the contract has a reason for a failure that is not there."""
        is_made = self.outcome in ("passed", "warned") and not self.is_unmeasured
        is_known = is_made or self.severity == "off"
        return bool(self.waived) and is_known


class SkeletonReport(Artifact):
    """The verdict of the sanity checks, and the baselines measured on the way.

    Handed on with `baselines`, the predictions behind the baselines.
    """

    file_name: ClassVar[str] = "skeleton.json"

    results: tuple[CheckResult, ...]
    baselines: dict[str, dict[str, float]]
    """Baseline name → metrics on the test split; carried to the gate."""

    @property
    def unmeasured(self) -> tuple[CheckResult, ...]:
        """The checks that apply and could not be made."""
        return tuple(result for result in self.results if result.is_unmeasured)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """The failed checks that no waiver covers."""
        return tuple(result for result in self.results if result.blocks)
