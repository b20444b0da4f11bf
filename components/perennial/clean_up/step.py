"""Exit step: delete the jobs of this run that still run, and close its MLflow run.

It asks the cluster, not KFP: an exit task gets the final status RUNNING whenever the pipeline has
branches, and when the run was terminated.
"""

import logging

from perennial.clients.cluster import Cluster
from perennial.clients.tracking import RUN_TAG, try_to_close_abandoned_runs
from perennial.contracts.environment import ClusterAddress, Environment, load_secrets
from perennial.contracts.errors import PerennialError
from perennial.training_jobs.leftovers import KFP_RUN_LABEL, RUN_LABEL, still_goes_on, training_jobs

logger = logging.getLogger(__name__)


def clean_up_step() -> list[str]:
    """Delete the jobs; return their names. A local run has none, not even in a notebook's pod.

    Raises:
        PerennialError: this is not a pod of a pipeline run.
    """
    address = ClusterAddress.read()
    if address is None or not address.pod:
        return []
    cluster = Cluster.connect(address)
    run_id = cluster.own_pod()["metadata"].get("labels", {}).get(KFP_RUN_LABEL, "")
    if not run_id:
        raise PerennialError(
            "this pod does not belong to a pipeline run",
            evidence=f"it has no label {KFP_RUN_LABEL}",
            action="use clean_up as the exit task of a pipeline",
        )
    deleted = []
    for resource, job in training_jobs(cluster, {RUN_LABEL: run_id}):
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        if still_goes_on(job) and cluster.delete(resource, name, uid=uid):
            logger.warning("deleted %s %s, which was still running", resource, name)
            deleted.append(name)
    cluster.close()
    close_tracking_runs(run_id)
    return deleted


def close_tracking_runs(run_id: str) -> None:
    """Close MLflow runs that the run's steps left open; if that fails, the reaper does it."""
    try:
        load_secrets()
        environment = Environment.read()
    except PerennialError as error:
        logger.warning("open MLflow runs cannot be closed: %s", error)
        return
    try_to_close_abandoned_runs(
        environment,
        lambda tags: tags[RUN_TAG] == run_id,
        f"pipeline run {run_id} ended while this run was open",
    )
