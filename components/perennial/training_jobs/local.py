"""Local launcher: torchrun as a child process on this machine."""

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from typing_extensions import override

from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import LEASE
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import TrainingResult
from perennial.engine.job import JOB_FILE, TrainingJob
from perennial.steps.lease import RunLease
from perennial.training_jobs.launcher import (
    JobState,
    Launcher,
    forget_last_attempt,
    worker_settings,
)

logger = logging.getLogger(__name__)


class LocalLauncher(Launcher):
    """Run one torchrun at a time. The caller decides on restarts, so torchrun makes none.

    Args:
        threads_per_process: Threads of each rank.
    """

    def __init__(self, threads_per_process: int) -> None:
        self.log = ""
        self._threads = threads_per_process
        self._attempt: _Attempt | None = None
        self._stopped = False

    @override
    def start(self, job: TrainingJob) -> None:
        # The workers end when this lease is released, or when this process dies. The folder must
        # not be touched before it is held: another run may be training in it.
        lease = RunLease(job.root)
        lease.acquire()
        forget_last_attempt(job)
        write_atomically(job.root / JOB_FILE, job.to_json().encode())
        log = job.logs / "job.log"
        self.log = str(log)
        with log.open("ab") as output:
            process = subprocess.Popen(
                torchrun_command(job),
                env=worker_environment(os.environ, self._threads, lease),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C reaches the whole foreground group; only `stop` may signal torchrun.
                start_new_session=True,
            )
        self._attempt = _Attempt(job, process, lease)
        if self._stopped:
            self.stop()

    @override
    def wait(self) -> JobState:
        if self._attempt is None:
            raise RuntimeError("wait() before start()")
        attempt = self._attempt
        try:
            code = attempt.process.wait()
        finally:
            # Workers outlive a torchrun that was killed; without the lease they end at once, and
            # the next attempt's `acquire` waits until they have.
            attempt.lease.release()
        if code == 0 and (attempt.job.root / TrainingResult.file_name).exists():
            return JobState.SUCCEEDED
        self.cause = "" if code else "the processes exited with code 0 but wrote no result"
        return JobState.INTERRUPTED if attempt.job.interrupted.exists() else JobState.FAILED

    @override
    def close(self) -> None:
        if self._attempt is None:
            return  # the lease may have been refused: the folder is another run's
        remove_encoded_data(self._attempt.job)

    @override
    def stop(self) -> None:
        self._stopped = True
        if self._attempt is not None and self._attempt.process.poll() is None:
            self._attempt.process.send_signal(signal.SIGTERM)


def remove_encoded_data(job: TrainingJob) -> None:
    """Remove the encoded data after the last attempt; log it if another run holds the folder.

    If the run is killed before this, the next one removes the data.
    """
    if not job.scratch.exists():
        return
    lease = RunLease(job.root)
    try:
        lease.acquire()
    except PerennialError as error:
        logger.warning("encoded data cannot be removed: %s", error)
        return
    shutil.rmtree(job.scratch, ignore_errors=True)
    lease.release()


@dataclass(frozen=True)
class _Attempt:
    job: TrainingJob
    process: subprocess.Popen[bytes]
    lease: RunLease


def torchrun_command(job: TrainingJob) -> list[str]:
    """Return the command; workers take one argument, because torchrun would parse options."""
    return [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(job.num_processes), "--max-restarts", "0"),
        *("-m", "perennial.engine.worker", str(job.root / JOB_FILE)),
    ]


def worker_environment(
    environment: Mapping[str, str], threads: int, lease: RunLease
) -> dict[str, str]:
    """Return this process's environment variables, adapted for the workers."""
    return {
        # Set by KFP's executor; with it, importing kfp fails in child processes.
        **{name: value for name, value in environment.items() if name != "_KFP_RUNTIME"},
        # The workers import what this process can import: the task may lie beside the contract.
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        LEASE: lease.address,
        **worker_settings(threads),
    }
