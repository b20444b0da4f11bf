"""Abandoned runs: MLflow runs whose pipeline run is over, but which nobody has closed."""

import logging
from collections.abc import Callable, Mapping

from perennial.clients.mlflow_client import open_mlflow
from perennial.clients.outages import single_attempts
from perennial.clients.tracking import RUN_TAG
from perennial.contracts.environment import Environment

ENDED_TAG = "perennial.ended"
STATUS = "KILLED"
MOST = 1000  # the next look finds more
logger = logging.getLogger(__name__)


def close_abandoned_runs(
    environment: Environment, is_over: Callable[[Mapping[str, str]], bool], reason: str
) -> list[str]:
    """Mark as killed each open MLflow run of a pipeline run that is over.

    A step that is cancelled or killed has no time to close its own. Opening a run again, as a
    resumed pipeline run does, takes the mark back.

    Args:
        environment: Names the server.
        is_over: Whether the pipeline run of an MLflow run with these tags is over.
        reason: Why, kept as a tag of the MLflow run.

    Returns:
        Ids of the MLflow runs that were closed.
    """
    client = open_mlflow(environment)
    experiments = [found.experiment_id for found in client.search_experiments()]
    query = f"attributes.status = 'RUNNING' and tags.`{RUN_TAG}` LIKE '%'"
    closed: list[str] = []
    for run in client.search_runs(experiments, query, max_results=MOST) if experiments else []:
        if is_over(run.data.tags):
            client.set_tag(run.info.run_id, ENDED_TAG, reason)
            client.set_terminated(run.info.run_id, status=STATUS)
            logger.warning("closed MLflow run %s as %s: %s", run.info.run_id, STATUS, reason)
            closed.append(run.info.run_id)
    return closed


def try_to_close_abandoned_runs(
    environment: Environment, is_over: Callable[[Mapping[str, str]], bool], reason: str
) -> list[str]:
    """Close them, where an MLflow that does not answer must not fail the caller's own work."""
    try:
        with single_attempts():
            return close_abandoned_runs(environment, is_over, reason)
    except Exception as error:  # whatever MLflow's client raises
        logger.warning("open MLflow runs of ended runs are not closed: %s", error)
        return []
