"""Verdict: the summary, verdict and error of all results; the evidence that is drawn."""

from collections.abc import Iterator

from perennial.contracts.errors import BadTaskError
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.reports.text import duration

CURVES = "curves"
"""Evidence under this key is drawn as lines: curve's name → points (step, loss)."""
PREDICTION_PATHS = "prediction_paths"
"""Drawn as lines: example's name → points (step, prediction)."""
DEPENDENCIES = "dependencies"
"""Drawn as a map: by output, by input, how much the one depends on the other, from 0 to 1."""


def summarise(report: SkeletonReport) -> str:
    """Return the findings in one sentence."""
    if report.failures:
        names = ", ".join(result.check for result in report.failures)
        return f"{len(report.failures)} of {len(report.results)} checks failed: {names}"
    exceptions = {
        "warned": [r.check for r in report.results if r.outcome == "warned"],
        "waived": [r.check for r in report.results if r.outcome == "failed"],
        "switched off": [r.check for r in report.results if r.severity == "off"],
        "not measured": [r.check for r in report.unmeasured],
    }
    named = [f"{word}: {', '.join(checks)}" for word, checks in exceptions.items() if checks]
    passed = sum(result.outcome == "passed" for result in report.results)
    counts = [f"{passed} passed"]
    if skipped := _count_inapplicable(report):
        counts.append(f"{skipped} not applicable")
    return "; ".join([", ".join(counts), *named])


def _count_inapplicable(report: SkeletonReport) -> int:
    """Count the skipped checks that could have run and were not switched off."""
    return sum(
        result.outcome == "skipped" and not result.is_unmeasured and result.severity != "off"
        for result in report.results
    )


def format_verdict(report: SkeletonReport) -> str:
    """Return whether the training may start, with counts, in one sentence."""
    outcomes = [result.outcome for result in report.results]
    unmeasured = [result.check for result in report.unmeasured]
    numbers = {
        "passed": outcomes.count("passed"),
        "warned": outcomes.count("warned"),
        "skipped" if report.failures else "not applicable": _count_inapplicable(report),
        "switched off": sum(result.severity == "off" for result in report.results),
        "not measured": len(unmeasured),
    }
    counts = [f"{count} {word}" for word, count in numbers.items() if count]
    waived = sum(r.outcome == "failed" and bool(r.waived) for r in report.results)
    counts += [f"{waived} waived"] if waived else []
    failed = len(report.failures)
    if failed:
        names = ", ".join(result.check for result in report.failures)
        verdict = f"Training would waste its budget: {failed} of {len(outcomes)} checks failed "
        verdict += f"({names})"
    else:
        doubtful = waived or "warned" in outcomes or unmeasured
        verdict = f"{'Training may start' if doubtful else 'Ready to train'}: "
        made = len(outcomes) - len(unmeasured)
        verdict += f"none of {made} checks blocks training"
        if unmeasured:
            verdict += f", but {', '.join(unmeasured)} could not run"
    seconds = sum(result.seconds for result in report.results)
    return f"{verdict}; {', '.join(counts)}. They took {duration(seconds)}."


def list_contract_changes(result: CheckResult) -> Iterator[str]:
    """Return what the contract changes about a result: another severity, a waiver."""
    severities = {
        "off": "switched off",
        "warn": "failed, counted as a warning",
        "fail": "warned, counted as a failure",
    }
    if result.severity:
        yield severities[result.severity]
    if result.is_idly_waived:
        yield f"its waiver is not needed, remove it: the check did not fail ({result.waived})"
    elif result.waived:
        yield f"waived: {result.waived}"


def make_error(report: SkeletonReport) -> BadTaskError:
    """Return the error that stops the run: each failure with what to look at."""
    lines = [
        f"{result.check}: {result.measured}; expected {result.expected}. {result.hint}"
        for result in report.failures
    ]
    return BadTaskError(
        f"the task failed the sanity checks: {summarise(report)}",
        evidence="\n            ".join(lines),
        action="fix the task; if a failure is expected in this project, add it to "
        "[skeleton.waivers] with the reason",
    )
