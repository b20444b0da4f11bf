"""Logs: what a run's pods print, as long as they are there."""

from collections.abc import Iterator

from urllib3.exceptions import HTTPError

from perennial.clients.cluster import FORBIDDEN, PODS, ApiError, Cluster, Object
from perennial.contracts.errors import PerennialError
from perennial.steps.stored_steps import StoredRun
from perennial.training_jobs.leftovers import (
    KFP_RUN_LABEL,
    RUN_LABEL,
    SCORING_STEPS,
    TRAINING_STEPS,
    is_scoring_pod,
    place_of_pod,
    pods_of,
    training_jobs,
)

CONTAINERS = ("main", "pytorch", "node")
"""Containers of a step, a PyTorchJob's pod and a TrainJob's pod."""


def run_log_lines(
    cluster: Cluster, run_id: str, step: str = "", store_uri: str = ""
) -> Iterator[str]:
    """Yield each line of a run's pods, in the order of their creation; a running pod is followed.

    With a step, such as `train_model`, only pods whose place in the pipeline contains it; pods of
    trainings belong to that one, those of a study's trials to `run_trials`, and those of scorings
    to each step that scores. If the run's pods are gone, the logs that its steps have stored.

    Raises:
        PerennialError: neither pods nor stored logs of the run are left, or none matches.
    """
    steps = [pod for pod in cluster.list(PODS, f"{KFP_RUN_LABEL}={run_id}") if not _is_driver(pod)]
    jobs = _training_pods(cluster, run_id)
    if not steps and not jobs:
        stored = StoredRun(store_uri, run_id).logs() if store_uri else {}
        found_logs = {name: log for name, log in stored.items() if step in name}
        if found_logs:
            for name, log in found_logs.items():
                yield f"── {name} (stored)"
                yield from log.splitlines()
            return
        raise PerennialError(
            f"no pod of the run {run_id} is left in {cluster.namespace}",
            evidence="pods are removed some time after a run; the dashboard keeps the reports of "
            "steps that finished",
            action="see the object store: a failed step's report is below "
            f"reports/{run_id}/, the logs of trainings below training/",
        )
    wanted = step.replace("_", "-")
    found = [pod for pod in steps if wanted in _place(pod)]
    for pod in jobs:
        waiting = SCORING_STEPS if is_scoring_pod(pod) else TRAINING_STEPS
        found += [pod] if any(wanted in each.replace("_", "-") for each in waiting) else []
    if not found:
        places = sorted({_place(pod) for pod in steps})
        raise PerennialError(
            f"no pod of the run belongs to a step {step!r}", evidence=f"there are: {places}"
        )
    for pod in sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", ""))):
        yield f"── {_place(pod)} ({pod['status'].get('phase', 'Unknown')})"
        yield from _lines_of(cluster, pod)


def _training_pods(cluster: Cluster, run_id: str) -> list[Object]:
    # Pods of PyTorchJobs, and of Katib's trials, which are no such jobs, name their run.
    found = cluster.list(PODS, f"{RUN_LABEL}={run_id}")
    try:
        jobs = list(training_jobs(cluster, {RUN_LABEL: run_id}))
    except ApiError as error:
        if error.status != FORBIDDEN:
            raise
        return found
    for resource, job in jobs:
        found += cluster.list(PODS, pods_of(resource, job["metadata"]["name"]))
    return list({pod["metadata"]["name"]: pod for pod in found}.values())


def _lines_of(cluster: Cluster, pod: Object) -> Iterator[str]:
    names = {container["name"] for container in pod["spec"]["containers"]}
    container = next((name for name in CONTAINERS if name in names), min(names))
    try:
        for line in cluster.log_lines(pod["metadata"]["name"], container):
            yield line.partition(" ")[2]  # the line begins with the server's time
    except ApiError as error:
        yield f"   no log: {error.evidence}"
    except HTTPError as error:
        yield f"   the connection was lost: {error}; run the command again for the rest"


def _place(pod: Object) -> str:
    return place_of_pod(pod) or str(pod["metadata"]["name"])


def _is_driver(pod: Object) -> bool:
    """Whether a pod is one of KFP's own, which decide what a step is given."""
    return "-driver" in pod["metadata"]["name"] or "driver" in place_of_pod(pod).partition("(")[0]
