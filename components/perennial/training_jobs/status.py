"""Status: how a training job and its pods stand, what Kueue reports, and how an attempt ended."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perennial.clients.api_server import FORBIDDEN, NOT_FOUND, ApiError, Resource
from perennial.clients.cluster import Cluster, Object, label_selector
from perennial.contracts.errors import TrainingFailedError
from perennial.training_jobs.config import Budgets
from perennial.training_jobs.launcher import JobResult, JobState

logger = logging.getLogger(__name__)

DEADLINE = "DeadlineExceeded"


@dataclass(frozen=True)
class JobView:
    """The relevant fields of a job's status.

    Attributes:
        name: The job's name.
        uid: Identifies the job: another one may get its name.
        run_id: The pipeline run that created it.
        attempt: Name of the attempt.
        spec_digest: Digest of the manifest that it was created from.
        outcome: The outcome that its operator reports; None while it runs.
        is_suspended: Whether it waits to be admitted.
        is_leaving: Whether it is being deleted.
        is_past_deadline: Whether its operator ended it for taking too long.
        message: The operator's message.
    """

    name: str
    uid: str
    run_id: str
    attempt: str
    spec_digest: str
    outcome: Literal["succeeded", "failed"] | None
    is_suspended: bool
    is_leaving: bool
    is_past_deadline: bool
    message: str


# Caused by the kubelet or the scheduler, not by the training.
DISPLACING = frozenset(
    {
        "Evicted", "Preempting", "NodeLost", "NodeShutdown", "NodeAffinity", "Shutdown",
        "Terminated", "TerminationByKubelet", "UnexpectedAdmissionError", "OutOfcpu",
        "OutOfmemory", "OutOfpods",
    }
)  # fmt: skip
# Waiting reasons with which every container starts.
STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60, 3600


@dataclass(frozen=True)
class PodView:
    """The relevant fields of a pod's status.

    Attributes:
        name: The pod's name.
        uid: Identifies the pod: another one may get its name.
        phase: The API's phase.
        is_scheduled: Whether it has a machine.
        is_leaving: Whether it is being deleted.
        has_started: Whether its container runs or has run.
        reason: The API's reason why it waits or ended.
        message: The API's message with the reason.
        exit_code: Exit code of its container; None before it ended.
        disruption: Why the cluster disrupts it; empty if it does not.
    """

    name: str
    uid: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    is_scheduled: bool
    is_leaving: bool
    has_started: bool
    reason: str
    message: str
    exit_code: int | None
    disruption: str

    @classmethod
    def of(cls, pod: Object, container: str) -> "PodView":
        """Return the view of a pod, by its training container."""
        status = pod.get("status", {})
        conditions = {each["type"]: each for each in status.get("conditions", ())}
        scheduled = conditions.get("PodScheduled", {})
        is_scheduled = scheduled.get("status") == "True"
        ours = _state_of(status.get("containerStatuses", ()), container)
        ended, waiting = ours.get("terminated", {}), _waiting(status)
        states = [ended, waiting, {} if is_scheduled else scheduled]
        target = conditions.get("DisruptionTarget", {})
        return cls(
            name=pod["metadata"]["name"],
            uid=pod["metadata"]["uid"],
            phase=status.get("phase", "Pending"),
            is_scheduled=is_scheduled or bool(ours),
            is_leaving="deletionTimestamp" in pod["metadata"],
            has_started="running" in ours or bool(ended),
            reason=_first(status.get("reason", ""), *(each.get("reason", "") for each in states)),
            message=_first(
                status.get("message", ""), *(each.get("message", "") for each in states)
            ),
            exit_code=ended.get("exitCode"),
            disruption=target.get("reason", "") if target.get("status") == "True" else "",
        )

    @property
    def has_ended(self) -> bool:
        """Whether none of its containers runs any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_displaced(self) -> bool:
        """Whether it was preempted or evicted, or its machine was lost."""
        return bool(self.disruption) or self.reason in DISPLACING or self.phase == "Unknown"

    @property
    def is_stuck(self) -> bool:
        """Whether one of its containers cannot start."""
        return self.phase == "Pending" and self.is_scheduled and self.reason not in STARTING

    def describe(self) -> str:
        """Return name, phase, reason and message in one line."""
        ending = "" if self.exit_code is None else f", exit code {self.exit_code}"
        why = (
            f": {self.disruption or self.reason}{ending}" if self.disruption or self.reason else ""
        )
        message = f" ({self.message.strip()[:300]})" if self.message else ""
        return f"{self.name} {self.phase}{why}{message}"


def _state_of(statuses: list[Object], container: str) -> Object:
    for each in statuses:
        if each["name"] == container:
            state: Object = each.get("state", {})
            return state
    return {}


