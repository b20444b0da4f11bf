"""Launcher: starts one attempt of a training job and says how it ended."""

import shutil
from abc import ABC, abstractmethod
from enum import StrEnum

from perennial.clients.object_store import open_store
from perennial.engine.job import JobFailure, TrainingJob


class JobState(StrEnum):
    """How an attempt stands."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    INTERRUPTED = "interrupted"
    """It stopped behind a checkpoint because a signal asked it to."""
    DISPLACED = "displaced"
    """The cluster took its place away: evicted, preempted, or its machine was lost."""
    FAILED = "failed"


class Launcher(ABC):
    """Runs attempts of one job, one after the other."""

    log: str
    """Where a person finds the attempt's output."""
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
        """Delete what only attempts of the job need: none follows."""

    @abstractmethod
    def stop(self) -> None:
        """Ask the attempt to end behind a checkpoint; returns at once, may be called again."""


def forget_last_attempt(job: TrainingJob) -> None:
    """Make room for the words of the next one."""
    job.logs.mkdir(parents=True, exist_ok=True)
    for left in (job.interrupted, job.first_step, job.root / JobFailure.file_name):
        left.unlink(missing_ok=True)
    shutil.rmtree(job.errors, ignore_errors=True)
    if job.store_uri:
        open_store(job.store_uri).delete(JobFailure.file_name)
