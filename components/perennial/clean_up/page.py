"""Pages of a run on a cluster: all steps in one file, and of a step that could not write one."""

from datetime import UTC, datetime

from perennial.reports.page import Outcome, Page
from perennial.reports.run_report import StepPage, stitch
from perennial.steps.stored_steps import StoredRun, StoredStep, verdict_of

OUTCOMES: dict[str, Outcome] = {
    "running": "warned",
    "cancelled": "warned",
    "finished": "passed",
    "failed": "failed",
}
RUN_OUTCOMES: dict[str, Outcome] = {
    "Failed": "failed",
    "Cancelled": "warned",
    "Promoted": "passed",
    "Champion kept": "neutral",
    "Not retrained": "neutral",
}


def summary_of(record: StoredStep) -> str:
    """Return what a step found, or the error or person that ended it."""
    if record.status == "failed":
        return str(record.error())
    return "Cancelled." if record.status == "cancelled" else record.summary


def run_summary(records: list[StoredStep], cancelled_by: str = "") -> str:
    """Return the verdict of a run and its reason: the failed step's, else the last one's."""
    verdict = verdict_of(records)
    for record in records:
        if record.status == "failed":
            return f"Failed: {record.step}: {record.problem}"
    if verdict == "Cancelled":
        stopped = ", ".join(record.step for record in records if record.status == "cancelled")
        return f"Cancelled by {cancelled_by or 'somebody, in the dashboard'}, during {stopped}."
    deciding = [record for record in records if record.parameters]
    reason = deciding[-1].summary if deciding else records[-1].summary if records else "no step ran"
    return f"{verdict}: {reason}" if verdict else reason


def step_page(record: StoredStep) -> Page:
    """Return the page of a step that was ended before it could write its own."""
    title = record.step.replace("_", " ").capitalize()
    page = Page(title, outcome=OUTCOMES[record.status], summary=record.problem or "Cancelled.")
    if record.evidence:
        page.details("Evidence", record.evidence)
    if record.action:
        page.text(f"To do: {record.action}.")
    return page


def run_page(stored: StoredRun, model: str, run_id: str, cancelled_by: str = "") -> str:
    """Return the page of a run: its verdict, then the page of each step in a frame of its own."""
    records = stored.steps()
    pages = [
        StepPage(
            record.step,
            OUTCOMES[record.status],
            summary_of(record),
            max(0.0, record.ended - record.began),
            stored.page(record.step),
        )
        for record in records
    ]
    began = min((record.began for record in records), default=0.0)
    facts = {"model": model, "run": run_id}
    if began:
        facts["started"] = f"{datetime.fromtimestamp(began, UTC):%Y-%m-%d %H:%M} UTC"
    return stitch(
        pages,
        title=model or "Run",
        summary=run_summary(records, cancelled_by),
        outcome=RUN_OUTCOMES.get(verdict_of(records), "neutral"),
        facts=facts,
    )
