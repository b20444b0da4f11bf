"""The page of `decide_retraining`: triggers, blocks and past retrainings."""

from datetime import datetime
from pathlib import Path

from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.contracts.section import canonical_json
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.decide_retraining.policy import find_retraining_blocks, find_triggers
from perennial.registry.trigger_state import TriggerState
from perennial.reports.page import Page

SHOWN_RETRAININGS = 12


def write_report(
    target: Path,
    made: RetrainingDecision,
    *,
    snapshot: Snapshot,
    drift: DriftReport,
    state: TriggerState,
    triggers: TriggersSection,
    now: datetime,
) -> None:
    """Write the page."""
    held_back = made.trigger != "none" and not made.retrain
    page = Page(
        "Decide retraining",
        outcome="warned" if held_back else "passed" if made.retrain else "neutral",
        summary=made.summary,
        badge="Retraining" if made.retrain else "Not retrained",
    )
    page.values(
        {
            "retrain": "yes" if made.retrain else "no",
            "trigger": made.trigger,
            "champion": drift.champion_version or "none",
            "newest row": f"{snapshot.time_max:%Y-%m-%d %H:%M}" if snapshot.time_max else "-",
            "past retrainings": len(state.retrainings),
        }
    )
    page.heading("Triggers, by priority")
    found = find_triggers(snapshot, drift, state, triggers, now=now)
    page.table(
        ["trigger", "fires", "evidence"],
        [[f.trigger, "yes" if f.fires else "no", f.detail] for f in found],
        outcomes=["warned" if f.fires else "neutral" for f in found],
    )
    page.heading("Retraining blocks")
    blocks = find_retraining_blocks(snapshot, state, triggers, now=now)
    page.table(
        ["block", "active", "evidence"],
        [[block.name, "yes" if block.holds else "no", block.detail] for block in blocks],
        outcomes=["warned" if block.holds else "neutral" for block in blocks],
    )
    if state.retrainings:
        _history_part(page, state)
    page.details("Evidence", canonical_json(made.evidence))
    page.write(target)


def _history_part(page: Page, state: TriggerState) -> None:
    page.heading("Past retrainings")
    rows = [
        [
            "-" if past.data_time is None else f"{past.data_time:%Y-%m-%d}",
            past.decision.trigger if past.decision else "-",
            past.run_id,
            past.decision.summary if past.decision else "not started by monitoring",
            "failed" if past.failed else "",
        ]
        for past in reversed(state.retrainings[-SHOWN_RETRAININGS:])
    ]
    page.table(["newest row", "trigger", "run", "why", "result"], rows, caption="The newest first.")
