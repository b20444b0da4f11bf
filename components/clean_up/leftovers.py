"""Leftovers: which training jobs of a run still go on when the run has ended?"""

from collections.abc import Iterable

from components.clients.cluster import Object
from components.clients.training_jobs import ENDED


def still_going(jobs: Iterable[Object]) -> list[tuple[str, str]]:
    """Names and uids of the jobs to delete.

    Those that have ended stay for their evidence; those that are being deleted need no help.
    """
    return [
        (job["metadata"]["name"], job["metadata"]["uid"])
        for job in jobs
        if "deletionTimestamp" not in job["metadata"] and not has_ended(job)
    ]


def has_ended(job: Object) -> bool:
    """Whether a job's operator says so."""
    return any(
        condition["type"] in ENDED and condition["status"] == "True"
        for condition in job.get("status", {}).get("conditions", ())
    )
