"""Reaping: which training jobs does nobody follow, and which are kept as evidence?"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from perennial.clients.cluster import Object
from perennial.training_jobs.leftovers import has_ended
from perennial.training_jobs.selectors import RUN_LABEL

TERMINAL = frozenset({"Succeeded", "Failed", "Error"})  # phases of an Argo Workflow


@dataclass(frozen=True)
class Reaping:
    """What becomes of a job.

    Attributes:
        name: The job.
        is_due: Whether it is to be deleted.
        reason: Why, or why not.
    """

    name: str
    is_due: bool
    reason: str


def decide_reaping(job: Object, phases: dict[str, str], now: datetime, grace: timedelta) -> Reaping:
    """Delete what belongs to no run that goes on.

    At once, if the job goes on: it holds accelerators for nobody. One that has ended is kept for
    the grace, since its pods are the evidence, and deleted then: a TrainJob never goes by itself.

    Args:
        job: The job.
        phases: Run's id → phase, of every run whose Workflow exists; listed after the job, which
            is made by a run that exists.
        now: The time.
        grace: Least age of a job that has ended.
    """
    metadata = job["metadata"]
    name, run_id = metadata["name"], metadata["labels"].get(RUN_LABEL, "")
    age = now - datetime.fromisoformat(metadata["creationTimestamp"])
    phase = phases.get(run_id)
    if "deletionTimestamp" in metadata:
        return Reaping(name, False, "it is being deleted")
    if phase is not None and phase not in TERMINAL:
        return Reaping(name, False, f"run {run_id} goes on")
    if has_ended(job) and age < grace:
        return Reaping(
            name, False, f"it has ended, and is only {age.total_seconds() / 3600:.1f} h old"
        )
    ended = "has ended" if has_ended(job) else "goes on"
    run = f"is {phase}" if phase is not None else "is gone"
    return Reaping(name, True, f"it {ended}, and run {run_id} {run}")
