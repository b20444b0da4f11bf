"""Status: how does a training job stand, what does Kueue report, and is it time to stop it?"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perennial.clients.api_server import FORBIDDEN, NOT_FOUND, ApiError, Resource
from perennial.clients.cluster import Cluster, Object, label_selector
from perennial.contracts.errors import TrainingFailedError
from perennial.training_jobs.config import Budgets
from perennial.training_jobs.job_kinds import DEADLINE, JobView
from perennial.training_jobs.launcher import JobState
from perennial.training_jobs.pods import SECONDS_PER_HOUR, SECONDS_PER_MINUTE, PodView

WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
JOB_UID = "kueue.x-k8s.io/job-uid"  # Kueue's label on the Workload that it makes of a job
NOT_STARTED = (
    "read the log of Kueue's controller: kubectl -n kueue-system logs deployment/"
    "kueue-controller-manager. Known issue: Kueue 0.17 and later cannot start TrainJobs of a "
    "Trainer below 2.2; upgrade both"
)


@dataclass(frozen=True)
class Admission:
    """Kueue's state of a suspended job.

    Attributes:
        reason: Why it is suspended, in one line.
        remedy: What a person must do if Kueue admitted the job but it stays suspended; empty if
            waiting is in order.
    """

    reason: str
    remedy: str = ""


def read_admission(cluster: Cluster, uid: str) -> Admission:
    """Return Kueue's state of a suspended job.

    Args:
        cluster: Where the job is.
        uid: The job's.

    Raises:
        ApiError: the API server does not answer.
    """
    try:
        found = cluster.list(WORKLOADS, label_selector({JOB_UID: uid}))
    except ApiError as error:
        if error.status == NOT_FOUND:
            return Admission("it is suspended, and the cluster does not serve Kueue's Workloads")
        if error.status == FORBIDDEN:
            return Admission(f"it is suspended; the reason cannot be read: {error.evidence}")
        raise
    if not found:
        return Admission("it is suspended, and Kueue has not created a Workload for it")
    return admission_of(max(found, key=lambda each: each["metadata"]["creationTimestamp"]))


def admission_of(workload: Object) -> Admission:
    """Return the state of a suspended job from its Workload."""
    status = workload.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    true = {name: each for name, each in conditions.items() if each["status"] == "True"}
    if "Finished" in true:
        return Admission(f"Kueue stopped it: {_message(true['Finished'])}", NOT_STARTED)
    if not workload.get("spec", {}).get("active", True):
        return Admission(f"its Workload was deactivated: {_message(true.get('Evicted', {}))}")
    if "Admitted" in true and "Evicted" not in true:
        message = _message(true["Admitted"])
        return Admission(f"Kueue admitted it ({message}), but it stays suspended", NOT_STARTED)
    if "QuotaReserved" in true:
        waits = [each for each in status.get("admissionChecks", ()) if each["state"] != "Ready"]
        messages = "; ".join(f"{each['name']} {each['state']}: {each['message']}" for each in waits)
        return Admission(f"it waits for admission checks: {messages or 'none is named'}")
    return Admission(f"it waits to be admitted: {_message(conditions.get('QuotaReserved', {}))}")


def _message(condition: Object) -> str:
    return str(condition.get("message") or condition.get("reason") or "Kueue reports no reason")


logger = logging.getLogger(__name__)
Phase = Literal["queued", "starting", "running", "ended"]
DELETED = "Deleted"  # by an unknown party
# The launcher may not read the events, which alone contain the reason.
REFUSED = (
    "the operator could not create the others; the job's events contain the reason (kubectl "
    "describe): a quota, or Pod Security, which rejects the init container that the training "
    "operator adds to workers of PyTorchJobs; k8s/components/training-operator removes it"
)


@dataclass(frozen=True)
class JobStatus:
    """Status of a job.

    Attributes:
        phase: The current phase.
        reason: Why it has not reached the next phase, in one line.
        is_stuck: Whether it cannot continue by itself: a container cannot start, or the job stays
            suspended after Kueue admitted it.
        remedy: What a person can do about it, if known.
    """

    phase: Phase
    reason: str
    is_stuck: bool = False
    remedy: str = "fix what the pods wait for"


def job_status(
    job: JobView, pods: Sequence[PodView], machines: int, admission: Admission | None = None
) -> JobStatus:
    """Return a job's status, from its pods first: its conditions are unreliable.

    The operator reports Succeeded as soon as the first pod has ended, and Failed late or never if a
    pod failed that it did not watch.

    Args:
        job: The job.
        pods: The job's existing pods.
        machines: Required number of pods.
        admission: Kueue's state of a suspended job.
    """
    failed = [pod for pod in pods if pod.phase == "Failed" or pod.is_displaced]
    if failed:
        return JobStatus("ended", "; ".join(pod.describe() for pod in failed))
    if job.outcome is not None:
        return JobStatus("ended", job.message or job.outcome)
    if len(pods) == machines and all(pod.phase == "Succeeded" for pod in pods):
        return JobStatus("ended", "every pod succeeded")
    if admission is not None and admission.remedy:
        return JobStatus("queued", admission.reason, is_stuck=True, remedy=admission.remedy)
    if job.is_suspended:
        return JobStatus("queued", admission.reason if admission else "it is suspended")
    return _before_the_end(pods, machines)


def _before_the_end(pods: Sequence[PodView], machines: int) -> JobStatus:
    unplaced = [pod for pod in pods if not pod.is_scheduled]
    if unplaced or len(pods) < machines:
        shown = "; ".join(pod.describe() for pod in unplaced)
        if not shown:
            shown = f"{len(pods)} of {machines} pods exist"
            # An operator creates all at once: pods that are missing when one runs were refused.
            shown += f"; {REFUSED}" if any(pod.has_started for pod in pods) else ""
        return JobStatus("queued", shown)
    waiting = [pod for pod in pods if not pod.has_started]
    if waiting:
        stuck = [pod for pod in waiting if pod.is_stuck]
        reason = "; ".join(pod.describe() for pod in stuck or waiting)
        return JobStatus("starting", reason, is_stuck=bool(stuck))
    return JobStatus("running", f"{machines} pods run")


def rendezvous_pending(machines: int) -> JobStatus:
    """Return the status of a job whose pods run but whose rendezvous is not complete."""
    return JobStatus(
        "starting",
        f"{machines} pods run, but the rendezvous of their ranks is not complete",
        remedy="find what blocks the connections between the pods: a NetworkPolicy, the DNS name "
        "of the first pod's Service, a service mesh's sidecars",
    )


class Progress:
    """Duration of each phase, logged when the phase changes.

    Args:
        budgets: The contract's timeouts.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._limits = {
            "queued": (budgets.queued_hours * SECONDS_PER_HOUR, "queued_hours"),
            "starting": (budgets.starting_minutes * SECONDS_PER_MINUTE, "starting_minutes"),
            "running": (budgets.running_hours * SECONDS_PER_HOUR, "running_hours"),
        }
        self._stuck_limit = budgets.stuck_minutes * SECONDS_PER_MINUTE
        self._now: JobStatus | None = None
        self._since = 0.0
        self._stuck_since: float | None = None

    def update(self, now: JobStatus, moment: float) -> str:
        """Record a status; return why the job timed out, or an empty string.

        A job is stuck from the first observation of it: a late observation, by a launcher that was
        itself delayed, does not tell since when.

        Args:
            now: The current status.
            moment: Time of the observation, in seconds of a steady clock.
        """
        if self._now is None or now.phase != self._now.phase:
            self._since = moment
        if now != self._now:
            logger.info("training is %s: %s", now.phase, now.reason)
        self._now = now
        if not now.is_stuck:
            self._stuck_since = None
        elif self._stuck_since is None:
            self._stuck_since = moment
        elif (stuck_seconds := moment - self._stuck_since) > self._stuck_limit:
            what = "it" if now.phase == "queued" else "a pod"
            return f"{what} could not start for {stuck_seconds:.0f} s (stuck_minutes)"
        if now.phase == "ended":
            return ""
        limit, name = self._limits[now.phase]
        seconds = moment - self._since
        return f"it has been {now.phase} for {seconds:.0f} s ({name})" if seconds > limit else ""


