"""Leftovers: which training jobs are there, and which of them still go on?"""

from collections.abc import Iterator, Mapping

from perennial.clients.api_server import Resource
from perennial.clients.cluster import Cluster, Object, label_selector
from perennial.training_jobs.selectors import ENDED, MANAGED_BY, PYTORCHJOBS, TRAINJOBS


def training_jobs(cluster: Cluster, labels: Mapping[str, str]) -> Iterator[tuple[Resource, Object]]:
    """Perennial's jobs of every kind that the cluster serves.

    Args:
        cluster: The namespace to look in.
        labels: What they must have besides.
    """
    for resource in (PYTORCHJOBS, TRAINJOBS):
        if cluster.serves(resource):
            for job in cluster.list(resource, label_selector({**MANAGED_BY, **labels})):
                yield resource, job


def still_goes_on(job: Object) -> bool:
    """Whether a job is to be deleted when its run has ended.

    One that has ended stays for its evidence; one that is being deleted needs no help.
    """
    return "deletionTimestamp" not in job["metadata"] and not has_ended(job)


def has_ended(job: Object) -> bool:
    """Whether a job's operator says so."""
    return any(
        condition["type"] in ENDED and condition["status"] == "True"
        for condition in job.get("status", {}).get("conditions", ())
    )
