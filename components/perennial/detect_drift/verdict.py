"""Verdict: the drift report, with persistence of alarms and notes on what was not judged."""

from collections.abc import Sequence
from datetime import timedelta

from perennial.contracts.monitoring import DriftReport, Reference, WindowDrift
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.detect_drift.performance import MIN_LOSS_BLOCKS, LossLimit
from perennial.detect_drift.reference import Measured
from perennial.detect_drift.windows import Chosen, newest_streak


def conclude(
    champion_version: str,
    current: Snapshot,
    reference: Reference,
    *,
    chosen: Chosen,
    windows: tuple[WindowDrift, ...],
    measured: Measured | None,
    limit: LossLimit | None,
    triggers: TriggersSection,
) -> DriftReport:
    """Return the report of a comparison.

    Drift and decay must persist: the newest `windows_in_a_row` windows must alarm. A stream that
    drifted and returned to the reference needs no retraining. Windows with too few labels neither
    break nor extend a run of decayed ones.
    """
    unjudged = chosen.reason_to_skip(triggers)
    new_time = timedelta(0)
    if current.time_max is not None and reference.time_max is not None:
        new_time = max(new_time, current.time_max - reference.time_max)
    judged = [window.decayed for window in windows if window.loss_z_score is not None]
    notes = [unjudged] if unjudged else []
    notes += [*chosen.notes, *_notes(measured, windows, len(judged), reference, limit)]
    return DriftReport(
        champion_version=champion_version,
        calibration="none" if unjudged else "blocks",
        windows=windows,
        drifted=newest_streak([w.alarmed for w in windows]) >= triggers.windows_in_a_row,
        decayed=newest_streak(judged) >= triggers.windows_in_a_row,
        new_rows=max(0, current.rows - reference.rows),
        new_days=new_time / timedelta(days=1),
        notes=tuple(dict.fromkeys(notes)),
    )


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
    """Return the finding with its numbers as one sentence."""
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


def _notes(
    measured: Measured | None,
    windows: Sequence[WindowDrift],
    num_with_loss: int,
    reference: Reference,
    limit: LossLimit | None,
) -> list[str]:
    if not windows:
        return []
    notes = [*measured.notes] if measured is not None else []
    if limit is None:
        notes.append(
            f"performance was not judged: the champion has {len(reference.performance)} held-out "
            f"blocks; at least {MIN_LOSS_BLOCKS} full ones are needed"
        )
    elif num_with_loss < len(windows):
        notes.append(
            f"{len(windows) - num_with_loss} of {len(windows)} windows have too few labels"
        )
    return notes


def _finding(
    what: str,
    alarms: Sequence[bool],
    windows: Sequence[WindowDrift],
    persistent: bool,
    triggers: TriggersSection,
) -> str:
    streak = newest_streak(alarms)
    if persistent:
        return f"{what} in the newest {streak} windows, since {windows[-streak].title}"
    if not any(alarms):
        return f"no {what} in {len(windows)} windows"
    return (
        f"{what} in {sum(alarms)} of {len(windows)} windows, but not in the newest "
        f"{triggers.windows_in_a_row} in a row"
    )
