"""Launcher: one interface to the processes of a training, and what all launchers share."""

import shutil
from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum

from perennial.clients.object_store import open_store
from perennial.engine.job import JobFailure, TrainingJob


class JobState(StrEnum):
    """The state in which an attempt ended."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    INTERRUPTED = "interrupted"
    """Stopped by a signal; checkpoint saved."""
    DISPLACED = "displaced"
    """Preempted or evicted, or its machine was lost."""
    FAILED = "failed"


class Launcher(ABC):
    """Runs attempts of one job, one after the other."""

    log: str
    """Location of the attempt's output, for people."""
    cause: str = ""
    """What ended the last attempt, as seen from outside; empty where nothing is."""

    @abstractmethod
    def start(self, job: TrainingJob) -> None:
        """Start an attempt; it resumes from the newest checkpoint in the job's folder."""

    @abstractmethod
    def wait(self) -> JobState:
        """Block until the attempt has ended, with all its processes."""

    @abstractmethod
    def close(self) -> None:
        """Delete what only attempts of the job need; no attempt follows."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the attempt to save a checkpoint and stop; return at once; may be called again."""


def forget_last_attempt(job: TrainingJob) -> None:
    """Delete the markers of the last attempt before the next one starts."""
    job.logs.mkdir(parents=True, exist_ok=True)
    for left in (job.interrupted, job.first_step, job.root / JobFailure.file_name):
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


# Keeps glibc from returning every large tensor to the system and faulting it in again: 5 to 16 %
# of a step on a CPU.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}


def worker_settings(threads: int) -> dict[str, str]:
    """Return the variables.

    Args:
        threads: Threads of each process.
    """
    return {
        "OMP_NUM_THREADS": str(threads),
        "POLARS_MAX_THREADS": str(threads),
        # A shared rendezvous store gives a restarted rank the addresses of dead ones.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        # Without a workspace of fixed size, the order of cuBLAS's sums changes.
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **MALLOC,
    }
