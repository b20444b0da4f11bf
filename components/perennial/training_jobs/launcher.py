"""Launcher: start one attempt of a training job and report how it ended."""

import shutil
from abc import ABC, abstractmethod
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
