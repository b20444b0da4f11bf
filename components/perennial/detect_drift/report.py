"""The drift report: drift by column and window, and the champion's loss."""

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from scipy import stats

from perennial.contracts.block import Block
from perennial.contracts.monitoring import ColumnDrift, DriftReport, Reference, WindowDrift
from perennial.contracts.triggers import TriggersSection
from perennial.detect_drift.reference import Measured
from perennial.detect_drift.two_sample import Profile
from perennial.detect_drift.windows import newest_streak
from perennial.reports.charts import bar_chart, line_chart
from perennial.reports.page import Outcome, Page
from perennial.reports.text import counted

if TYPE_CHECKING:  # it imports PyTorch
    from perennial.detect_drift.performance import LossLimit

AnyBlock = TypeVar("AnyBlock", bound=Block)
SHOWN_COLUMNS = 6
DRAWN_COLUMNS = 3
DRAWN_CATEGORIES = 15
STATISTICS = {
    "kolmogorov_smirnov": "largest distance of the distributions",
    "total_variation": "share of rows in other categories",
    "null_share": "change of the null share",
    "new_values": "share of rows with values that the reference does not contain",
    "dependence": "change of the dependence between columns",
    "label_mean": "change of the label's mean (information)",
}


def scalars_of(found: DriftReport) -> dict[str, float]:
    """Return the report's scalars for dashboards."""
    return {
        "drifted": float(found.drifted),
        "decayed": float(found.decayed),
        "windows": float(len(found.windows)),
        "alarmed_windows": float(sum(window.alarmed for window in found.windows)),
        "largest_z_score": max((window.max_z_score for window in found.windows), default=0.0),
        "new_rows": float(found.new_rows),
    }


def summary_of(report: DriftReport, triggers: TriggersSection) -> str:
    """Return the finding with its numbers; first that nothing has changed, if so."""
    since = report.unchanged_since
    unchanged = f"Nothing new since {since:%Y-%m-%d %H:%M} UTC. " if since else ""
    return unchanged + _summary(report, triggers)


def _summary(report: DriftReport, triggers: TriggersSection) -> str:
    if not report.champion_version:
        return "No champion yet: there is nothing to compare with."
    windows = report.windows
    if report.calibration == "none":
        drift = f"drift not judged: {report.notes[0]}"
        if not windows:
            return f"Not judged: {report.notes[0]}."
    else:
        drift = _finding("drift", [w.alarmed for w in windows], windows, report.drifted, triggers)
    judged = [window for window in windows if window.loss_z_score is not None]
    if not judged:
        decay = "performance not judged"
    else:
        alarms = [window.decayed for window in judged]
        decay = _finding("performance decay", alarms, judged, report.decayed, triggers)
    return f"{drift[0].upper()}{drift[1:]}; {decay}."


def _finding(
    what: str,
    alarms: Sequence[bool],
    windows: Sequence[WindowDrift],
    persistent: bool,
    triggers: TriggersSection,
) -> str:
    streak = newest_streak(alarms)
    if persistent:
        return f"{what} in the newest {counted(streak, 'window')}, since {windows[-streak].title}"
    if not any(alarms):
        return f"no {what} in {counted(len(windows), 'window')}"
    return (
        f"{what} in {sum(alarms)} of {counted(len(windows), 'window')}, but not in the newest "
        f"{triggers.windows_in_a_row} in a row"
    )


def write_report(
    target: Path,
    report: DriftReport,
    triggers: TriggersSection,
    *,
    measured: Measured | None = None,
    reference: Reference | None = None,
    limit: "LossLimit | None" = None,
) -> None:
    """Write the page."""
    page = Page("Detect drift", outcome=_outcome(report), summary=summary_of(report, triggers))
    page.values(
        {
            "champion": report.champion_version or "none",
            "new rows": f"{report.new_rows:,}",
            "new days": f"{report.new_days:.1f}"
            if reference is None or reference.time_max
            else "-",
            "windows": len(report.windows),
            "thresholds from": report.calibration,
        }
    )
    if report.notes:
        page.text("\n".join(f"Note: {note}." for note in report.notes))
    if reference is not None and report.windows:
        if measured is not None:
            _windows_part(page, report)
            _columns_part(page, measured)
        _loss_part(page, report, reference, limit)
    page.write(target)


def _outcome(report: DriftReport) -> Outcome:
    if any(window.alarmed or window.decayed for window in report.windows):
        return "warned"  # the loss is judged also where drift is not
    return "neutral" if report.calibration == "none" else "passed"


def _windows_part(page: Page, report: DriftReport) -> None:
    names = _most_moved(report.windows)[:SHOWN_COLUMNS]
    header = ["window", "rows", "largest z", "threshold", "loss", *names]
    rows = [
        [
            window.title,
            f"{window.rows:,}",
            f"{window.max_z_score:.1f}",
            f"{window.threshold:.1f}",
            "-" if window.loss is None else f"{window.loss:.4f}",
            *(_cell(window, name) for name in names),
        ]
        for window in report.windows
    ]
    outcomes: list[Outcome] = [
        "warned" if window.alarmed or window.decayed else "passed" for window in report.windows
    ]
    page.heading("Windows")
    page.table(
        header, rows, caption="Effect of each column, 0 to 1; ! marks an alarm.", outcomes=outcomes
    )


