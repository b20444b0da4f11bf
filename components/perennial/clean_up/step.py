"""Exit step: delete this run's jobs that still run, close its MLflow run, write its page.

It asks the cluster, not KFP: an exit task gets the final status RUNNING whenever the pipeline has
branches, and when the run was terminated.
"""

import logging
from dataclasses import replace
from pathlib import Path

from perennial.clean_up.killed_steps import complete_records, was_cancelled
from perennial.clean_up.page import find_trigger, run_page, started_by
from perennial.clients.cluster import PODS, Cluster
from perennial.clients.object_store import open_store
from perennial.clients.outages import errors_logged
from perennial.clients.tracking import NOT_ADDED, RUN_TAG, add_run_page, close_abandoned_runs
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import ClusterAddress, Environment, load_secrets
from perennial.contracts.errors import PerennialError
from perennial.engine.evaluation.job_files import forget_scorings
from perennial.steps.parameters import shown_text
from perennial.steps.stored_steps import FLOW, StoredRun
from perennial.training_jobs.leftovers import (
    KFP_RUN_LABEL,
    RUN_LABEL,
    still_goes_on,
    training_jobs,
)

logger = logging.getLogger(__name__)


def clean_up_step(
    *, model: str = "", reason: str = "", pipeline: str = "", trigger: str = "", report: str = ""
) -> list[str]:
    """Delete the jobs; return their names. A local run has none, not even in a notebook's pod.

    Args:
        model: The model's name, for the page.
        reason: Why the run was started, in words.
        pipeline: The pipeline's name; the page lists its steps that did not run.
        trigger: Why the run was started, as JSON; a clone has the trigger of another run.
        report: Where to write the run's page; empty for none.

    Raises:
        PerennialError: this is not a pod of a pipeline run.
    """
    address = ClusterAddress.read()
    if address is None or not address.pod:
        return []
    cluster = Cluster.connect(address)
    pod = cluster.own_pod()
    run_id = pod["metadata"].get("labels", {}).get(KFP_RUN_LABEL, "")
    if not run_id:
        raise PerennialError(
            "this pod does not belong to a pipeline run",
            evidence=f"it has no label {KFP_RUN_LABEL}",
            action="use clean_up as the exit task of a pipeline",
        )
    # Jobs first: they cost money, and what follows may fail.
    deleted = []
    for resource, job in training_jobs(cluster, {RUN_LABEL: run_id}):
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        if still_goes_on(job) and cluster.delete(resource, name, uid=uid):
            logger.warning("deleted %s %s, which was still running", resource, name)
            deleted.append(name)
    try:
        load_secrets()
        environment = Environment.read()
    except PerennialError as error:
        logger.warning("open MLflow runs and the run's page are left as they are: %s", error)
        return deleted
    finally:
        pods = cluster.list(PODS, f"{KFP_RUN_LABEL}={run_id}")
        is_cancelled = was_cancelled(cluster, pod)
        cluster.close()
    close_tracking_runs(environment, run_id)
    with errors_logged("files of the run's scorings are left in the store", PerennialError):
        forget_scorings(open_store(environment.store_uri), run_id)
    stored = StoredRun(environment.store_uri, run_id)
    complete_records(stored, pods, FLOW.get(pipeline, ()), is_cancelled=is_cancelled)
    cause = started_by(stored, shown_text(reason), trigger)
    page = run_page(stored, model, run_id, cause, pipeline)
    stored.write_page("run", page.encode())
    own = replace(environment, run_id=run_id)
    with errors_logged(NOT_ADDED):
        add_run_page(own, model, page, find_trigger(stored.steps(), trigger))
    if report:
        write_atomically(Path(report), page.encode())
    return deleted


def close_tracking_runs(environment: Environment, run_id: str) -> None:
    """Close MLflow runs that the run's steps left open; if that fails, the reaper does it."""
    close_abandoned_runs(
        environment,
        lambda tags: tags[RUN_TAG] == run_id,
        f"pipeline run {run_id} ended while this run was open",
    )
