"""Status: how a training job and its pods stand, what Kueue reports, and how an attempt ended."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perennial.clients.cluster import (
    FORBIDDEN,
    NOT_FOUND,
    ApiError,
    Cluster,
    Object,
    Resource,
    label_selector,
)
from perennial.contracts.errors import TrainingFailedError
from perennial.engine.job import Job
from perennial.training_jobs.config import Budgets
from perennial.training_jobs.launcher import JobResult, JobState

logger = logging.getLogger(__name__)

DEADLINE = "DeadlineExceeded"


@dataclass(frozen=True)
class JobView:
    """The relevant fields of a job's status."""

    name: str
    uid: str
    """Identifies the job: another one may get its name."""
    run_id: str
    attempt: str
    spec_digest: str
    """Digest of the manifest that it was created from."""
    machines: int
    processes: int
    """Of all machines; another run's may differ from ours."""
    outcome: Literal["succeeded", "failed"] | None
    """The outcome that its operator reports; None while it runs."""
    is_suspended: bool
    is_leaving: bool
    is_past_deadline: bool
    message: str


# Caused by the kubelet or the scheduler, not by the training.
DISPLACING = frozenset(
    {
        "Evicted",
        "Preempting",
        "NodeLost",
        "NodeShutdown",
        "NodeAffinity",
        "Shutdown",
        "Terminated",
        "TerminationByKubelet",
        "UnexpectedAdmissionError",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
    }
)
# Waiting reasons with which every container starts.
STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60, 3600


