"""Pages of a run on a cluster: the verdict with all steps; a step that could not write its own."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, TypeVar

from perennial.contracts.artifact import Artifact
from perennial.contracts.gate import Registration, Verdict
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.reports.page import Outcome, Page
from perennial.reports.run_report import StepPage, stitch
from perennial.reports.verdict_card import RunFindings, verdict_card
from perennial.steps.parameters import decode_parameter
from perennial.steps.stored_steps import StoredRun, StoredStep

Result = TypeVar("Result", bound=Artifact)
OUTCOMES: dict[str, Outcome] = {
    "running": "warned",
    "cancelled": "warned",
    "finished": "passed",
    "failed": "failed",
}
GO_ON = "The step's log is in the dashboard, and in `perennial logs RUN --step {step}`."


def find_results(
    records: Sequence[StoredStep], model: str, trigger: str = "", cancelled_by: str = ""
) -> RunFindings:
    """Return what the steps of an ended run found."""
    ends = {status: [each for each in records if each.status == status] for status in OUTCOMES}
    status: Literal["running", "succeeded", "failed", "cancelled"] = "succeeded"
    if ends["failed"]:
        status = "failed"
    elif ends["cancelled"]:
        status = "cancelled"
    elif ends["running"]:
        status = "running"
    last = next(iter(ends["failed"] or ends["cancelled"] or records[-1:]), None)
    return RunFindings(
        model=model,
        status=status,
        trigger=trigger,
        step=last.step if last is not None else "",
        error=str(last.error()) if last is not None and status == "failed" else "",
        cancelled_by=cancelled_by,
        go_on=GO_ON.format(step=last.step) if last is not None and status == "failed" else "",
        decision=_result(records, RetrainingDecision),
        drift=_result(records, DriftReport),
        verdict=_result(records, Verdict),
        registration=_result(records, Registration),
    )


def started_by(stored: StoredRun, reason: str, trigger: str) -> str:
    """Return why a run was started; of a clone, of which run."""
    marked = stored.claim_trigger(decode_parameter(trigger))
    if marked == decode_parameter(trigger):
        return reason
    return f"a clone of the run {json.loads(marked)['of_run']}, whose reason was: {reason}"


def step_page(record: StoredStep) -> Page:
    """Return the page of a step that was ended before it could write its own."""
    title = record.step.replace("_", " ").capitalize()
    page = Page(title, outcome=OUTCOMES[record.status], summary=record.problem or "Cancelled.")
    if record.evidence:
        page.details("Evidence", record.evidence)
    if record.action:
        page.text(f"To do: {record.action}.")
    return page


def run_page(stored: StoredRun, model: str, run_id: str, trigger: str) -> str:
    """Return the page of a run: its verdict, then the page of each step in a frame of its own."""
    records = stored.steps()
    found = find_results(records, model, trigger, stored.cancelled_by())
    pages = [
        StepPage(
            record.step,
            OUTCOMES[record.status],
            _summary(record),
            max(0.0, record.ended - record.began),
            stored.page(record.step),
        )
        for record in records
    ]
    facts = {"run": run_id}
    if records:
        facts["started"] = f"{datetime.fromtimestamp(records[0].began, UTC):%Y-%m-%d %H:%M} UTC"
    return stitch(pages, title=model or "Run", card=verdict_card(found), facts=facts)


def _summary(record: StoredStep) -> str:
    if record.status == "failed":
        return str(record.error())
    return "cancelled" if record.status == "cancelled" else record.summary


def _result(records: Sequence[StoredStep], kind: type[Result]) -> Result | None:
    """Return a step's result; None if no step wrote one that this code can read."""
    for record in records:
        document = record.results.get(kind.document_name())
        if document:
            try:
                return kind.from_json(document)
            except ValueError:  # of another version of Perennial: it must not hide the others
                return None
    return None