def _most_moved(windows: Sequence[WindowDrift]) -> list[str]:
    """Return columns by number of alarms, then by the largest z-score."""
    alarms: dict[str, int] = {}
    largest: dict[str, float] = {}
    for window in windows:
        for column in window.columns:
            alarms[column.column] = alarms.get(column.column, 0) + column.alarmed
            largest[column.column] = max(largest.get(column.column, 0.0), column.z_score)
    return sorted(largest, key=lambda name: (-alarms[name], -largest[name]))


def _cell(window: WindowDrift, name: str) -> str:
    found = [column for column in window.columns if column.column == name]
    if not found:
        return "-"
    strongest = max(found, key=lambda column: (column.alarmed, column.effect))
    return f"{strongest.effect:.3f}{' !' if strongest.alarmed else ''}"


def _columns_part(page: Page, measured: Measured) -> None:
    newest = measured.windows[-1]
    page.heading(
        f"The newest window, from {newest.title} on"
        if newest.start
        else f"The newest window, {newest.title}"
    )
    by_key = {(profile.column, profile.statistic): profile for profile in measured.profiles}
    shown = [by_key[column.column, column.statistic] for column in newest.columns]
    for name in _most_moved([newest])[:DRAWN_COLUMNS]:
        for profile in shown:
            if profile.column == name:
                _draw(page, profile, measured.old)
    page.table(
        ["column", "change", "effect", "z-score", "iid p", "iid p, adjusted"],
        _column_rows(newest.columns, shown, measured.old),
        caption="p-values assume independent rows, which is wrong: on most streams every quiet "
        "week is significant. They are only shown for comparison with other tools.",
        outcomes=["warned" if column.alarmed else "neutral" for column in newest.columns],
    )


def _column_rows(
    columns: Sequence[ColumnDrift], profiles: Sequence[Profile], old: slice
) -> list[list[str]]:
    p_values = [profile.iid_p_value(-1, old) for profile in profiles]
    adjusted = stats.false_discovery_control(p_values) if p_values else []
    return [
        [
            column.column,
            STATISTICS[column.statistic],
            f"{column.effect:.3f}",
            f"{column.z_score:.1f}",
            *(
                ("-", "-")  # a block mean has no rows to count
                if column.statistic in ("label_mean", "dependence")
                else (f"{p_value:.2g}", f"{adjusted_value:.2g}")
            ),
        ]
        for column, p_value, adjusted_value in zip(columns, p_values, adjusted, strict=True)
    ]


def _draw(page: Page, profile: Profile, old: slice) -> None:
    before, now = profile.pooled(old), profile.values[-1]
    if profile.statistic == "kolmogorov_smirnov":
        half = len(profile.points)
        numbers = [float(point) for point in profile.points]
        lines = {
            "reference": list(zip(numbers, before[half:].tolist(), strict=True)),
            "window": list(zip(numbers, now[half:].tolist(), strict=True)),
        }
        chart = line_chart(lines, x_label=profile.column, y_label="cumulative share")
        page.figure(chart, f"{profile.column}: cumulative distribution")
    elif profile.statistic == "total_variation":
        change = now - before
        order = np.argsort(-np.abs(change))[:DRAWN_CATEGORIES]
        bars = {str(profile.points[index]): float(change[index]) for index in order}
        page.figure(
            bar_chart(bars, x_label="change of share"), f"{profile.column}: category changes"
        )


def _loss_part(
    page: Page, report: DriftReport, reference: Reference, limit: "LossLimit | None"
) -> None:
    known = [window for window in report.windows if window.loss is not None]
    if not known:
        return
    held_out = _along(reference.performance, known[0], -len(reference.performance))
    lines = {
        "held out": [(x, block.loss) for x, block in held_out],
        "new": [(x, float(window.loss or 0.0)) for x, window in _along(known, known[0])],
    }
    page.heading("The champion's loss")
    if limit is not None:
        ends = [x for line in lines.values() for x, _ in line]
        lines["limit"] = [(min(ends), limit.limit), (max(ends), limit.limit)]
        page.text(
            f"{limit.blocks} held-out blocks: mean {limit.mean:.4f}, standard deviation "
            f"{limit.spread:.4f}. A window above {limit.limit:.4f} counts as decayed."
        )
    chart = line_chart(
        lines,
        x_label=f"days since {known[0].title}"
        if known[0].start
        else f"blocks since {known[0].title}",
        y_label="mean loss",
        marks={"first new window": 0.0},
    )
    page.figure(chart, "Mean loss on labelled rows, block by block")


def _along(
    blocks: Sequence[AnyBlock], origin: Block, first: int = 0
) -> list[tuple[float, AnyBlock]]:
    """Return each block with its x coordinate: days since the origin, or its number."""
    return [
        (
            (block.start - origin.start) / timedelta(days=1)
            if block.start and origin.start
            else float(number),
            block,
        )
        for number, block in enumerate(blocks, first)
    ]
