"""Leftovers: list training jobs, and tell which still run."""

from collections.abc import Iterator, Mapping

from perennial.clients.api_server import Resource
from perennial.clients.cluster import Cluster, Object, label_selector
from perennial.training_jobs.selectors import ENDED, MANAGED_BY, PYTORCHJOBS, TRAINJOBS


def training_jobs(cluster: Cluster, labels: Mapping[str, str]) -> Iterator[tuple[Resource, Object]]:
    """Yield Perennial's jobs of every kind that the cluster serves.

    Args:
        cluster: The namespace to search.
        labels: Additional labels that they must have.
    """
    for resource in (PYTORCHJOBS, TRAINJOBS):
        if cluster.serves(resource):
            for job in cluster.list(resource, label_selector({**MANAGED_BY, **labels})):
                yield resource, job


def still_goes_on(job: Object) -> bool:
    """Whether a job must be deleted when its run has ended.

    One that has ended is kept as evidence; one that is being deleted needs no action.
    """
    return "deletionTimestamp" not in job["metadata"] and not has_ended(job)


def has_ended(job: Object) -> bool:
    """Whether a job's operator reports that it has ended."""
    return any(
        condition["type"] in ENDED and condition["status"] == "True"
        for condition in job.get("status", {}).get("conditions", ())
    )
