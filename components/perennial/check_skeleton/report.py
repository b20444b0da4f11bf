"""The report page: advice, waivers and severities, the model's inputs, figures, baselines."""

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
"""Key of evidence about the first loss → its name on the scale."""
# Checks that compare whole examples; all others with a map compare positions in a sequence.
COMPARES_EXAMPLES = "example_independence"

Rows: TypeAlias = Sequence[Sequence[JsonValue]]

NOTHING = "not measured"


def page_of(
    report: SkeletonReport, preview: Preview, notes: Sequence[str], tolerance: float
) -> Page:
    """Build the page.

    Args:
        report: The results.
        preview: The examples right before the model.
        notes: About the baselines.
        tolerance: How far from theory the first loss may lie, as a share of it.
    """
    results = sorted(report.results, key=lambda r: _WORST_FIRST.index(_weight(r)))
    page = Page("Sanity checks", outcome=_weight_of_all(report), summary=verdict_of(report))
    _show_findings(page, results)
    _show_agreements(page, results)
    _show_examples(page, preview)
    _show_first_loss(page, results, tolerance)
    _show_figures(page, results)
    _show_baselines(page, report, notes)
    page.heading("Passed and skipped checks")
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
    page.folded_table("Sources of the checks", ("check", "source"), sources)
    return page


def _show_findings(page: Page, results: Sequence[CheckResult]) -> None:
    """Show advice for each finding, worst first."""
    page.heading("What to do")
    findings = [r for r in results if r.outcome in ("failed", "warned") or r.is_unmeasured]
    if not findings:
        page.text("Nothing: every applicable check passed.")
        return
    page.table(
        ("check", "what to look at"),
        # One cell of three lines: side by side they would not fit a narrow screen.
        [
            (r.check, f"{r.hint}\nmeasured: {r.measured or NOTHING}\nexpected: {_expectation(r)}")
            for r in findings
        ],
        outcomes=[_weight(result) for result in findings],
    )


def _show_agreements(page: Page, results: Sequence[CheckResult]) -> None:
    rows = [(result.check, each) for result in results for each in agreements(result)]
    if rows:
        page.table(("check", "set by the contract"), rows, caption="Waivers and severities")


def _show_examples(page: Page, preview: Preview) -> None:
    page.heading("Inputs right before the model")
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
    """Show the first loss between theory and the best loss of a constant output."""
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
        page.heading("Figures of the checks")
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
    """Return a number of the evidence; null, which stands for a non-finite one, becomes NaN."""
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