@dataclass(frozen=True)
class PodView:
    """The relevant fields of a pod's status."""

    name: str
    uid: str
    """Identifies the pod: another one may get its name."""
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    is_scheduled: bool
    is_leaving: bool
    has_started: bool
    """Whether its container runs or has run."""
    reason: str
    """Why it waits or ended."""
    message: str
    exit_code: int | None
    disruption: str
    """Why the cluster disrupts it; empty if it does not."""

    @classmethod
    def of(cls, pod: Object, container: str) -> "PodView":
        """Return the view of a pod, by its training container."""
        status = pod.get("status", {})
        conditions = {each["type"]: each for each in status.get("conditions", ())}
        scheduled = conditions.get("PodScheduled", {})
        is_scheduled = scheduled.get("status") == "True"
        containers = status.get("containerStatuses", ())
        ours: Object = next(
            (each.get("state", {}) for each in containers if each["name"] == container), {}
        )
        ended = ours.get("terminated", {})
        # The first with a reason counts: an eviction is stated by the pod, and by no container.
        states = [status, ended, _waiting(status), {} if is_scheduled else scheduled]
        target = conditions.get("DisruptionTarget", {})
        return cls(
            name=pod["metadata"]["name"],
            uid=pod["metadata"]["uid"],
            phase=status.get("phase", "Pending"),
            is_scheduled=is_scheduled or bool(ours),
            is_leaving="deletionTimestamp" in pod["metadata"],
            has_started="running" in ours or bool(ended),
            reason=next((each["reason"] for each in states if each.get("reason")), ""),
            message=next((each["message"] for each in states if each.get("message")), ""),
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
        reason = self.disruption or self.reason
        why = f": {reason}{ending}" if reason else ""
        message = f" ({self.message.strip()[:300]})" if self.message else ""
        return f"{self.name} {self.phase}{why}{message}"


def _waiting(status: Object) -> Object:
    """Return what a container waits for; init containers come first."""
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    found = [each["state"]["waiting"] for each in containers if "waiting" in each.get("state", {})]
    # A container behind one that cannot start only reports that it waits for it.
    blocked = [each for each in found if each.get("reason", "") not in STARTING]
    return next(iter(blocked or found), {})


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
    """Status of a job."""

    phase: Phase
    reason: str
    """Why it has not reached the next phase, in one line."""
    is_stuck: bool = False
    """Whether it cannot continue by itself: a container cannot start, or the job stays suspended
    after Kueue admitted it."""
    remedy: str = "fix what the pods wait for"


def read_admission(cluster: Cluster, job: JobView) -> JobStatus:
    """Return the status of a suspended job, as Kueue reports it.

    Raises:
        ApiError: the API server does not answer.
    """
    try:
        found = cluster.list(WORKLOADS, label_selector({JOB_UID: job.uid}))
    except ApiError as error:
        unknown = {
            NOT_FOUND: ", and the cluster does not serve Kueue's Workloads",
            FORBIDDEN: f"; the reason cannot be read: {error.evidence}",
        }
        if error.status not in unknown:
            raise
        return JobStatus("queued", f"it is suspended{unknown[error.status]}")
    if not found:
        return JobStatus("queued", "it is suspended, and Kueue has not created a Workload for it")
    return admission_of(max(found, key=lambda each: each["metadata"]["creationTimestamp"]))


def admission_of(workload: Object) -> JobStatus:
    """Return the status of a suspended job from its Workload."""
    status = workload.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    true = {name: each for name, each in conditions.items() if each["status"] == "True"}
    # An evicted Workload stays Admitted until its quota is given back.
    is_admitted = "Admitted" in true and "Evicted" not in true
    if "Finished" in true:
        reason = f"Kueue stopped it: {_message(true['Finished'])}"
    elif not workload.get("spec", {}).get("active", True):
        reason = f"its Workload was deactivated: {_message(true.get('Evicted', {}))}"
        return JobStatus("queued", reason)
    elif is_admitted:
        reason = f"Kueue admitted it ({_message(true['Admitted'])}), but it stays suspended"
    elif "QuotaReserved" in true:
        waits = [each for each in status.get("admissionChecks", ()) if each["state"] != "Ready"]
        messages = "; ".join(f"{each['name']} {each['state']}: {each['message']}" for each in waits)
        return JobStatus("queued", f"it waits for admission checks: {messages or 'none is named'}")
    else:
        reason = f"it waits to be admitted: {_message(conditions.get('QuotaReserved', {}))}"
        return JobStatus("queued", reason)
    return JobStatus("queued", reason, is_stuck=True, remedy=NOT_STARTED)


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
    pod failed that it did not watch. `machines` is the required number of pods, `admission` that of
    a suspended job.
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
    """Duration of each phase, logged when the phase changes; `kind` is that of the job."""

    def __init__(self, budgets: Budgets, kind: str) -> None:
        self._kind = kind
        self._limits = {
            "queued": (budgets.queued_hours * SECONDS_PER_HOUR, "queued_hours"),
            "starting": (budgets.starting_minutes * SECONDS_PER_MINUTE, "starting_minutes"),
            "running": (budgets.running_hours * SECONDS_PER_HOUR, "running_hours"),
        }
        self._stuck_limit = budgets.stuck_minutes * SECONDS_PER_MINUTE
        self._now: JobStatus | None = None
        self._since = 0.0
        self._stuck_since: float | None = None

    def seconds_queued(self, moment: float) -> float:
        """Return how long it has been queued; 0 in any other phase."""
        is_queued = self._now is not None and self._now.phase == "queued"
        return moment - self._since if is_queued else 0.0

    def update(self, now: JobStatus, moment: float) -> str:
        """Record a status at a moment, in seconds; return why the job timed out, or an empty text.

        A job is stuck from the first observation of it: a late observation, by a launcher that was
        itself delayed, does not show since when.
        """
        if self._now is None or now.phase != self._now.phase:
            self._since = moment
        if now != self._now:
            logger.info("%s is %s: %s", self._kind, now.phase, now.reason)
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
    job: JobView,
    pods: Sequence[PodView],
    *,
    missing: int,
    all_ranks_finished: bool,
    was_interrupted: bool,
) -> JobResult:
    """Return the result of an attempt that has ended.

    It succeeded if rank 0 recorded that every rank finished, and no pod contradicts. A pod that was
    terminating when the training was complete does not contradict: the operator deletes those that
    still run when the first one has ended.

    Args:
        job: Its last view.
        pods: Last observed views of the pods, deleted ones included.
        missing: Number of pods that never existed.
        all_ranks_finished: Whether rank 0 recorded that all ranks finished.
        was_interrupted: Whether rank 0 recorded that a signal stopped them; checkpoint saved.
    """
    failed = [pod for pod in pods if pod.phase == "Failed" or pod.is_displaced]
    evidence = (
        "; ".join(pod.describe() for pod in failed) or job.message or "no pod reports a reason"
    )
    if missing:
        evidence = f"{missing} of its pods never existed; {REFUSED}. The others: {evidence}"
    if all_ranks_finished and all(pod.is_leaving or pod.is_displaced for pod in failed):
        return JobResult(JobState.SUCCEEDED, "every rank finished")
    if was_interrupted:
        return JobResult(JobState.INTERRUPTED, evidence)
    if job.outcome == "succeeded":  # its other pods were deleted because of that
        evidence = f"the job reports success, but not every rank has finished: {evidence}"
        return JobResult(JobState.FAILED, evidence)
    # When one failed, the operator deletes the others, so their end carries no information.
    are_displaced = bool(failed) and all(pod.is_displaced or pod.is_leaving for pod in failed)
    if are_displaced or any(pod.is_displaced and pod.disruption != DELETED for pod in failed):
        return JobResult(JobState.DISPLACED, evidence)
    return JobResult(JobState.FAILED, evidence)


def stopped_error(job: Job, name: str, reason: str, now: JobStatus) -> TrainingFailedError:
    """Return the error for a job that was deleted because it timed out."""
    return TrainingFailedError(
        f"the {job.kind} job {name} timed out and was deleted: {reason}",
        evidence=now.reason,
        action=f"{now.remedy}, or raise the timeout in [resources.cluster.budgets]; run again to "
        f"{job.again}",
    )


def is_past_deadline(job: JobView, pods: Sequence[PodView]) -> bool:
    """Whether the kubelet ended a pod, or the Trainer its job, at the deadline."""
    return job.is_past_deadline or any(pod.reason == DEADLINE for pod in pods)
