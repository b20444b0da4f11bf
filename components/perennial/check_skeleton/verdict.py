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
    groups = _group_results(report)
    named = [
        f"{word}: {', '.join(groups[word])}"
        for word in ("warned", "waived", "switched off", "not measured")
        if groups[word]
    ]
    skipped = len(groups["not applicable"])
    counts = f"{len(groups['passed'])} passed" + (f", {skipped} not applicable" if skipped else "")
    return "; ".join([counts, *named])


def _group_results(report: SkeletonReport) -> dict[str, list[str]]:
    """Return word → checks; the contract may have changed a check's severity."""
    skipped = [r for r in report.results if r.outcome == "skipped"]
    warned = [r for r in report.results if r.outcome == "warned" and not r.is_unmeasured]
    return {
        "passed": [r.check for r in report.results if r.outcome == "passed"],
        "warned": [r.check for r in warned],
        "not applicable": [r.check for r in skipped if r.severity != "off"],
        "switched off": [r.check for r in report.results if r.severity == "off"],
        "not measured": [r.check for r in report.unmeasured],
        "waived": [r.check for r in report.results if r.outcome == "failed" and r.waived],
    }


def format_verdict(report: SkeletonReport) -> str:
    """Return whether the training may start, with counts, in one sentence."""
    groups, total = _group_results(report), len(report.results)
    unmeasured = groups["not measured"]
    counts = [f"{len(checks)} {word}" for word, checks in groups.items() if checks]
    if report.failures:
        counts = [each.replace("not applicable", "skipped") for each in counts]
        names = ", ".join(result.check for result in report.failures)
        verdict = "Training would waste its budget: "
        verdict += f"{len(report.failures)} of {total} checks failed ({names})"
    else:
        doubtful = groups["waived"] or groups["warned"] or unmeasured
        verdict = f"{'Training may start' if doubtful else 'Ready to train'}: "
        verdict += f"none of {total - len(unmeasured)} checks blocks training"
        if unmeasured:
            verdict += f", but {', '.join(unmeasured)} could not run"
    seconds = sum(result.seconds for result in report.results)
    verdict += "; " * bool(counts) + ", ".join(counts)
    return f"{verdict}. They took {duration(seconds)}."


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
