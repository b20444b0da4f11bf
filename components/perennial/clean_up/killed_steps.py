"""Killed steps: the records of steps that could not write how they ended, or never started."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from perennial.clean_up.page import step_page
from perennial.clients.cluster import WORKFLOWS, Cluster, Object
from perennial.contracts.errors import PerennialError
from perennial.contracts.monitoring import RetrainingDecision
from perennial.steps.stored_steps import StoredRun, StoredStep
from perennial.training_jobs.leftovers import step_of_pod, task_of_pod
from perennial.training_jobs.manifests import STEP_CONTAINER
from perennial.training_jobs.status import PodView

logger = logging.getLogger(__name__)
DECIDING = "decide_retraining"
MORE_MEMORY = "raise [pods.steps.{step}] memory of the profile, then deploy again"


def was_cancelled(cluster: Cluster, pod: Object) -> bool:
    """Whether somebody terminated the run: Kubeflow then sets its Workflow's deadline to zero."""
    owners = pod["metadata"].get("ownerReferences", ())
    name = next((each["name"] for each in owners if each["kind"] == "Workflow"), "")
    try:
        workflow = cluster.get(WORKFLOWS, name) if name else None
    except PerennialError as error:
        logger.warning("whether the run was cancelled cannot be read: %s", error)
        return False
    return workflow is not None and workflow["spec"].get("activeDeadlineSeconds") == 0


def complete_records(
    stored: StoredRun, pods: Iterable[Object], flow: Sequence[str] = (), *, is_cancelled: bool
) -> None:
    """Record the end of the steps that could not do so: killed, or never started.

    `flow` are the steps of the run's pipeline in their order; empty if it is not known.
    """

    def end(record: StoredStep, error: PerennialError) -> StoredStep:
        cancelled = {"status": "cancelled", "ended": time.time()}
        ended = (
            record.model_copy(update=cancelled)
            if is_cancelled
            else record.failed_with(error, time.time())
        )
        stored.write(ended, step_page(ended).html().encode())
        return ended

    known = {record.step: record for record in stored.steps()}
    ended = _last_pods(pods)
    for step in sorted({*known, *ended}):
        record = known.get(step) or _begun_now(step)
        view = ended.get(step)
        # A step without a record never started; a pod that only waits may still do so.
        is_lost = step in known or (view is not None and view.phase == "Failed")
        if record.status == "running" and is_lost:
            known[step] = end(record, _killed(step, view))
    missing = find_missing_step(flow, known, ended)
    # Behind a record: another worker of the step failed, or Kubeflow could not keep its outputs.
    broken = [step for step in known if step in ended and ended[step].phase == "Failed"]
    if missing and broken and not is_cancelled:
        end(known[broken[-1]], _killed(broken[-1], ended[broken[-1]]))
    elif missing:
        end(_begun_now(missing), _never_started(missing))


def _last_pods(pods: Iterable[Object]) -> dict[str, PodView]:
    """Return step → its last pod; of a step that several workers share, one that failed."""
    last: dict[str, tuple[str, PodView]] = {}
    # Oldest first: of a task that was retried, the last pod counts.
    for pod in sorted(pods, key=lambda each: str(each["metadata"].get("creationTimestamp", ""))):
        step = step_of_pod(pod)
        if step and step != "clean_up":
            last[task_of_pod(pod)] = step, PodView.of(pod, STEP_CONTAINER)
    found: dict[str, PodView] = {}
    for step, view in last.values():
        if step not in found or view.phase == "Failed":
            found[step] = view
    return found


def find_missing_step(
    flow: Sequence[str], records: Mapping[str, StoredStep], pods: Mapping[str, PodView]
) -> str:
    """Return the step that should have followed the last one; empty if the run came to its end.

    Without it, a run whose next pod never existed would have no failure, and its retraining would
    count as done.
    """
    if any(record.status in ("failed", "cancelled") for record in records.values()):
        return ""
    reached = [step for step in flow if step in records or step in pods]
    if reached and reached[-1] == DECIDING:
        decided = records.get(DECIDING)
        decision = decided.result(RetrainingDecision) if decided is not None else None
        if decision is None or not decision.retrain:
            return ""
    following = flow[flow.index(reached[-1]) + 1 :] if reached else flow
    return next(iter(following), "")


def _begun_now(step: str) -> StoredStep:
    return StoredStep(step=step, status="running", began=time.time())


def _never_started(step: str) -> PerennialError:
    return PerennialError(
        f"{step} did not start: the run ended before it",
        evidence="it has neither a record nor a pod, and the steps before it finished",
        action="read in the dashboard what ended the run: a driver of Kubeflow that failed, or a "
        'pod that was deleted while it waited; press "retry" there',
    )


def _killed(step: str, view: PodView | None) -> PerennialError:
    if view is None:
        return PerennialError(
            f"{step} ended before it wrote its result: its pod is gone",
            action='the machine may have been drained; press "retry" on the run in the dashboard',
        )
    if view.is_displaced:
        return PerennialError(
            f"{step} ended before it wrote its result: its pod was preempted or lost its machine",
            evidence=view.describe(),
            action='press "retry" on the run in the dashboard',
        )
    # 137 is 128 + SIGKILL, with which the kernel ends what needs more memory than it may have.
    is_memory = "OOMKilled" in view.reason or view.exit_code == 137
    return PerennialError(
        f"{step} ran out of memory: Kubernetes killed it"
        if is_memory
        else f"{step} ended before it wrote its result",
        evidence=view.describe(),
        action=MORE_MEMORY.format(step=step) if is_memory else "see the log of this pod",
    )
