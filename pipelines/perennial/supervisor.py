"""Supervisor: starts a run's driver in its own process group, follows it, and ends it cleanly."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from pydantic import JsonValue

from perennial.clients.object_store import open_store
from perennial.clients.version_control import (
    commit_of,
    place_in_repository,
    uncommitted_diff,
)
from perennial.compilation import compile_pipeline
from perennial.console import Console
from perennial.contract import Contract
from perennial.contracts import environment
from perennial.contracts.artifact import write_atomically
from perennial.contracts.errors import PerennialError
from perennial.contracts.lineage import DIFF_FILE
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.user_code import Interrupted
from perennial.data.partitions import find_partitions, samples
from perennial.local import refuse_rewritten_text, silent_end
from perennial.reports.text import counted
from perennial.run_page import write_run_report
from perennial.runs import (
    Home,
    RunRecord,
    RunStatus,
    code_digest,
    imported_sources,
    step_records,
)
from perennial.steps.code_state import CodeState
from perennial.steps.journal import Journal
from perennial.steps.lease import RunLease

POLL_SECONDS = 0.1
SCRATCH = "tmp"
# Of other projects: a run opens its own tracking run, and libraries may warn.
NOT_INHERITED = (environment.TRACKING_RUN_ID, "PYTHONWARNINGS")
# A training job writes one more checkpoint when it is asked to stop.
GRACE_SECONDS = 30.0


@dataclass(frozen=True)
class Launch:
    """A checked contract, with the home to run it in and the folder of the task's module."""

    home: Home
    contract: Contract
    code_folder: Path

    @property
    def code_digest(self) -> str:
        """Digest of the sources as they are now."""
        return code_digest(self.contract, [self.code_folder])


def execute(launch: Launch, choose: Callable[[], RunRecord], console: Console) -> RunRecord:
    """Run or continue a pipeline to its end, showing progress.

    Whatever happens, no process of the run is left when this returns, the record contains the
    outcome, and the report is written. `choose` makes or finds the run; it is called when no other
    run of the model is active.

    Raises:
        PerennialError: another run of the model is active in this home.
        KeyboardInterrupt: the user stopped the run; it can be continued.
    """
    refuse_rewritten_text(str(launch.home.path))
    _ = launch.home.environment  # refuses a home that MLflow cannot use, before anything runs
    model = launch.contract.model.name
    launch.home.require_its_place(model)
    lease = RunLease(launch.home.lock_folder(model), f"{model} in {launch.home.path}")
    lease.acquire()
    try:
        run = choose()
        lease.name_work(f"{run.pipeline}, run {run.run_id}")
        return _execute(launch, run, lease, console)
    finally:
        lease.release()


def _execute(launch: Launch, run: RunRecord, lease: RunLease, console: Console) -> RunRecord:
    folder = launch.home.folder(run.run_id)
    # Whatever is raised before the end counts as a failure.
    status: RunStatus = "failed"
    try:
        run = _update(launch.home, run, status="running", attempts=run.attempts + 1)
        compile_pipeline(run.pipeline, folder / "pipeline.yaml")
        Journal(folder).append("run", run_id=run.run_id, attempt=run.attempts)
        console.run_started(run, folder)
        for line in newer_data(folder):
            console.note(f"  ! {line}")
        with _interrupt_on_sigterm():
            status = "succeeded" if _drive(launch, run, lease, console) == 0 else "failed"
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        run = _update(launch.home, run, status=status)
        write_run_report(launch.home, run)
    return run


def newer_data(folder: Path) -> Iterator[str]:
    """Yield a line for people if partitions arrived after a continued run took its snapshot."""
    for taken in folder.glob("steps/snapshot_data-*/snapshot"):
        with contextlib.suppress(PerennialError, OSError):  # a step that reads them reports it
            then = Snapshot.read(taken)
            listed = {each.key for each in find_partitions(open_store(then.data.uri)).partitions}
            if arrived := sorted(listed - {*then.paths}):
                yield (
                    "this run continues with the data that it began with, without "
                    f"{counted(len(arrived), 'newer partition')} ({samples(arrived)}); --new "
                    "starts a run with all"
                )


