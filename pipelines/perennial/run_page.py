"""Run page: a run's verdict with the reports of its steps in one file; the index of all runs."""

from dataclasses import dataclass, replace
from pathlib import Path

from perennial.contracts.artifact import write_atomically
from perennial.contracts.monitoring import RetrainingDecision
from perennial.reports.run_report import index_of_runs, step_pages, stitch
from perennial.reports.text import duration
from perennial.reports.verdict_card import (
    Card,
    RunFindings,
    RunStatus,
    find_results,
    verdict_card,
)
from perennial.runs import Home, RunRecord, run_seconds, step_records
from perennial.steps.stored_steps import FLOW, StoredStep

REPORT_FILE, INDEX_FILE = "report.html", "index.html"
LISTED_RUNS = 200
"""The newest runs in the index; more would make each run wait for it."""
KILLED = "the run's process was killed before it could record its end"


@dataclass(frozen=True)
class ListedRun:
    """A run with what became of it.

    Attributes:
        report: Path of its report; empty without one.
    """

    run: RunRecord
    findings: RunFindings
    seconds: float
    report: str

    @classmethod
    def of(cls, home: Home, run: RunRecord) -> "ListedRun":
        """Look at a run of a home."""
        folder = home.folder(run.run_id)
        report = folder / REPORT_FILE
        place = str(report) if report.exists() else ""
        return cls(run, find_run_results(home, run), run_seconds(folder), place)

    @property
    def card(self) -> Card:
        """The verdict on the run."""
        return verdict_card(self.findings)


def find_run_results(home: Home, run: RunRecord) -> RunFindings:
    """Return what a run's steps found so far."""
    folder = home.folder(run.run_id)
    records = step_records(folder)
    status: RunStatus = "cancelled" if run.status == "interrupted" else run.status
    # A killed process cannot record its end; the lock that it no longer holds shows it.
    is_killed = status == "running" and not home.is_active(run.model)
    found = find_results(records, run.model, "failed" if is_killed else status)
    go_on = "The same command continues the run after its finished steps."
    if found.status == "failed":
        log = next((each.log for each in records if each.status == "failed"), "")
        go_on += f" Log: {log or folder / 'driver.log'}"
    return replace(
        found,
        error=found.error or (KILLED if is_killed else ""),
        trigger=_trigger(run, found.decision),
        go_on=go_on,
    )


def write_run_report(home: Home, run: RunRecord) -> Path:
    """Write the run's report from what its steps have left so far, and the index of all runs."""
    folder = home.folder(run.run_id)

    def page_of(record: StoredStep) -> str | None:
        page = folder / "steps" / record.key / "report"
        return page.read_text() if page.is_file() else None

    # Of the same model only: the run before may be of another.
    own = [each for each in home.runs() if each.model == run.model and each.order < run.order]
    links = {"Previous run": f"../{own[-1].run_id}/{REPORT_FILE}"} if own else {}
    html = stitch(
        step_pages(step_records(folder), page_of, FLOW[run.pipeline]),
        title=f"{run.model}: {run.pipeline}",
        card=verdict_card(find_run_results(home, run)),
        facts={
            "run": run.run_id,
            "started": _started(run),
            "attempts": str(run.attempts),
            "contract": run.contract_digest[:12],
        },
        links={**links, "All runs": f"../{INDEX_FILE}"},
    )
    target = folder / REPORT_FILE
    write_atomically(target, html.encode())
    write_index(home)
    return target


def write_index(home: Home) -> Path:
    """Write the page that lists the runs of the home, the newest first."""
    runs = home.runs()
    rows = [
        {
            "run": each.run.run_id,
            "model": each.run.model,
            "pipeline": each.run.pipeline,
            "card": each.card,
            "started": _started(each.run),
            "duration": duration(each.seconds),
            "report": f"{each.run.run_id}/{REPORT_FILE}" if each.report else "",
        }
        for each in (ListedRun.of(home, run) for run in reversed(runs[-LISTED_RUNS:]))
    ]
    target = home.path / "runs" / INDEX_FILE
    write_atomically(target, index_of_runs(rows, total=len(runs), place=str(home.path)).encode())
    return target


def _started(run: RunRecord) -> str:
    return f"{run.created:%Y-%m-%d %H:%M} UTC"


def _trigger(run: RunRecord, decision: RetrainingDecision | None) -> str:
    """Return why the run was started, in words."""
    commands = {"continuous_training": "run", "hyperparameter_study": "study run"}
    if run.pipeline in commands:
        return f"by hand, `perennial {commands[run.pipeline]}`"
    if decision is not None and decision.retrain:
        return f"`perennial monitor`; retrained because of {decision.reasons[0]}"
    return "`perennial monitor`"
