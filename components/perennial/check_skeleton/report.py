"""The report page: what to do, what the contract decided, what the model gets, what was seen."""

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias, cast

from pydantic import JsonValue

from perennial.check_skeleton.input_preview import Preview
from perennial.check_skeleton.verdict import (
    CURVES,
    DEPENDENCIES,
    PREDICTION_PATHS,
    agreements,
    verdict_of,
)
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.reports.charts import gauge_chart, line_chart
from perennial.reports.heat_map import heat_map
from perennial.reports.page import Outcome, Page

_WORST_FIRST: Sequence[Outcome] = ("failed", "warned", "passed", "neutral")
GAUGED = MappingProxyType(
    {"theory": "theory", "initial_loss": "measured", "best_constant": "best constant"}
)
"""Evidence about the first loss → its name on the scale."""
# Checks that compare whole examples; all others with a map compare positions in a sequence.
COMPARES_EXAMPLES = "example_independence"

Rows: TypeAlias = Sequence[Sequence[JsonValue]]

NOTHING = "not measured"


def page_of(
    report: SkeletonReport, preview: Preview, notes: Sequence[str], tolerance: float
) -> Page:
    """The page.

    Args:
        report: What was found.
        preview: The examples right before the model.
        notes: About the baselines.
        tolerance: How far from theory the first loss may lie, as a share of it.
    """
    results = sorted(report.results, key=lambda r: _WORST_FIRST.index(_weight(r)))
    page = Page("Check skeleton", outcome=_weight_of_all(report), summary=verdict_of(report))
    _tell_findings(page, results)
    _tell_agreements(page, results)
    _show_examples(page, preview)
    _show_first_loss(page, results, tolerance)
    _show_figures(page, results)
    _show_baselines(page, report, notes)
    page.heading("The rest")
    passed = [r for r in results if r.outcome == "passed"]
    page.folded_table(
        f"Passed checks ({len(passed)})",
        ("check", "measured", "expected", "seconds"),
        [(r.check, r.measured, _expectation(r), f"{r.seconds:.2f}") for r in passed],
    )
    skipped = [r for r in results if r.outcome == "skipped" and not r.is_unmeasured]
    if skipped:
        page.folded_table(
            f"Skipped checks ({len(skipped)})",
            ("check", "why"),
            [(r.check, r.hint) for r in skipped],
        )
    sources = [(r.check, r.source) for r in report.results if r.source]
    page.folded_table("Where the checks come from", ("check", "source"), sources)
    return page


def _tell_findings(page: Page, results: Sequence[CheckResult]) -> None:
    """A line of advice for each finding, worst first."""
    page.heading("What to do")
    findings = [r for r in results if r.outcome in ("failed", "warned") or r.is_unmeasured]
    if not findings:
        page.text("Nothing: every check that applies has passed.")
        return
    page.table(
        ("check", "look at"),
        # One cell of three lines: side by side they would not fit a narrow screen.
        [
            (r.check, f"{r.hint}\nfound: {r.measured or NOTHING}\nhealthy: {_expectation(r)}")
            for r in findings
        ],
        outcomes=[_weight(result) for result in findings],
    )


def _tell_agreements(page: Page, results: Sequence[CheckResult]) -> None:
    rows = [(result.check, each) for result in results for each in agreements(result)]
    if rows:
        page.table(("check", "by the contract"), rows, caption="Waivers and severities")


def _show_examples(page: Page, preview: Preview) -> None:
    page.heading("Right before the model")
    if preview.pictures:
        page.figure(preview.pictures, "The first examples as the model receives them")
    if preview.augmented_pictures:
        page.figure(preview.augmented_pictures, "The same examples after augmentation")
    page.table(preview.header, preview.rows, caption="Examples decoded from their tensors")
    if preview.augmented_rows and not preview.augmented_pictures:
        page.table(preview.header, preview.augmented_rows, caption="The same after augmentation")
    page.table(
        ("tensor", "type", "shape", "min", "mean", "max"), preview.tensors, caption="Tensors"
    )


def _show_first_loss(page: Page, results: Sequence[CheckResult], tolerance: float) -> None:
    """The first loss between theory and the best that a constant output reaches."""
    evidence = {key: value for result in results for key, value in result.evidence.items()}
    values = {name: _number(evidence[key]) for key, name in GAUGED.items() if key in evidence}
    if "measured" not in values:
        return
    theory = values.get("theory", math.nan)
    band = (theory * (1 - tolerance), theory * (1 + tolerance))
    page.heading("The first loss")
    page.figure(
        gauge_chart(values, x_label="loss before the first update", band=band),
        "Shaded: theory and its tolerance. A good start lies there, or at the best constant.",
    )


def _show_figures(page: Page, results: Sequence[CheckResult]) -> None:
    figures = [figure for result in results for figure in _figures(result)]
    if figures:
        page.heading("What the checks saw")
    for drawing, caption in figures:
        page.figure(drawing, caption)


def _figures(result: CheckResult) -> Iterator[tuple[str, str]]:
    caption = f"{result.check}: {result.measured}"
    for key, label in ((CURVES, "loss"), (PREDICTION_PATHS, "prediction")):
        if key in result.evidence:
            curves = cast("Mapping[str, Rows]", result.evidence[key])
            lines = {
                name: [(_number(x), _number(y)) for x, y in points]
                for name, points in curves.items()
            }
            yield line_chart(lines, x_label="step", y_label=label), caption
    if DEPENDENCIES in result.evidence:
        rows = cast("Rows", result.evidence[DEPENDENCIES])
        cells = [[_number(value) for value in row] for row in rows]
        unit = "example" if result.check == COMPARES_EXAMPLES else "position"
        yield heat_map(cells, x_label=f"input {unit}", y_label=f"output {unit}"), caption


def _number(value: JsonValue) -> float:
    """A number of the evidence; those that were not finite are null there."""
    return float(value) if isinstance(value, int | float) else math.nan


def _show_baselines(page: Page, report: SkeletonReport, notes: Sequence[str]) -> None:
    page.heading("Baselines on the test split")
    metrics = sorted({name for scores in report.baselines.values() for name in scores})
    if report.baselines:
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


def _expectation(result: CheckResult) -> str:
    return f"{result.expected} ({result.tolerance})" if result.tolerance else result.expected


def _weight(result: CheckResult) -> Outcome:
    if result.outcome == "skipped":
        return "warned" if result.is_unmeasured else "neutral"
    return "warned" if result.outcome == "failed" and result.waived else result.outcome


def _weight_of_all(report: SkeletonReport) -> Outcome:
    weights = {_weight(result) for result in report.results}
    return next((each for each in ("failed", "warned") if each in weights), "passed")