def _drive(launch: Launch, run: RunRecord, lease: RunLease, console: Console) -> int:
    folder = launch.home.folder(run.run_id)
    scratch = folder / SCRATCH
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    write_atomically(folder / DIFF_FILE, uncommitted_diff(launch.code_folder))
    CodeState.of(imported_sources(launch.contract, [launch.code_folder])).write(folder)
    # Before the driver starts: events of earlier attempts are skipped, and none of its own.
    events = _Tail(Journal(folder))
    with (folder / "driver.log").open("ab") as log:
        driver = subprocess.Popen(
            [sys.executable, "-m", "perennial.local", str(folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C reaches the supervisor alone, which lets the training save a checkpoint.
            start_new_session=True,
            env=_environment(launch, run, lease),
        )
    try:
        while driver.poll() is None:
            console.show(events.new())
            time.sleep(POLL_SECONDS)
    finally:
        _end(driver, lease, console)
        console.show(events.new())
        shutil.rmtree(scratch, ignore_errors=True)
    return driver.returncode


def _end(driver: subprocess.Popen[bytes], lease: RunLease, console: Console) -> None:
    """End what is left of the process group: politely, then surely."""
    if driver.poll() is not None and lease.wait_for_members(0.0):
        return  # nobody is left, and the group's number may be somebody else's by now
    if driver.poll() is None:
        console.note("stopping; a training in progress saves a checkpoint first")
    for kind, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(driver.pid, kind)
        driver.poll()
        if lease.wait_for_members(patience):
            break
    driver.wait()


def _environment(launch: Launch, run: RunRecord, lease: RunLease) -> Mapping[str, str]:
    home = launch.home
    inherited = {name: value for name, value in os.environ.items() if name not in NOT_INHERITED}
    code = str(launch.code_folder)
    search = [code, *filter(None, inherited.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        # One thread per process: more threads than cores make small steps many times slower.
        "OMP_NUM_THREADS": "1",
        **inherited,
        environment.STORE_URI: home.store_uri,
        environment.TRACKING_URI: home.tracking_uri,
        environment.RUN_FOLDER: str(home.folder(run.run_id)),
        environment.RUN_ID: run.run_id,
        environment.CODE_DIGEST: run.code_digest,
        environment.COMMIT: commit_of(launch.code_folder),
        environment.CODE_PLACE: place_in_repository(launch.code_folder),
        environment.LEASE: lease.address,
        environment.CACHE: inherited.get(environment.CACHE) or str(home.path / "cache"),
        # KFP leaves a temporary folder behind for each task; all are deleted with this one.
        "TMPDIR": str(home.folder(run.run_id) / SCRATCH),
        "PYTHONPATH": os.pathsep.join(search),
        "PYTHONUNBUFFERED": "1",
        "PYTHONUTF8": "1",
        "PYTHONNODEBUGRANGES": "1",  # tracebacks without lines of carets
        "GX_ANALYTICS_ENABLED": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    }


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _update(home: Home, run: RunRecord, **changes: JsonValue) -> RunRecord:
    changed = run.model_copy(update=changes)
    changed.write(home.folder(run.run_id))
    return changed


class _Tail:
    """Reads the journal's new events each time it is asked."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._offset = journal.path.stat().st_size if journal.path and journal.path.exists() else 0

    def new(self) -> list[dict[str, JsonValue]]:
        found = list(self._journal.events(self._offset))
        if found:
            self._offset = found[-1][1]
        return [event for event, _ in found]


def failed_step(folder: Path) -> str:
    """Return the failed step of an ended run, its real exception and its log, for people.

    A step that still counts as running failed, too: on a full disk no failure can be recorded.
    """
    ended = {record.status: record for record in reversed(step_records(folder))}
    record = ended.get("failed") or ended.get("running")
    if record is None:
        return f"the driver failed\n\nlog: {folder / 'driver.log'}"
    error = record.error if record.status == "failed" else silent_end(folder, record.step)
    return f"{record.step} failed\n\n{error}\n\nlog: {record.log or folder / 'driver.log'}"
