"""Policy: decide on retraining from drift report, past retrainings and triggers; pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Literal

from pydantic import JsonValue

from perennial.contracts.monitoring import ColumnDrift, DriftReport, RetrainingDecision, WindowDrift
from perennial.contracts.snapshot import Snapshot, as_utc, is_future
from perennial.contracts.triggers import TriggersSection
from perennial.registry.trigger_state import Retraining, TriggerState
from perennial.reports.text import counted

TriggerName = Literal["first_model", "performance", "drift", "new_data", "schedule"]
DAY = timedelta(days=1)
SHOWN_COLUMNS = 3
SHOWN_WINDOWS = 100  # the newest ones: the evidence is a parameter of the training
SHOWN_CHARACTERS = 1_500  # of their names, which may be those of files


@dataclass(frozen=True)
class Finding:
    """A trigger, and whether it fires."""

    trigger: TriggerName
    fires: bool
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
    snapshot: Snapshot,
    drift: DriftReport,
    state: TriggerState,
    triggers: TriggersSection,
    *,
    now: datetime,
) -> RetrainingDecision:
    """Decide whether to retrain on this snapshot.

    The first trigger that fires names the decision. Blocks may then prevent it, so that a trigger
    that keeps firing while challengers keep losing does not start one training after the other.
    Rows later than `now` count as current.
    """
    found = find_triggers(snapshot, drift, state, triggers, now=now)
    fired = [finding for finding in found if finding.fires]
    reasons = [f"{finding.trigger}: {finding.detail}" for finding in fired or found]
    blocks = [
        block
        for block in find_retraining_blocks(snapshot, state, triggers, now=now)
        if block.holds and fired
    ]
    reasons += [f"blocked by {block.name}: {block.detail}" for block in blocks]
    if not fired:
        watched = [finding.detail for finding in found if finding.is_set]
        if drift.unchanged_since is not None:
            watched.insert(0, f"nothing new since {drift.unchanged_since:%Y-%m-%d %H:%M} UTC")
        summary = f"No retraining: {'; '.join(watched) or 'every trigger is off'}."
    elif blocks:
        because = " and ".join(block.detail for block in blocks)
        summary = f"No retraining, although {fired[0].detail}: blocked, because {because}."
    else:
        summary = f"Retrain: {fired[0].detail}."
    warnings = _warnings(snapshot, state, now)
    summary = " ".join([summary, *(f"WARNING: {warning}." for warning in warnings)])
    return RetrainingDecision(
        retrain=bool(fired) and not blocks,
        trigger=fired[0].trigger if fired else "none",
        summary=summary,
        reasons=(*reasons, *(f"warning: {warning}" for warning in warnings)),
        evidence=_evidence(snapshot, drift, state),
    )


def find_triggers(
    snapshot: Snapshot,
    drift: DriftReport,
    state: TriggerState,
    triggers: TriggersSection,
    *,
    now: datetime,
) -> tuple[Finding, ...]:
    """Return every trigger in order of priority; without a champion only the first."""
    if not drift.champion_version:
        return (Finding("first_model", True, "there is no champion yet"),)
    return (
        _after_last_retraining(_performance(drift, triggers), drift, state, triggers),
        _after_last_retraining(_drift(drift, triggers), drift, state, triggers),
        _new_data(snapshot, drift, state, triggers),
        _schedule(snapshot, drift, state, triggers, now=now),
    )


def find_retraining_blocks(
    snapshot: Snapshot, state: TriggerState, triggers: TriggersSection, *, now: datetime
) -> tuple[RetrainingBlock, ...]:
    """Return every block; without a time column only the first can be measured."""
    digest = snapshot.digest()
    same = [past for past in state.judged if past.snapshot_digest == digest]
    duplicate = RetrainingBlock(
        "duplicate",
        bool(same),
        f"this snapshot was already trained on by run {same[-1].run_id}" if same else "new data",
    )
    if snapshot.time_max is None:
        return (duplicate,)
    ages = _ages(snapshot, state.judged, now)
    youngest = min(ages, default=math.inf)
    last = "there was no retraining yet"
    if ages:
        last = f"the last retraining is {youngest:.1f} days old by data time"
    # What failed has used machines, too. What people started is not part of this budget.
    started = [past for past in state.retrainings if past.decision is not None]
    spent = sum(age < triggers.budget_days for age in _ages(snapshot, started, now))
    return (
        duplicate,
        RetrainingBlock(
            "cooldown",
            youngest < triggers.cooldown_days,
            f"{last}, cooldown {triggers.cooldown_days}",
        ),
        RetrainingBlock(
            "budget",
            spent >= triggers.max_retrainings,
            f"{counted(spent, 'retraining')} in {triggers.budget_days} days of data, budget "
            f"{triggers.max_retrainings}",
        ),
    )


def _performance(drift: DriftReport, triggers: TriggersSection) -> Finding:
    judged = [window for window in drift.windows if window.loss_z_score is not None]
    if not drift.decayed or not judged:
        detail = f"no persistent decay in {counted(len(judged), 'labelled window')}"
        return Finding("performance", False, detail)
    newest = judged[-1]
    detail = (
        f"the champion's loss is {newest.loss:.4f}, {newest.loss_z_score:.1f} standard deviations "
        f"above its reference, since {_since(judged, 'decayed')}"
    )
    return _unless_off("performance", detail, is_on=triggers.performance)


def _drift(drift: DriftReport, triggers: TriggersSection) -> Finding:
    if not drift.drifted or not drift.windows:
        return Finding(
            "drift", False, f"no persistent drift in {counted(len(drift.windows), 'window')}"
        )
    columns = ", ".join(
        f"{column.column} moved by {column.effect:.3f} (z {column.z_score:.1f})"
        for column in _strongest(drift.windows[-1])
    )
    detail = f"features drifted since {_since(drift.windows, 'alarmed')}: {columns}"
    return _unless_off("drift", detail, is_on=triggers.drift)


def _unless_off(trigger: Literal["performance", "drift"], detail: str, *, is_on: bool) -> Finding:
    return Finding(trigger, is_on, detail if is_on else f"{detail}; triggers.{trigger} is off")


def _after_last_retraining(
    found: Finding, drift: DriftReport, state: TriggerState, triggers: TriggersSection
) -> Finding:
    """Require enough windows newer than the last retraining, since files have no age.

    Otherwise every new file would start a retraining after a challenger that lost.
    """
    windows = drift.windows
    if not found.fires or not windows[-1].files or not state.judged:
        return found
    known = [window for window in windows if _is_included(window, state)]
    newer = len(windows) - 1 - windows.index(known[-1]) if known else len(windows)
    if newer >= triggers.windows_in_a_row:
        return found
    detail = (
        f"{found.detail}; the last retraining included {known[-1].title}, and {newer} of "
        f"{triggers.windows_in_a_row} required windows are newer"
    )
    return replace(found, fires=False, detail=detail)


def _is_included(window: WindowDrift, state: TriggerState) -> bool:
    """Whether the last training, or the decision that started it, included a window of files."""
    if state.last_trained is not None:
        return window.files[-1].sha256 in {file.sha256 for file in state.last_trained.files}
    decision = state.judged[-1].decision
    last = decision.evidence.get("newest_window") if decision else None
    newest: list[JsonValue] = [file.model_dump(mode="json") for file in window.files[-1:]]
    return isinstance(last, dict) and last.get("files") == newest


def _new_data(
    snapshot: Snapshot, drift: DriftReport, state: TriggerState, triggers: TriggersSection
) -> Finding:
    """Count rows since the last training, even if its challenger was not promoted.

    Rows of partitions that it did not have: totals fall where partitions are deleted.
    """
    past = [max(0, snapshot.rows - past.rows) for past in state.judged]
    if state.last_trained is not None:
        past = [snapshot.rows_beyond(state.last_trained)]
    rows = min([drift.new_rows, *past])
    if triggers.new_rows is None:
        detail = f"{rows:,} new rows; triggers.new_rows is not set"
        return Finding("new_data", False, detail, is_set=False)
    detail = f"{rows:,} new rows since the last training, limit {triggers.new_rows:,}"
    return Finding("new_data", rows >= triggers.new_rows, detail)


def _schedule(
    snapshot: Snapshot,
    drift: DriftReport,
    state: TriggerState,
    triggers: TriggersSection,
    *,
    now: datetime,
) -> Finding:
    """Measure the age of the last training, even if its challenger was not promoted."""
    ages = _ages(snapshot, state.judged, now)
    days = min([drift.new_days, *(max(0.0, age) for age in ages)])
    if triggers.max_age_days is None:
        detail = f"{days:.1f} days; triggers.max_age_days is not set"
        return Finding("schedule", False, detail, is_set=False)
    if snapshot.time_max is None:
        detail = "the age of the last training is unknown without data.time"
        return Finding("schedule", False, detail)
    detail = f"the last training is {days:.1f} days old by data time, limit {triggers.max_age_days}"
    return Finding("schedule", days >= triggers.max_age_days, detail)


def _ages(snapshot: Snapshot, retrainings: Sequence[Retraining], now: datetime) -> list[float]:
    """Return the age of past retrainings by data time, in days; empty without data time."""
    # By data time: a replay or a backfill must decide as the year itself did.
    newest = snapshot.data_time(now)
    moments = [past.data_time for past in retrainings if past.data_time is not None]
    return [
        (as_utc(newest) - as_utc(each)) / DAY
        for each in moments
        if newest is not None and not is_future(each, now)
    ]


def _warnings(snapshot: Snapshot, state: TriggerState, now: datetime) -> list[str]:
    warnings = []
    if snapshot.time_max is not None and is_future(snapshot.time_max, now):
        warnings.append(
            f"the newest row is of {snapshot.time_max:%Y-%m-%d %H:%M}, which lies in the future: "
            "ages are counted until now; correct its time at the source"
        )
    # Earlier versions recorded such times. They would block every retraining until then.
    runs = [
        past.run_id
        for past in state.retrainings
        if past.data_time is not None and is_future(past.data_time, now)
    ]
    if runs:
        warnings.append(
            f"cooldown, budget and schedule ignore {counted(len(runs), 'retraining')} recorded at "
            f"a time in the future, the last by run {runs[-1]}"
        )
    return warnings


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
    # The newest ones that fit, in their order.
    left = SHOWN_CHARACTERS
    for name in reversed(found[-SHOWN_WINDOWS:]):
        left -= len(name)
        if left < 0:
            break
        shown.insert(0, name)
    return shown


def _strongest(window: WindowDrift) -> list[ColumnDrift]:
    alarmed = [column for column in window.columns if column.alarmed]
    return sorted(alarmed, key=lambda column: -column.z_score)[:SHOWN_COLUMNS]


def _evidence(snapshot: Snapshot, drift: DriftReport, state: TriggerState) -> dict[str, JsonValue]:
    evidence: dict[str, JsonValue] = {
        "snapshot_digest": snapshot.digest(),
        "data_time": snapshot.time_max.isoformat() if snapshot.time_max else None,
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
