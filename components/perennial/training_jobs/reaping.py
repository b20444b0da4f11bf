"""Reaping: decide which training jobs to delete, and which to keep as evidence."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from perennial.clients.cluster import Object
from perennial.training_jobs.leftovers import RUN_LABEL, has_ended

TERMINAL = frozenset({"Succeeded", "Failed", "Error"})  # phases of an Argo Workflow


@dataclass(frozen=True)
class Reaping:
    """The decision on a job.

    Attributes:
        name: The job.
        is_due: Whether it is to be deleted.
        reason: Why, or why not.
    """

    name: str
    is_due: bool
    reason: str


def decide_reaping(job: Object, phases: dict[str, str], now: datetime, grace: timedelta) -> Reaping:
    """Decide whether to delete a job: yes if its run has ended.

    A running job is deleted at once, because it occupies accelerators. One that has ended is kept
    for the grace period, because its pods are the evidence; a TrainJob is never deleted by itself.

    Args:
        job: The job.
        phases: Run id → phase, for every run whose Workflow exists; listed after the job, whose
            run existed when it was created.
        now: The current time.
        grace: Minimum age of a deleted job that has ended.
    """
    metadata = job["metadata"]
    name, run_id = metadata["name"], metadata["labels"].get(RUN_LABEL, "")
    age = now - datetime.fromisoformat(metadata["creationTimestamp"])
    phase = phases.get(run_id)
    if "deletionTimestamp" in metadata:
        return Reaping(name, False, "it is being deleted")
    if phase is not None and phase not in TERMINAL:
        return Reaping(name, False, f"run {run_id} still runs")
    if has_ended(job) and age < grace:
        return Reaping(
            name, False, f"it has ended and is only {age.total_seconds() / 3600:.1f} h old"
        )
    ended = "has ended" if has_ended(job) else "still runs"
    run = f"is {phase}" if phase is not None else "is gone"
    return Reaping(name, True, f"it {ended}, and run {run_id} {run}")
