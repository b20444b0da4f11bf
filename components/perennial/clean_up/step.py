"""Exit step: deletes the jobs of this run that still go on, and closes its MLflow run.

It asks the cluster, not KFP: the final status that an exit task is given says RUNNING whenever the
pipeline has branches, and when the run was terminated.
"""

import logging

from perennial.clients.abandoned_runs import try_to_close_abandoned_runs
from perennial.clients.cluster import Cluster
from perennial.clients.tracking import RUN_TAG
from perennial.contracts.environment import ClusterAddress, Environment, load_secrets
from perennial.contracts.errors import PerennialError
from perennial.training_jobs.leftovers import still_goes_on, training_jobs
from perennial.training_jobs.selectors import KFP_RUN_LABEL, RUN_LABEL

logger = logging.getLogger(__name__)


def clean_up_step() -> list[str]:
    """Delete them; returns their names. A run on one machine has none, in a notebook's pod neither.

    Raises:
        PerennialError: this is no pod of a pipeline run.
    """
    address = ClusterAddress.read()
    if address is None or not address.pod:
        return []
    cluster = Cluster.connect(address)
    run_id = cluster.own_pod()["metadata"].get("labels", {}).get(KFP_RUN_LABEL, "")
    if not run_id:
        raise PerennialError(
            "this pod belongs to no pipeline run",
            evidence=f"it has no label {KFP_RUN_LABEL}",
            action="use clean_up as the exit task of a pipeline",
        )
    deleted = []
    for resource, job in training_jobs(cluster, {RUN_LABEL: run_id}):
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        if still_goes_on(job) and cluster.delete(resource, name, uid=uid):
            logger.warning("deleted %s %s, which the run had left behind", resource, name)
            deleted.append(name)
    cluster.close()
    close_tracking_runs(run_id)
    return deleted


def close_tracking_runs(run_id: str) -> None:
    """Close what the run's steps left open in MLflow; where that fails, the reaper does it."""
    try:
        load_secrets()
        environment = Environment.read()
    except PerennialError as error:
        logger.warning("open MLflow runs are left: %s", error)
        return
    try_to_close_abandoned_runs(
        environment,
        lambda tags: tags[RUN_TAG] == run_id,
        f"pipeline run {run_id} ended while this run was open",
    )