@dataclass(frozen=True)
class JobResult:
    """The result of an attempt.

    Attributes:
        state: The final state, which decides on a restart.
        cause: The cause that the cluster reports.
    """

    state: JobState
    cause: str


def job_result(
    job: JobView, pods: Sequence[PodView], *, missing: int, all_ranks_finished: bool,
    was_interrupted: bool,
) -> JobResult:  # fmt: skip
    """Return the result of an attempt that has ended.

    It succeeded if rank 0 recorded that every rank finished, and no pod contradicts. A pod that was
    terminating when the training was complete does not contradict: the operator deletes those that
    still run when the first one has ended.

    Args:
        job: The job.
        pods: Last observed views of the pods, deleted ones included.
        missing: Number of pods that never existed.
        all_ranks_finished: Whether rank 0 recorded that all ranks finished.
        was_interrupted: Whether rank 0 recorded that a signal stopped them; checkpoint saved.
    """
    failed = [pod for pod in pods if pod.phase == "Failed" or pod.is_displaced]
    seen = "; ".join(pod.describe() for pod in failed) or job.message or "no pod reports a reason"
    if missing:
        seen = f"{missing} of its pods never existed; {REFUSED}. The others: {seen}"
    if all_ranks_finished and all(pod.is_leaving or pod.is_displaced for pod in failed):
        return JobResult(JobState.SUCCEEDED, "every rank finished")
    if was_interrupted:
        return JobResult(JobState.INTERRUPTED, seen)
    if job.outcome == "succeeded":  # its other pods were deleted because of that
        seen = f"the job reports success, but not every rank has finished: {seen}"
        return JobResult(JobState.FAILED, seen)
    # When one failed, the operator deletes the others, so their end carries no information.
    are_taken_away = bool(failed) and all(pod.is_displaced or pod.is_leaving for pod in failed)
    if are_taken_away or any(pod.is_displaced and pod.disruption != DELETED for pod in failed):
        return JobResult(JobState.DISPLACED, seen)
    return JobResult(JobState.FAILED, seen)


def stopped_error(job: str, reason: str, now: JobStatus) -> TrainingFailedError:
    """Return the error for a job that was deleted because it timed out."""
    return TrainingFailedError(
        f"the training job {job} timed out and was deleted: {reason}",
        evidence=now.reason,
        action=f"{now.remedy}, or raise the timeout in [resources.cluster.budgets]; run again to "
        "resume from the last checkpoint",
    )


def is_past_deadline(job: JobView, pods: Sequence[PodView]) -> bool:
    """Whether the kubelet ended a pod, or the Trainer its job, at the deadline."""
    return job.is_past_deadline or any(pod.reason == DEADLINE for pod in pods)
