"""Pages of a run on a cluster: the verdict with all steps; a step that could not write its own."""

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from perennial.contracts.monitoring import RetrainingDecision
from perennial.reports.page import Page
from perennial.reports.run_report import OUTCOMES, step_pages, stitch
from perennial.reports.verdict_card import RunFindings, RunStatus, find_results, verdict_card
from perennial.steps.parameters import decode_parameter
from perennial.steps.stored_steps import FLOW, StoredRun, StoredStep

GO_ON = "The step's log is in the dashboard, and in `perennial logs RUN --step {step}`."


def find_run_results(
    records: Sequence[StoredStep], model: str, trigger: str = "", cancelled_by: str = ""
) -> RunFindings:
    """Return what the steps of an ended run found."""
    found_statuses = {record.status for record in records}
    statuses: tuple[RunStatus, ...] = ("failed", "cancelled", "running")
    status: RunStatus = next((each for each in statuses if each in found_statuses), "succeeded")
    found = find_results(records, model, status, trigger)
    go_on = GO_ON.format(step=found.step) if status == "failed" else ""
    return replace(found, cancelled_by=cancelled_by, go_on=go_on)


def started_by(stored: StoredRun, reason: str, trigger: str) -> str:
    """Return why a run was started; of a clone, of which run."""
    # Claiming twice is harmless: the first run keeps the claim.
    marked = stored.claim_trigger(decode_parameter(trigger))
    if marked == decode_parameter(trigger):
        return reason
    return f"a clone of the run {json.loads(marked)['of_run']}, whose reason was: {reason}"


def find_trigger(records: Sequence[StoredStep], trigger: str) -> str:
    """Return what started a training: monitoring's decision, or the kind of the run's trigger."""
    decisions = (each.result(RetrainingDecision) for each in records)
    decided = next((each for each in decisions if each is not None and each.retrain), None)
    if decided is not None:
        return str(decided.trigger)
    return str(json.loads(decode_parameter(trigger) or "{}").get("trigger", "unknown"))


def step_page(record: StoredStep) -> Page:
    """Return the page of a step that was ended before it could write its own."""
    title = record.step.replace("_", " ").capitalize()
    page = Page(title, outcome=OUTCOMES[record.status], summary=record.problem or "Cancelled.")
    if record.evidence:
        page.details("Evidence", record.evidence)
    if record.action:
        page.text(f"To do: {record.action}.")
    return page


def run_page(stored: StoredRun, model: str, run_id: str, trigger: str, pipeline: str = "") -> str:
    """Return the page of a run: its verdict, then the page of each step in a frame of its own."""
    records = stored.steps()
    found = find_run_results(records, model, trigger, stored.cancelled_by())
    pages = step_pages(records, lambda each: stored.page(each.step), FLOW.get(pipeline, ()))
    facts = {"run": run_id}
    if records:
        facts["started"] = f"{datetime.fromtimestamp(records[0].began, UTC):%Y-%m-%d %H:%M} UTC"
    return stitch(pages, title=model or "Run", card=verdict_card(found), facts=facts)
