"""Policy: decide on retraining from drift report, past retrainings and triggers; pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from pydantic import JsonValue

from perennial.contracts.monitoring import (
    ColumnDrift,
    DriftReport,
    RetrainingDecision,
    WindowDrift,
)
from perennial.contracts.triggers import TriggersSection
from perennial.decide_retraining.state import TriggerState

TriggerName = Literal["first_model", "performance", "drift", "new_data", "schedule"]
DAY = timedelta(days=1)
SHOWN_COLUMNS = 3
SHOWN_WINDOWS = 100  # the newest ones: the evidence is a parameter of the training
SHOWN_CHARACTERS = 1_500  # of their names, which may be those of files


@dataclass(frozen=True)
class SnapshotInfo:
    """The snapshot that a training would use.

    Attributes:
        snapshot_digest: The snapshot's digest.
        data_time: Time of its newest row; None without a time column.
        rows: All of its rows.
    """

    snapshot_digest: str
    data_time: datetime | None
    rows: int


@dataclass(frozen=True)
class Finding:
    """A trigger, and whether it fires."""

    trigger: TriggerName
    holds: bool
    detail: str
    is_set: bool = True
    """Whether the contract enables this trigger."""


@dataclass(frozen=True)
class RetrainingBlock:
    """A protection against needless retrainings, and whether it blocks this one."""

    name: Literal["duplicate", "cooldown", "budget"]
    holds: bool
    detail: str


def decide(
    info: SnapshotInfo, drift: DriftReport, state: TriggerState, triggers: TriggersSection
) -> RetrainingDecision:
    """Decide whether to retrain on this snapshot.

    The first trigger that fires names the decision. Blocks may then prevent it, so that a trigger
    that keeps firing while challengers keep losing does not start one training after the other.
    """
    found = find_triggers(info, drift, state, triggers)
    fired = [finding for finding in found if finding.holds]
    reasons = [f"{finding.trigger}: {finding.detail}" for finding in fired or found]
    vetoes = [
        block for block in find_retraining_blocks(info, state, triggers) if block.holds and fired
    ]
    reasons += [f"blocked by {block.name}: {block.detail}" for block in vetoes]
    if not fired:
        watched = [finding.detail for finding in found if finding.is_set]
        summary = f"No retraining: {'; '.join(watched) or 'every trigger is off'}."
    elif vetoes:
        because = " and ".join(block.detail for block in vetoes)
        summary = f"No retraining, although {fired[0].detail}: blocked, because {because}."
    else:
        summary = f"Retrain: {fired[0].detail}."
    return RetrainingDecision(
        retrain=bool(fired) and not vetoes,
        trigger=fired[0].trigger if fired else "none",
        summary=summary,
        reasons=tuple(reasons),
        evidence=_evidence(info, drift, state),
    )


def find_triggers(
    info: SnapshotInfo, drift: DriftReport, state: TriggerState, triggers: TriggersSection
) -> tuple[Finding, ...]:
    """Return every trigger in order of priority; without a champion only the first."""
    if not drift.champion_version:
        return (Finding("first_model", True, "there is no champion yet"),)
    return (
        _after_last_retraining(_performance(drift, triggers), drift, state, triggers),
        _after_last_retraining(_drift(drift, triggers), drift, state, triggers),
        _new_data(_rows_since(info, drift, state), triggers),
        _schedule(info, _days_since(info, drift, state), triggers),
    )


def find_retraining_blocks(
    info: SnapshotInfo, state: TriggerState, triggers: TriggersSection
) -> tuple[RetrainingBlock, ...]:
    """Return every block; without a time column only the first can be measured."""
    same = [past for past in state.retrainings if past.snapshot_digest == info.snapshot_digest]
    duplicate = RetrainingBlock(
        "duplicate",
        bool(same),
        f"this snapshot was already trained on by run {same[-1].run_id}" if same else "new data",
    )
    if info.data_time is None:
        return (duplicate,)
    ages = [
        (info.data_time - past.data_time) / DAY
        for past in state.retrainings
        if past.data_time is not None
    ]
    youngest = min(ages, default=float("inf"))
    spent = sum(age < triggers.budget_days for age in ages)
    return (
        duplicate,
        RetrainingBlock(
            "cooldown",
            youngest < triggers.cooldown_days,
            f"the last retraining is {youngest:.1f} days old by data time, cooldown "
            f"{triggers.cooldown_days}",
        ),
        RetrainingBlock(
            "budget",
            spent >= triggers.max_retrainings,
            f"{spent} retrainings in {triggers.budget_days} days of data, budget "
            f"{triggers.max_retrainings}",
        ),
    )


def _performance(drift: DriftReport, triggers: TriggersSection) -> Finding:
    judged = [window for window in drift.windows if window.loss_z_score is not None]
    if not drift.decayed or not judged:
        detail = f"no persistent decay in {len(judged)} labelled windows"
        return Finding("performance", False, detail)
    newest = judged[-1]
    detail = (
        f"the champion's loss is {newest.loss:.4f}, {newest.loss_z_score:.1f} standard deviations "
        f"above its reference, since {_since(judged, 'decayed')}"
    )
    if not triggers.performance:
        return Finding("performance", False, f"{detail}; triggers.performance is off")
    return Finding("performance", True, detail)


def _drift(drift: DriftReport, triggers: TriggersSection) -> Finding:
    if not drift.drifted or not drift.windows:
        return Finding("drift", False, f"no persistent drift in {len(drift.windows)} windows")
    columns = ", ".join(
        f"{column.column} moved by {column.effect:.3f} (z {column.z_score:.1f})"
        for column in _strongest(drift.windows[-1])
    )
    detail = f"features drifted since {_since(drift.windows, 'alarmed')}: {columns}"
    if not triggers.drift:
        return Finding("drift", False, f"{detail}; triggers.drift is off")
    return Finding("drift", True, detail)


def _after_last_retraining(
    found: Finding, drift: DriftReport, state: TriggerState, triggers: TriggersSection
) -> Finding:
    """Require enough windows newer than the last retraining, since files have no age.

    Otherwise every new file would start a retraining after a challenger that lost.
    """
    windows = drift.windows
    if not found.holds or not windows[-1].files or not state.retrainings:
        return found
    last = state.retrainings[-1].decision.evidence.get("newest_window")
    seen = last.get("files") if isinstance(last, dict) else None
    known = [window for window in windows if _last_file(window) == seen]
    newer = len(windows) - 1 - windows.index(known[0]) if known else len(windows)
    if newer >= triggers.windows_in_a_row:
        return found
    detail = (
        f"{found.detail}; the last retraining included {known[0].title}, and {newer} of "
        f"{triggers.windows_in_a_row} required windows are newer"
    )
    return replace(found, holds=False, detail=detail)


def _new_data(rows: int, triggers: TriggersSection) -> Finding:
    if triggers.new_rows is None:
        return Finding(
            "new_data", False, f"{rows:,} new rows; triggers.new_rows is not set", is_set=False
        )
    detail = f"{rows:,} new rows since the last training, limit {triggers.new_rows:,}"
    return Finding("new_data", rows >= triggers.new_rows, detail)


def _schedule(info: SnapshotInfo, days: float, triggers: TriggersSection) -> Finding:
    if triggers.max_age_days is None:
        return Finding(
            "schedule", False, f"{days:.1f} days; triggers.max_age_days is not set", is_set=False
        )
    if info.data_time is None:
        return Finding(
            "schedule", False, "the age of the last training is unknown without data.time"
        )
    detail = f"the last training is {days:.1f} days old by data time, limit {triggers.max_age_days}"
    return Finding("schedule", days >= triggers.max_age_days, detail)


def _rows_since(info: SnapshotInfo, drift: DriftReport, state: TriggerState) -> int:
    """Return the new rows since the last training, even if its challenger was not promoted."""
    tried = [max(0, info.rows - past.rows) for past in state.retrainings]
    return min([drift.new_rows, *tried])


def _days_since(info: SnapshotInfo, drift: DriftReport, state: TriggerState) -> float:
    """Return the days of data since the last training, even if it was not promoted."""
    if info.data_time is None:
        return drift.new_days
    tried = [
        max(0.0, (info.data_time - past.data_time) / DAY)
        for past in state.retrainings
        if past.data_time is not None
    ]
    return min([drift.new_days, *tried])


def _since(windows: Sequence[WindowDrift], flag: Literal["alarmed", "decayed"]) -> str:
    """Return the title of the window with which the current run of windows began."""
    first = windows[-1]
    for window in reversed(windows):
        if not getattr(window, flag):
            break
        first = window
    return first.title


def _starts(windows: Sequence[WindowDrift], flag: Literal["alarmed", "decayed"]) -> list[JsonValue]:
    found = [window.title for window in windows if getattr(window, flag)]
    shown: list[JsonValue] = []
    left = SHOWN_CHARACTERS
    for name in reversed(found[-SHOWN_WINDOWS:]):
        left -= len(name)
        if left < 0:
            break
        shown.insert(0, name)
    return shown


def _last_file(window: WindowDrift) -> list[JsonValue]:
    return [file.model_dump(mode="json") for file in window.files[-1:]]


def _strongest(window: WindowDrift) -> list[ColumnDrift]:
    alarmed = [column for column in window.columns if column.alarmed]
    return sorted(alarmed, key=lambda column: -column.z_score)[:SHOWN_COLUMNS]


def _evidence(info: SnapshotInfo, drift: DriftReport, state: TriggerState) -> dict[str, JsonValue]:
    evidence: dict[str, JsonValue] = {
        "snapshot_digest": info.snapshot_digest,
        "data_time": info.data_time.isoformat() if info.data_time else None,
        "champion_version": drift.champion_version,
        "calibration": drift.calibration,
        "new_rows": drift.new_rows,
        "new_days": drift.new_days,
        "windows": len(drift.windows),
        "alarmed_windows": _starts(drift.windows, "alarmed"),
        "decayed_windows": _starts(drift.windows, "decayed"),
        "earlier_retrainings": len(state.retrainings),
    }
    if drift.windows:
        newest = drift.windows[-1]
        evidence["newest_window"] = newest.model_copy(
            update={"columns": tuple(_strongest(newest)), "files": newest.files[-1:]}
        ).model_dump(mode="json")
    return evidence
