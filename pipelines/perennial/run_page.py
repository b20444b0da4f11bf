"""Run page: a run's verdict with the reports of its steps in one file; the index of all runs."""

from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from perennial.contracts.artifact import Artifact, write_atomically
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Registration, Verdict
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.reports.page import Outcome
from perennial.reports.run_report import RunRow, StepPage, index_of_runs, stitch
from perennial.reports.verdict_card import RunFindings, verdict_card
from perennial.runs import FLOW, Home, RunRecord, StepRecord, StepStatus, run_seconds, step_records

REPORT_FILE, INDEX_FILE = "report.html", "index.html"
LISTED_RUNS = 200
"""The newest runs in the index; more would make each run wait for it."""
Result = TypeVar("Result", bound=Artifact)

_OUTCOMES: dict[StepStatus, Outcome] = {
    "running": "warned",
    "stopped": "warned",
    "finished": "passed",
    "reused": "passed",
    "failed": "failed",
}


def find_results(home: Home, run: RunRecord) -> RunFindings:
    """Return what a run's steps found so far."""
    folder = home.folder(run.run_id)
    records = step_records(folder)
    last = {record.step: record for record in records}
    failed = [record for record in records if record.status == "failed"]
    decision = _read(folder, last, "decide_retraining", "decision", RetrainingDecision)
    status, error = run.status, failed[0].error if failed else ""
    if status == "running" and not home.is_active(run.model):
        status, error = "failed", "the run's process was killed before it could record its end"
    go_on = "The same command continues the run after its finished steps."
    log = failed[0].log if failed else str(folder / "driver.log")
    return RunFindings(
        model=run.model,
        status="cancelled" if status == "interrupted" else status,
        trigger=_trigger(run, decision),
        step=(failed or records)[-1].step if records else "",
        error=error,
        go_on=f"{go_on} Log: {log}" if status == "failed" else go_on,
        decision=decision,
        drift=_read(folder, last, "detect_drift", "drift", DriftReport),
        verdict=_read(folder, last, "evaluate_model", "verdict", Verdict),
        registration=_read(folder, last, "register_model", "registration", Registration),
    )


def write_run_report(home: Home, run: RunRecord) -> Path:
    """Write the run's report from what its steps have left so far, and the index of all runs."""
    folder = home.folder(run.run_id)
    records = step_records(folder)
    pages = [_page(folder, record) for record in records]
    done = {record.step for record in records}
    pages += [
        StepPage(step, "neutral", "did not run", 0.0, None)
        for step in FLOW[run.pipeline]
        if step not in done
    ]
    facts = {
        "run": run.run_id,
        "started": f"{run.created:%Y-%m-%d %H:%M} UTC",
        "attempts": str(run.attempts),
        "contract": run.contract_digest[:12],
    }
    own = [each for each in home.runs() if each.model == run.model and each.created < run.created]
    links = {"Previous run": f"../{own[-1].run_id}/{REPORT_FILE}"} if own else {}
    html = stitch(
        pages,
        title=f"{run.model}: {run.pipeline}",
        card=verdict_card(find_results(home, run)),
        facts=facts,
        links={**links, "All runs": f"../{INDEX_FILE}"},
    )
    target = folder / REPORT_FILE
    write_atomically(target, html.encode())
    write_index(home)
    return target


def write_index(home: Home) -> Path:
    """Write the page that lists the runs of the home, the newest first."""
    rows, runs = [], home.runs()
    for run in reversed(runs[-LISTED_RUNS:]):
        folder = home.folder(run.run_id)
        rows.append(
            RunRow(
                run=run.run_id,
                model=run.model,
                pipeline=run.pipeline,
                card=verdict_card(find_results(home, run)),
                started=f"{run.created:%Y-%m-%d %H:%M} UTC",
                seconds=run_seconds(folder),
                report=f"{run.run_id}/{REPORT_FILE}" if (folder / REPORT_FILE).exists() else "",
            )
        )
    target = home.path / "runs" / INDEX_FILE
    write_atomically(target, index_of_runs(rows, total=len(runs), place=str(home.path)).encode())
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


def _trigger(run: RunRecord, decision: RetrainingDecision | None) -> str:
    """Return why the run was started, in words."""
    if run.pipeline == "continuous_training":
        return "by hand, `perennial run`"
    if decision is not None and decision.retrain:
        return f"`perennial monitor`; retrained because of {decision.reasons[0]}"
    return "`perennial monitor`"


def _read(
    folder: Path, last: Mapping[str, StepRecord], step: str, output: str, kind: type[Result]
) -> Result | None:
    """Return a step's result; None if it has none that this code can read."""
    record = last.get(step)
    place = folder / "steps" / record.key / output if record is not None else None
    if place is None or not place.exists():
        return None
    try:
        return kind.read(place)
    except PerennialError:  # of another version of Perennial: it must not hide the others
        return None
