"""What a check says, and the page on which all of them are read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from components.check_skeleton.input_preview import Preview
from components.contracts.errors import BadTaskError
from components.contracts.skeleton import CheckResult, SkeletonReport
from components.reports.charts import line_chart
from components.reports.page import Outcome, Page

CURVES = "curves"
"""Evidence under this key is drawn: curve's name → points (step, loss)."""
_ORDER: Sequence[Outcome] = ("failed", "warned", "passed", "neutral")


@dataclass(frozen=True)
class Judge:
    """Speaks for one check.

    Attributes:
        check: The check's name.
        expected: What a healthy task shows.
        source: Where the check and its threshold come from.
        tolerance: How far from `expected` is still healthy, where that is a number.
    """

    check: str
    expected: str
    source: str
    tolerance: str = ""

    def passed(self, measured: str, /, **evidence: object) -> CheckResult:
        """The task is as expected."""
        return self._result("passed", measured, "", evidence)

    def warned(self, measured: str, /, hint: str, **evidence: object) -> CheckResult:
        """A person should look, the training may start."""
        return self._result("warned", measured, hint, evidence)

    def failed(self, measured: str, /, hint: str, **evidence: object) -> CheckResult:
        """Training would waste its budget."""
        return self._result("failed", measured, hint, evidence)

    def skipped(self, reason: str) -> CheckResult:
        """The check does not apply, or cannot be made."""
        return self._result("skipped", "", reason, {})

    def _result(
        self, outcome: str, measured: str, hint: str, evidence: Mapping[str, object]
    ) -> CheckResult:
        return CheckResult.model_validate(
            {
                "check": self.check,
                "outcome": outcome,
                "measured": measured,
                "expected": self.expected,
                "tolerance": self.tolerance,
                "evidence": dict(evidence),
                "hint": hint,
                "source": self.source,
            }
        )


def summary_of(report: SkeletonReport) -> str:
    """The findings in one sentence."""
    if report.failures:
        names = ", ".join(result.check for result in report.failures)
        return f"{len(report.failures)} of {len(report.results)} checks failed: {names}"
    warned = [result.check for result in report.results if result.outcome == "warned"]
    waived = [result.check for result in report.results if result.waived]
    passed = sum(result.outcome == "passed" for result in report.results)
    text = f"{passed} of {len(report.results)} checks passed"
    text += f", look at {', '.join(warned)}" if warned else ""
    return text + (f", waived {', '.join(waived)}" if waived else "")


def error_of(report: SkeletonReport) -> BadTaskError:
    """The error that stops the run: each failure with what to look at."""
    lines = [
        f"{result.check}: {result.measured}; expected {result.expected}. {result.hint}"
        for result in report.failures
    ]
    return BadTaskError(
        f"the task cannot be trusted to learn: {summary_of(report)}",
        evidence="\n            ".join(lines),
        action="mend the task; if a failure is right for this project, name it under "
        "[skeleton.waivers] with the reason",
    )


def page_of(report: SkeletonReport, preview: Preview, notes: Sequence[str]) -> Page:
    """The report page: the tensors, the verdicts, the curves, the baselines."""
    page = Page("Check skeleton", outcome=_outcome(report), summary=summary_of(report))
    page.heading("Right before the model")
    if preview.pictures:
        page.figure(preview.pictures, "The first examples as the model receives them")
    page.table(preview.header, preview.rows, caption="Examples decoded from their tensors")
    page.table(
        ("tensor", "type", "shape", "min", "mean", "max"), preview.tensors, caption="Tensors"
    )
    page.heading("Checks")
    worst_first = sorted(report.results, key=lambda r: _ORDER.index(_row_outcome(r)))
    page.table(
        ("check", "measured", "expected", "look at"),
        [
            (r.check, r.measured or r.outcome, r.expected, f"{r.hint}{_waiver(r)}")
            for r in worst_first
        ],
        outcomes=[_row_outcome(result) for result in worst_first],
    )
    for result in report.results:
        if CURVES in result.evidence:
            curves = cast("dict[str, list[tuple[float, float]]]", result.evidence[CURVES])
            chart = line_chart(curves, x_label="step", y_label="loss")
            page.figure(chart, f"{result.check}: {result.measured}")
    page.heading("Baselines on the test split")
    metrics = sorted({name for scores in report.baselines.values() for name in scores})
    page.table(
        ("baseline", *metrics),
        [
            (name, *(f"{scores[m]:.4g}" if m in scores else "" for m in metrics))
            for name, scores in report.baselines.items()
        ],
        caption="A model that does not beat these has learned nothing from its inputs",
    )
    for note in notes:
        page.text(note)
    page.details("Where the checks come from", _sources(report.results))
    return page


def _outcome(report: SkeletonReport) -> Outcome:
    if report.failures:
        return "failed"
    doubtful = any(result.outcome in ("warned", "failed") for result in report.results)
    return "warned" if doubtful else "passed"


def _row_outcome(result: CheckResult) -> Outcome:
    if result.outcome == "skipped":
        return "neutral"
    return "warned" if result.waived else result.outcome


def _waiver(result: CheckResult) -> str:
    return f" Waived: {result.waived}" if result.waived else ""


def _sources(results: Sequence[CheckResult]) -> str:
    return "\n".join(f"{r.check} ({r.seconds:.2f} s): {r.source}" for r in results)
