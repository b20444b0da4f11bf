"""Run page: the reports of a run's steps, stitched into one file."""

from pathlib import Path

from perennial.contracts.artifact import write_atomically
from perennial.reports.page import Outcome
from perennial.reports.run_report import StepPage, stitch
from perennial.runs import FLOW, RunRecord, RunStatus, StepRecord, StepStatus, step_records

REPORT_FILE = "report.html"

_OUTCOMES: dict[StepStatus, Outcome] = {
    "running": "warned",
    "stopped": "warned",
    "finished": "passed",
    "reused": "passed",
    "failed": "failed",
}

_RUN_OUTCOMES: dict[RunStatus, Outcome] = {
    "running": "neutral",
    "succeeded": "passed",
    "failed": "failed",
    "interrupted": "warned",
}


def write_run_report(run: RunRecord, folder: Path) -> Path:
    """Write the run's report from what its steps have left so far."""
    records = step_records(folder)
    pages = [_page(folder, record) for record in records]
    done = {record.step for record in records}
    pages += [
        StepPage(step, "neutral", "did not run", 0.0, None)
        for step in FLOW[run.pipeline]
        if step not in done
    ]
    outcome = _RUN_OUTCOMES[run.status]
    facts = {
        "run": run.run_id,
        "pipeline": run.pipeline,
        "model": run.model,
        "started": f"{run.created:%Y-%m-%d %H:%M} UTC",
        "attempts": str(run.attempts),
        "contract": run.contract_digest[:12],
    }
    title, summary = f"{run.model}: {run.pipeline}", _summary(run, records)
    html = stitch(pages, title=title, summary=summary, outcome=outcome, facts=facts)
    target = folder / REPORT_FILE
    write_atomically(target, html.encode())
    return target


def _page(folder: Path, record: StepRecord) -> StepPage:
    report = folder / "steps" / record.key / "report"
    html = report.read_text() if report.is_file() else None
    summary = record.error or record.summary
    if record.status == "stopped":
        summary = "stopped; checkpoint saved"
    if record.status == "reused":
        summary += " (finished in an earlier attempt)"
    return StepPage(record.step, _OUTCOMES[record.status], summary, record.seconds, html)


def _summary(run: RunRecord, records: list[StepRecord]) -> str:
    failed = [record for record in records if record.status == "failed"]
    if failed:
        return f"{failed[0].step} failed: {failed[0].error.splitlines()[0]}"
    if run.status == "succeeded" and records:
        return records[-1].summary
    return f"The run is {run.status}."
