"""Launchers: one interface to the processes of a training, and those on this machine."""

import logging
import os
import shutil
import signal
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.context import ForkServerProcess

from typing_extensions import override

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import RENDEZVOUS
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import TrainingResult
from perennial.engine.job import JOB_FILE, Job, JobFailure, TrainingJob
from perennial.steps.code_state import refuse_edited_code
from perennial.steps.lease import RunLease
from perennial.steps.processes import (
    MALLOC,
    run_module,
    send_signal,
    start_processes,
    wait_for_processes,
)

logger = logging.getLogger(__name__)
# A rank may be writing a checkpoint when another one fails.
GRACE_SECONDS = 30.0


class JobState(StrEnum):
    """The state in which an attempt ended."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    INTERRUPTED = "interrupted"
    """Stopped by a signal; checkpoint saved."""
    DISPLACED = "displaced"
    """Preempted or evicted, or its machine was lost."""
    TOO_LARGE = "too large"
    """It found no place; the next attempt asks for fewer machines."""
    FAILED = "failed"


@dataclass(frozen=True)
class JobResult:
    """The result of an attempt; its state decides on a restart."""

    state: JobState
    evidence: str = ""
    """What ended it, as seen from outside; empty where nothing is."""


class Launcher(ABC):
    """Runs attempts of one job, one after the other."""

    log: str
    """Location of the attempt's output, for people."""

    @abstractmethod
    def start(self, job: TrainingJob) -> None:
        """Start an attempt; it resumes from the newest checkpoint in the job's folder."""

    @abstractmethod
    def wait(self) -> JobResult:
        """Block until the attempt has ended, with all its processes."""

    @abstractmethod
    def close(self) -> None:
        """Delete what only attempts of the job need; no attempt follows."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the attempt to save a checkpoint and stop; return at once; may be called again."""


def forget_last_attempt(job: Job) -> None:
    """Delete the markers of the last attempt before the next one starts."""
    job.logs.mkdir(parents=True, exist_ok=True)
    # `rendezvous` too: PyTorch may hang on a file that an earlier attempt has written to.
    lasting = (job.interrupted, job.first_step, job.rendezvous, job.root / JobFailure.file_name)
    for left in lasting:
        left.unlink(missing_ok=True)
    shutil.rmtree(job.errors, ignore_errors=True)
    if job.store_uri:
        open_store(job.store_uri).delete(JobFailure.file_name)


@dataclass(frozen=True)
class PollIntervals:
    """Poll intervals, in seconds.

    The job is read at least every `poll`, which also keeps open the connection that a signal
    handler needs; pods are watched.
    """

    poll: float = 10.0
    shortest: float = 1.0
    settle: float = 60.0
    """Time beyond the pods' grace period for the operator to clean up after the end."""
    curves: float = 15.0
    reconnect: float = 2.0
    """Pause before a lost or missing log is requested again."""
    heartbeat: float = 60.0
    logs: float = 60.0
    """Interval of uploads of the pods' logs: a terminated step has no time for an upload."""


def worker_settings(threads: int) -> dict[str, str]:
    """Return the variables of a process with so many threads."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(threads),
        # A shared rendezvous store gives a restarted rank the addresses of dead ones.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # Without a workspace of fixed size, the order of cuBLAS's sums changes.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **MALLOC,
    }


class LocalLauncher(Launcher):
    """Run one process per rank on this machine. They join by a file, so that no port is needed."""

    def __init__(self, threads_per_process: int) -> None:
        self.log = ""
        self._threads = threads_per_process
        self._attempt: _Attempt | None = None
        self._stopped = False

    @override
    def start(self, job: TrainingJob) -> None:
        refuse_edited_code()  # the ranks import the task again
        # The workers end when this lease is released, or when this process dies. The folder must
        # not be touched before it is held: another run may be training in it.
        lease = RunLease(job.root)
        lease.acquire()
        forget_last_attempt(job)
        write_atomically(job.root / JOB_FILE, job.to_json().encode())
        log = job.logs / "job.log"
        self.log = str(log)
        variables = {**lease.variables(os.environ), **worker_settings(self._threads)}
        worker = ("perennial.engine.worker", [str(job.root / JOB_FILE)])
        ranks = start_processes(
            run_module,
            [
                (*worker, {**variables, **rank_variables(job, rank)}, log)
                for rank in range(job.num_processes)
            ],
        )
        self._attempt = _Attempt(job, ranks, lease)
        # A signal that arrived before the ranks existed could not be passed on to them.
        if self._stopped:
            self.stop()

    @override
    def wait(self) -> JobResult:
        if self._attempt is None:
            raise RuntimeError("wait() before start()")
        attempt = self._attempt
        try:
            codes = wait_for_processes(attempt.ranks, GRACE_SECONDS)
        finally:
            # Ends a rank that is left; the next attempt's `acquire` waits until it has.
            attempt.lease.release()
        if not any(codes.values()) and (attempt.job.root / TrainingResult.file_name).exists():
            return JobResult(JobState.SUCCEEDED)
        evidence = _describe_end(codes)
        was_interrupted = attempt.job.interrupted.exists()
        # The marker is written after the checkpoint; a signal alone proves none.
        return JobResult(JobState.INTERRUPTED if was_interrupted else JobState.FAILED, evidence)

    @override
    def close(self) -> None:
        if self._attempt is None:
            return  # the lease may have been refused: the folder is another run's
        remove_encoded_data(self._attempt.job)

    @override
    def stop(self) -> None:
        self._stopped = True
        if self._attempt is not None:
            send_signal(self._attempt.ranks, signal.SIGTERM)


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
    ranks: Sequence[ForkServerProcess]
    lease: RunLease


def _describe_end(codes: Mapping[int, int]) -> str:
    """Return how the first rank that failed has ended, unless it stored its exception itself."""
    # In the order in which they ended: the others were stopped because of the first.
    for rank, code in codes.items():
        if code < 0:
            return f"rank {rank} was ended by {signal.Signals(-code).name}"
        if code:
            return ""
    return "the processes exited with code 0 but wrote no result"


def rank_variables(job: TrainingJob, rank: int) -> dict[str, str]:
    """Return the variables by which a rank on this machine joins the others, as under torchrun."""
    size = str(job.num_processes)
    return {
        **{"RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0"},
        **{"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size},
        RENDEZVOUS: str(job.rendezvous),
    }
