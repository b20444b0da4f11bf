"""The page of `evaluate_model`: the verdict and its evidence."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from perennial.contracts.gate import CalibrationBin, Comparison, Interval, Repeats, Serving, Verdict
from perennial.engine.evaluation.scoring import ScoredBatch
from perennial.engine.metrics.metric import Kind
from perennial.engine.metrics.probabilities import CALIBRATION_BINS
from perennial.engine.task import Task
from perennial.gate.config import GateSection
from perennial.gate.plots import add_plots
from perennial.gate.power import reach_line
from perennial.reports.charts import interval_chart, line_chart
from perennial.reports.page import Outcome, Page
from perennial.reports.verdict_card import gate_word

NONE = "none"


def write_report(
    path: Path,
    *,
    verdict: Verdict,
    gate: GateSection,
    task: Task,
    unit: str,
    scored: Mapping[str, ScoredBatch],
) -> None:
    """Write the page; `scored` has the predictions of each model on the test rows."""
    outcome: Outcome = "passed" if verdict.promote else "neutral"
    badge = gate_word(verdict)
    page = Page("Evaluate model", outcome=outcome, summary=verdict.summary, badge=badge)
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
        ("condition", "result"),
        [(reason.condition, reason.detail) for reason in verdict.reasons],
        caption="All conditions must hold.",
        outcomes=["passed" if reason.held else "failed" for reason in verdict.reasons],
    )
    _add_metrics(page, verdict, gate)
    _add_repeats(page, verdict.repeats)
    _add_power(page, verdict, unit)
    _add_slices(page, verdict)
    _add_baselines(page, verdict)
    _add_serving(page, verdict.serving)
    _add_calibration(page, verdict, task.kind)
    add_plots(page, scored, task.kind)
    if task.kind == "statistic":
        page.text("No calibration curve: the task has no predictions, only measured examples.")
    page.write(path)


def _add_calibration(page: Page, verdict: Verdict, kind: Kind) -> None:
    """Add both models' curves; the line of perfect calibration makes their axes equal."""
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
        caption="The error is the mean distance between predicted probability and observed share "
        f"in {CALIBRATION_BINS} bins of equal width.",
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
            "Above the line, probabilities are too low; below it, too high.",
        )


def _calibration_row(
    name: str, bins: Sequence[CalibrationBin], verdict: Verdict
) -> tuple[str, ...]:
    rows = sum(each.rows for each in bins)
    given = sum(each.rows * each.predicted for each in bins) / rows
    came_true = sum(each.rows * each.observed for each in bins) / rows
    error = verdict.expected_calibration_errors[name]
    return name, f"{error:.4f}", f"{given:.4f}", f"{came_true:.4f}", f"{given - came_true:+.4f}"


def _add_metrics(page: Page, verdict: Verdict, gate: GateSection) -> None:
    page.heading("Metrics on the test split")
    if all(comparison.champion is None for comparison in verdict.comparisons):
        page.table(
            ("metric", "challenger"),
            [_row(comparison)[:2] for comparison in verdict.comparisons],
            caption="No champion was compared with.",
        )
        return
    page.table(
        ("metric", "challenger", "champion", "improvement", "lower bound", "upper bound"),
        [_row(comparison) for comparison in verdict.comparisons],
        caption="A positive improvement means that the challenger is better, whatever the metric's "
        "direction.",
    )
    _add_reference_tests(page, verdict.comparisons, gate.confidence)
    thresholds = {metric: -limit for metric, limit in gate.max_regression.items()}
    decisive = verdict.comparisons[0].metric
    thresholds[decisive] = gate.least_improvement
    for comparison in verdict.comparisons:
        if comparison.improvement is not None:
            confidence = comparison.confidence or gate.confidence
            page.figure(
                interval_chart(
                    {comparison.metric: _bar(comparison.improvement)},
                    x_label=f"improvement in {comparison.metric}",
                    threshold=thresholds.get(comparison.metric),
                ),
                f"Each bound holds with {100 * confidence:.4g}% confidence."
                + (
                    " This improvement decides nothing."
                    if comparison.metric not in thresholds
                    else " The lower bound must be above the threshold."
                    if comparison.metric == decisive
                    else " The lower bound must reach the threshold."
                ),
            )


def _add_repeats(page: Page, repeats: Repeats | None) -> None:
    if repeats is None:
        return
    page.heading("Repeated tests")
    page.values(
        {
            "earlier challengers of this champion on these test days": f"{repeats.earlier:,}",
            "weighted by shared days": f"{repeats.worth:.3g}",
            "significance level of this test": f"{repeats.level:.3g}",
        }
    )
    page.text(
        "Each further challenger that is tested on the same days has a smaller probability of a "
        "false promotion. New test days start again at the full level."
    )


def _add_power(page: Page, verdict: Verdict, unit: str) -> None:
    decisive, reach = verdict.comparisons[0], verdict.reach
    if reach is None:
        return
    page.heading("Statistical power")
    page.text(f"{reach_line(reach, decisive.metric, unit)}.")
    if decisive.luck:
        page.text(
            f"The improvement excludes {decisive.luck:+.2g} of the metric's difference: label "
            f"imbalance of the test {unit}s, whose labels differ from those of their whole periods."
        )


def _add_reference_tests(page: Page, comparisons: Sequence[Comparison], confidence: float) -> None:
    rows, agreeing = [], []
    for comparison in comparisons:
        test, improvement = comparison.reference_test, comparison.improvement
        if test is None or improvement is None:
            continue
        ours = improvement.low > 0
        agrees = ours == test.is_better
        found = f"{_better(ours)} by blocks, {_better(test.is_better)} by rows"
        rows.append(
            (
                comparison.metric,
                test.test,
                f"{test.p_value:.2g}",
                f"both: {_better(ours)}" if agrees else found,
            )
        )
        agreeing.append(agrees)
    if rows:
        page.table(
            ("metric", "test", "p-value", "compared with the interval"),
            rows,
            caption="Reference tests: one-sided textbook tests, which assume independent rows, at "
            f"{confidence:.0%} confidence. They do not affect the decision. Where only they report "
            "an improvement, the errors of rows in one block are correlated.",
            outcomes=["passed" if agrees else "warned" for agrees in agreeing],
        )


def _better(found: bool) -> str:
    return "better" if found else "not shown to be better"


def _add_slices(page: Page, verdict: Verdict) -> None:
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
        "Bounds of each slice alone; the verdict corrects for the number of slices.",
    )
    if any(entry.found for entry in verdict.slices):
        page.text(
            "Slices of origin `found` were proposed by a search on half of the test days for "
            "groups on which the challenger is worse; their metrics are from the other half."
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


def _add_baselines(page: Page, verdict: Verdict) -> None:
    if not verdict.baselines:
        return
    metrics = [comparison.metric for comparison in verdict.comparisons]
    challenger = {entry.metric: entry.challenger for entry in verdict.comparisons}
    rows = {**verdict.baselines, "challenger": challenger}
    page.heading("Baselines")
    page.table(
        ("model", *metrics),
        [
            (name, *(f"{values[m]:.5g}" if m in values else "not measured" for m in metrics))
            for name, values in rows.items()
        ],
        caption="Measured by check_skeleton on at most skeleton.baseline_rows of these test rows.",
    )


def _add_serving(page: Page, serving: Serving | None) -> None:
    if serving is None:
        return
    page.heading("Serving")
    page.values(
        {
            "in a clean process": serving.failure
            or (f"{serving.rows:,} equal predictions" if serving.rows else NONE),
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
