"""The verb `perennial reap`: deletes training jobs that runs have left behind on a cluster."""

from datetime import UTC, datetime, timedelta

from components.clean_up.leftovers import training_jobs
from components.clean_up.reaping import Reaping, decide_reaping
from components.clients.api_server import WORKFLOWS
from components.clients.cluster import Cluster
from components.clients.environment import ClusterAddress
from components.clients.training_jobs import KFP_RUN_LABEL


def reap(namespace: str, grace: timedelta, *, is_dry: bool) -> list[Reaping]:
    """Decide about every job of Perennial in a namespace, and delete those that are due.

    Args:
        namespace: Where; empty for the pod's own.
        grace: Least age of what is deleted.
        is_dry: Decide only.
    """
    cluster = Cluster.connect(ClusterAddress.read(), namespace)
    # Jobs before runs: a run that is not listed has ended before its job was seen.
    jobs = list(training_jobs(cluster, {}))
    phases = {
        workflow["metadata"]["labels"][KFP_RUN_LABEL]: workflow.get("status", {}).get("phase", "")
        for workflow in cluster.list(WORKFLOWS, KFP_RUN_LABEL)
    }
    decided = []
    for resource, job in jobs:
        decision = decide_reaping(job, phases, datetime.now(UTC), grace)
        decided.append(decision)
        if decision.is_due and not is_dry:
            cluster.delete(resource, decision.name, uid=job["metadata"]["uid"])
    cluster.close()
    return decided
