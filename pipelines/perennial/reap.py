"""The verb `perennial reap`: deletes training jobs that runs have left behind on a cluster."""

import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from perennial.clients.cluster import WORKFLOWS, Cluster, label_selector
from perennial.clients.tracking import NAMESPACE_TAG, RUN_TAG, close_abandoned_runs
from perennial.contracts.environment import TRACKING_URI, ClusterAddress, Environment
from perennial.training_jobs.leftovers import (
    KFP_RUN_LABEL,
    RUN_LABEL,
    TERMINAL,
    Reaping,
    decide_reaping,
    training_jobs,
)


def reap(namespace: str, grace: timedelta, *, is_dry: bool) -> list[Reaping]:
    """Decide about every job of Perennial in a namespace, and delete those that are due.

    An empty namespace is the pod's own; jobs that have ended are kept for the grace period.
    """
    cluster = Cluster.connect(ClusterAddress.read(), namespace)
    # Jobs before runs: a run that is not listed has ended before its job was seen.
    jobs = list(training_jobs(cluster, {}))
    # Of these runs alone: a namespace keeps a day's Workflows, each of which is a long text.
    phases = {
        run_id: workflow.get("status", {}).get("phase", "")
        for run_id in {job["metadata"]["labels"].get(RUN_LABEL, "") for _, job in jobs} - {""}
        for workflow in cluster.list(WORKFLOWS, label_selector({KFP_RUN_LABEL: run_id}))
    }
    decided = []
    for resource, job in jobs:
        decision = decide_reaping(job, phases, datetime.now(UTC), grace)
        decided.append(decision)
        if decision.is_due and not is_dry:
            cluster.delete(resource, decision.name, uid=job["metadata"]["uid"])
    if os.environ.get(TRACKING_URI) and not is_dry:
        close_tracking_runs(cluster)
    cluster.close()
    return decided


def close_tracking_runs(cluster: Cluster) -> list[str]:
    """Close the MLflow runs that steps in this namespace left open, whose pipeline run is over."""

    def is_over(tags: Mapping[str, str]) -> bool:
        if tags.get(NAMESPACE_TAG) != cluster.namespace:
            return False  # it may go on where this cannot be seen
        found = cluster.list(WORKFLOWS, label_selector({KFP_RUN_LABEL: tags[RUN_TAG]}))
        phases = {workflow.get("status", {}).get("phase", "") for workflow in found}
        return phases <= TERMINAL

    environment = Environment("", os.environ[TRACKING_URI])
    return close_abandoned_runs(environment, is_over, "its pipeline run is over or gone")
