"""The page of `evaluate_model`: the verdict, and everything it rests on."""

from collections.abc import Sequence
from pathlib import Path

from perennial.contracts.gate import (
    CalibrationBin,
    Comparison,
    Interval,
    Repeats,
    Serving,
    Verdict,
)
from perennial.engine.metrics.metric import Kind
from perennial.engine.metrics.probabilities import CALIBRATION_BINS
from perennial.engine.task import Task
from perennial.gate.config import GateSection
from perennial.gate.power import reach_line
from perennial.reports.charts import interval_chart, line_chart
from perennial.reports.page import Outcome, Page

NONE = "none"


def write_report(path: Path, *, verdict: Verdict, gate: GateSection, task: Task, unit: str) -> None:
    """Write the page.

    Args:
        path: The HTML file.
        verdict: What was decided.
        gate: By which section of the contract.
        task: The challenger's.
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
    _repeats(page, verdict.repeats)
    _reach(page, verdict, unit)
    _slices(page, verdict)
    _baselines(page, verdict)
    _serving(page, verdict.serving)
    _calibration(page, verdict, task.kind)
    if task.kind == "statistic":
        page.text("There is no calibration curve: this task measures examples, it predicts none.")
    page.write(path)


def _calibration(page: Page, verdict: Verdict, kind: Kind) -> None:
    """Both models' curves beside each other; the line of perfect ones makes their axes equal."""
    curves = {"challenger": verdict.calibration, "champion": verdict.champion_calibration}
    drawn = {name: bins for name, bins in curves.items() if bins}
    if not drawn:
        return
    of_answer = kind == "multiclass"
    given = "probability of the answer" if of_answer else "probability of the second class"
    came_true = "share of right answers" if of_answer else "share of the second class"
    page.heading("Calibration")
    page.table(
        ("model", "expected calibration error", f"mean {given}", came_true, "too high by"),
        [_calibration_row(name, bins, verdict) for name, bins in drawn.items()],
        caption="Are the models as sure as they are right? The error is the mean distance of the "
        f"two in {CALIBRATION_BINS} bins of equal width.",
    )
    for name, bins in drawn.items():
        page.figure(
            line_chart(
                {
                    name: [(each.predicted, each.observed) for each in bins],
                    "perfect": [(0.0, 0.0), (1.0, 1.0)],
                },
                x_label=given,
                y_label=came_true,
            ),
            f"The {name}, error {verdict.expected_calibration_errors[name]:.2g}: test rows in "
            f"{len(bins)} bins of {min(each.rows for each in bins):,} or more, by probability. "
            "Above the line probabilities are too low, below it too high.",
        )


def _calibration_row(
    name: str, bins: Sequence[CalibrationBin], verdict: Verdict
) -> tuple[str, ...]:
    rows = sum(each.rows for each in bins)
    given = sum(each.rows * each.predicted for each in bins) / rows
    came_true = sum(each.rows * each.observed for each in bins) / rows
    error = verdict.expected_calibration_errors[name]
    return name, f"{error:.4f}", f"{given:.4f}", f"{came_true:.4f}", f"{given - came_true:+.4f}"


def _metrics(page: Page, verdict: Verdict, gate: GateSection) -> None:
    page.heading("Metrics on the test split")
    page.table(
        ("metric", "challenger", "champion", "improvement", "lower bound", "upper bound"),
        [_row(comparison) for comparison in verdict.comparisons],
        caption="A positive improvement means that the challenger is better, whatever the metric's "
        "direction.",
    )
    _second_opinions(page, verdict.comparisons, gate.confidence)
    for comparison in verdict.comparisons:
        if comparison.improvement is not None:
            confidence = comparison.confidence or gate.confidence
            page.figure(
                interval_chart(
                    {comparison.metric: _bar(comparison.improvement)},
                    x_label=f"improvement in {comparison.metric}",
                ),
                f"Each bound holds with {100 * confidence:.4g}% confidence.",
            )


def _repeats(page: Page, repeats: Repeats | None) -> None:
    if repeats is None:
        return
    page.heading("Repeated tests")
    page.values(
        {
            "earlier challengers of this champion on these test days": f"{repeats.earlier:,}",
            "counted by the days they share": f"{repeats.worth:.3g}",
            "level of this test": f"{repeats.level:.3g}",
        }
    )
    page.text(
        "Each further challenger that is tested on the same days has a smaller chance of being "
        "promoted by luck. Days that have not judged this champion before start again."
    )


def _reach(page: Page, verdict: Verdict, unit: str) -> None:
    decisive, reach = verdict.comparisons[0], verdict.reach
    if reach is None:
        return
    page.heading("What this test could find")
    page.text(f"{reach_line(reach, decisive.metric, unit)}.")
    if decisive.luck:
        page.text(
            f"The improvement leaves out {decisive.luck:+.2g} of the figures' difference: the test "
            f"{unit}s' labels differ from those of the whole of their periods, and on other labels "
            "the difference is another."
        )


def _second_opinions(page: Page, comparisons: Sequence[Comparison], confidence: float) -> None:
    rows, agreeing = [], []
    for comparison in comparisons:
        opinion, improvement = comparison.second_opinion, comparison.improvement
        if opinion is None or improvement is None:
            continue
        ours = improvement.low > 0
        agrees = ours == opinion.says_better
        found = f"{_better(ours)} by whole blocks, {_better(opinion.says_better)} by single rows"
        rows.append(
            (
                comparison.metric,
                opinion.test,
                f"{opinion.p_value:.2g}",
                f"both say {_better(ours)}" if agrees else found,
            )
        )
        agreeing.append(agrees)
    if rows:
        page.table(
            ("metric", "test", "p-value", "beside the interval"),
            rows,
            caption="Second opinions: textbook tests, one-sided, that take rows for independent. "
            f"Better is said at {confidence:.0%} confidence. They decide nothing: where they are "
            "surer than the interval, rows of one block err together.",
            outcomes=["passed" if agrees else "warned" for agrees in agreeing],
        )


def _better(found: bool) -> str:
    return "better" if found else "not shown to be better"


def _slices(page: Page, verdict: Verdict) -> None:
    if not verdict.slices:
        return
    page.heading("Slices")
    named = {entry.title: entry for entry in verdict.slices}
    metric = verdict.comparisons[0].metric
    page.figure(
        interval_chart(
            {name: _bar(entry.improvement) for name, entry in named.items()},
            x_label=f"improvement in {metric}",
        ),
        "Bounds of each slice by itself; the verdict corrects for the number of slices.",
    )
    if any(entry.found for entry in verdict.slices):
        page.text(
            "Slices marked as found were proposed by a search of half of the test days for groups "
            "on which the challenger does badly; their figures are from the other half."
        )
    page.table(
        ("slice", "origin", "rows", "challenger", "champion", "improvement"),
        [
            (
                name,
                "found" if entry.found else "declared",
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


def _serving(page: Page, serving: Serving | None) -> None:
    if serving is None:
        return
    page.heading("Serving")
    page.values(
        {
            "in a clean process": serving.failure or f"{serving.rows:,} rows predicted alike",
            "size": f"{serving.megabytes:.3g} MB",
            "one row": f"{serving.milliseconds:.3g} ms" if serving.milliseconds else NONE,
            "one row, the champion": f"{serving.champion_milliseconds:.3g} ms"
            if serving.champion_milliseconds
            else "not timed",
            "loading": f"{serving.loading_seconds:.2g} s" if serving.loading_seconds else NONE,
        }
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