def _waiting(status: Object) -> Object:
    """Return what a container waits for; init containers come first."""
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    found = [each["state"]["waiting"] for each in containers if "waiting" in each.get("state", {})]
    # A container behind one that cannot start only reports that it waits for it.
    return next((each for each in found if each.get("reason", "") not in STARTING), {}) or next(
        iter(found), {}
    )


def _first(*texts: str) -> str:
    return next((text for text in texts if text), "")


WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
JOB_UID = "kueue.x-k8s.io/job-uid"  # Kueue's label on the Workload that it makes of a job
NOT_STARTED = (
    "read the log of Kueue's controller: kubectl -n kueue-system logs deployment/"
    "kueue-controller-manager. Known issue: Kueue 0.17 and later cannot start TrainJobs of a "
    "Trainer below 2.2; upgrade both"
)


Phase = Literal["queued", "starting", "running", "ended"]


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


def read_admission(cluster: Cluster, uid: str) -> JobStatus:
    """Return the status of a suspended job, as Kueue reports it.

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
            return JobStatus(
                "queued", "it is suspended, and the cluster does not serve Kueue's Workloads"
            )
        if error.status == FORBIDDEN:
            return JobStatus(
                "queued", f"it is suspended; the reason cannot be read: {error.evidence}"
            )
        raise
    if not found:
        return _suspended("it is suspended, and Kueue has not created a Workload for it")
    return admission_of(max(found, key=lambda each: each["metadata"]["creationTimestamp"]))


def admission_of(workload: Object) -> JobStatus:
    """Return the status of a suspended job from its Workload."""
    status = workload.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    true = {name: each for name, each in conditions.items() if each["status"] == "True"}
    if "Finished" in true:
        return JobStatus(
            "queued",
            f"Kueue stopped it: {_message(true['Finished'])}",
            is_stuck=True,
            remedy=NOT_STARTED,
        )
    if not workload.get("spec", {}).get("active", True):
        return JobStatus(
            "queued", f"its Workload was deactivated: {_message(true.get('Evicted', {}))}"
        )
    if "Admitted" in true and "Evicted" not in true:
        message = _message(true["Admitted"])
        return JobStatus(
            "queued",
            f"Kueue admitted it ({message}), but it stays suspended",
            is_stuck=True,
            remedy=NOT_STARTED,
        )
    if "QuotaReserved" in true:
        waits = [each for each in status.get("admissionChecks", ()) if each["state"] != "Ready"]
        messages = "; ".join(f"{each['name']} {each['state']}: {each['message']}" for each in waits)
        return _suspended(f"it waits for admission checks: {messages or 'none is named'}")
    return JobStatus(
        "queued", f"it waits to be admitted: {_message(conditions.get('QuotaReserved', {}))}"
    )


def _suspended(reason: str, remedy: str = "") -> JobStatus:
    """Return the status of a suspended job; with a remedy if it can wait for nothing more."""
    if not remedy:
        return JobStatus("queued", reason)
    return JobStatus("queued", reason, is_stuck=True, remedy=remedy)


def _message(condition: Object) -> str:
    return str(condition.get("message") or condition.get("reason") or "Kueue reports no reason")


DELETED = "Deleted"  # by an unknown party
# The launcher may not read the events, which alone contain the reason.
REFUSED = (
    "the operator could not create the others; the job's events contain the reason (kubectl "
    "describe): a quota, or Pod Security, which rejects the init container that the training "
    "operator adds to workers of PyTorchJobs; k8s/components/training-operator removes it"
)


def job_status(
    job: JobView, pods: Sequence[PodView], machines: int, admission: JobStatus | None = None
) -> JobStatus:
    """Return a job's status, from its pods first: its conditions are unreliable.

    The operator reports Succeeded as soon as the first pod has ended, and Failed late or never if a
    pod failed that it did not watch.

    Args:
        job: The job.
        pods: The job's existing pods.
        machines: Required number of pods.
        admission: Status of a suspended job, as Kueue reports it.
    """
    failed = [pod for pod in pods if pod.phase == "Failed" or pod.is_displaced]
    if failed:
        return JobStatus("ended", "; ".join(pod.describe() for pod in failed))
    if job.outcome is not None:
        return JobStatus("ended", job.message or job.outcome)
    if len(pods) == machines and all(pod.phase == "Succeeded" for pod in pods):
        return JobStatus("ended", "every pod succeeded")
    if job.is_suspended:
        return admission or JobStatus("queued", "it is suspended")
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
    are_displaced = bool(failed) and all(pod.is_displaced or pod.is_leaving for pod in failed)
    if are_displaced or any(pod.is_displaced and pod.disruption != DELETED for pod in failed):
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
