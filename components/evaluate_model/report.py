"""The page of `evaluate_model`: the verdict, and everything it rests on."""

from pathlib import Path

import numpy as np

from components.contracts.gate import Comparison, Interval, Verdict
from components.engine.evaluation.scoring import Scored
from components.engine.task import Task
from components.evaluate_model.config import GateSection
from components.reports.charts import interval_chart, line_chart
from components.reports.page import Outcome, Page

CALIBRATION_BINS = 10
NONE = "none"


def write_report(
    path: Path, *, verdict: Verdict, gate: GateSection, task: Task, scored: Scored, unit: str
) -> None:
    """Write the page.

    Args:
        path: The HTML file.
        verdict: What was decided.
        gate: By which section of the contract.
        task: The challenger's.
        scored: The challenger on the test rows.
        unit: What one independent block is.
    """
    outcome: Outcome = "passed" if verdict.promote else "neutral"
    page = Page("Evaluate model", outcome=outcome, summary=verdict.summary)
    page.values(
        {
            "champion": f"version {verdict.champion_version}"
            if verdict.champion_version
            else "none",
            "test rows": f"{verdict.test_rows:,}",
            f"independent blocks ({unit}s)": f"{verdict.test_blocks:,}",
        }
    )
    for note in verdict.notes:
        page.text(f"Note: {note}.")
    page.table(
        ("condition", "what was found"),
        [(reason.condition, reason.detail) for reason in verdict.reasons],
        caption="All conditions must hold.",
        outcomes=["passed" if reason.held else "failed" for reason in verdict.reasons],
    )
    _metrics(page, verdict, gate)
    _slices(page, verdict)
    _baselines(page, verdict)
    if task.kind == "binary":
        page.heading("Calibration")
        page.figure(
            line_chart(
                {"challenger": calibration(scored), "perfect": [(0.0, 0.0), (1.0, 1.0)]},
                x_label="predicted probability",
                y_label="observed share",
            ),
            f"Test rows in {CALIBRATION_BINS} bins of equal size, by predicted probability.",
        )
    if task.kind == "statistic":
        page.text("There is no calibration curve: this task measures examples, it predicts none.")
    page.write(path)


def calibration(scored: Scored) -> list[tuple[float, float]]:
    """Mean prediction and observed share of bins with equally many rows."""
    order = np.argsort(scored.predictions, kind="stable")
    bins = [part for part in np.array_split(order, CALIBRATION_BINS) if len(part)]
    return [
        (float(scored.predictions[part].mean()), float(scored.labels[part].mean())) for part in bins
    ]


def _metrics(page: Page, verdict: Verdict, gate: GateSection) -> None:
    page.heading("Metrics on the test split")
    page.table(
        ("metric", "challenger", "champion", "improvement", "lower bound", "upper bound"),
        [_row(comparison) for comparison in verdict.comparisons],
        caption="A positive improvement means that the challenger is better, whatever the metric's "
        "direction.",
    )
    for comparison in verdict.comparisons:
        if comparison.improvement is not None:
            page.figure(
                interval_chart(
                    {comparison.metric: _bar(comparison.improvement)},
                    x_label=f"improvement in {comparison.metric}",
                ),
                f"Each bound holds with {gate.confidence:.0%} confidence.",
            )


def _slices(page: Page, verdict: Verdict) -> None:
    if not verdict.slices:
        return
    page.heading("Slices")
    named = {f"{entry.column} = {entry.value}": entry for entry in verdict.slices}
    metric = verdict.comparisons[0].metric
    page.figure(
        interval_chart(
            {name: _bar(entry.improvement) for name, entry in named.items()},
            x_label=f"improvement in {metric}",
        ),
        "Bounds of each slice by itself; the verdict corrects for the number of slices.",
    )
    page.table(
        ("slice", "rows", "challenger", "champion", "improvement"),
        [
            (
                name,
                f"{entry.rows:,}",
                f"{entry.challenger:.5g}",
                f"{entry.champion:.5g}",
                f"{entry.improvement.estimate:+.3g}",
            )
            for name, entry in named.items()
        ],
        outcomes=["failed" if entry.regressed else "passed" for entry in named.values()],
    )


def _baselines(page: Page, verdict: Verdict) -> None:
    if not verdict.baselines:
        return
    metrics = [comparison.metric for comparison in verdict.comparisons]
    challenger = {entry.metric: entry.challenger for entry in verdict.comparisons}
    rows = {**verdict.baselines, "challenger": challenger}
    page.heading("Baselines")
    page.table(
        ("model", *metrics),
        [
            (name, *(f"{values[m]:.5g}" if m in values else NONE for m in metrics))
            for name, values in rows.items()
        ],
        caption="Baselines were measured by check_skeleton on the same test split.",
    )


def _row(comparison: Comparison) -> tuple[str, ...]:
    improvement = comparison.improvement
    bounds = (
        (NONE, NONE, NONE)
        if improvement is None
        else tuple(
            f"{value:+.3g}" for value in (improvement.estimate, improvement.low, improvement.high)
        )
    )
    champion = NONE if comparison.champion is None else f"{comparison.champion:.5g}"
    return (comparison.metric, f"{comparison.challenger:.5g}", champion, *bounds)


def _bar(improvement: Interval) -> tuple[float, float, float]:
    return improvement.low, improvement.estimate, improvement.high
