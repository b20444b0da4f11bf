"""Observation: how does a training job on a cluster stand, and is it time to give it up?"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perennial.contracts.errors import TrainingFailedError
from perennial.training_jobs.admission import Admission
from perennial.training_jobs.config import Budgets
from perennial.training_jobs.job_kind import DEADLINE, JobView
from perennial.training_jobs.launcher import JobState
from perennial.training_jobs.pods import (
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    PodView,
)

logger = logging.getLogger(__name__)
Phase = Literal["queued", "starting", "running", "ended"]
DELETED = "Deleted"  # by whom is not known
# Nothing that a launcher may read tells more: the refusal is in the events alone.
REFUSED = (
    "the operator is refused the others, and the job's events say why (kubectl describe): a quota, "
    "or Pod Security, which does not let in the init container that the training operator gives "
    "the workers of PyTorchJobs; k8s/components/training-operator takes that away"
)


@dataclass(frozen=True)
class JobStatus:
    """How a job stands.

    Attributes:
        phase: How far it got.
        reason: Why it is no further, in a line.
        is_stuck: Whether it cannot go on by itself: a container cannot begin, or Kueue has admitted
            the job in vain.
        remedy: What a person can do about it, where that is known.
    """

    phase: Phase
    reason: str
    is_stuck: bool = False
    remedy: str = "mend what the pods wait for"


def job_status(
    job: JobView, pods: Sequence[PodView], machines: int, admission: Admission | None = None
) -> JobStatus:
    """How a job stands, by its pods first: its conditions claim what is not so.

    The operator says Succeeded as soon as the first pod has ended, and Failed late or never when a
    pod that it did not watch has.

    Args:
        job: The job.
        pods: Those of this job that exist.
        machines: How many there must be.
        admission: What Kueue says about a job that is suspended.
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
            # An operator creates all at once: those that are not there when one runs were refused.
            shown += f"; {REFUSED}" if any(pod.has_started for pod in pods) else ""
        return JobStatus("queued", shown)
    waiting = [pod for pod in pods if not pod.has_started]
    if waiting:
        stuck = [pod for pod in waiting if pod.is_stuck]
        reason = "; ".join(pod.describe() for pod in stuck or waiting)
        return JobStatus("starting", reason, is_stuck=bool(stuck))
    return JobStatus("running", f"{machines} pods run")


def rendezvous_pending(machines: int) -> JobStatus:
    """How a job stands whose pods run while its ranks have not found each other yet."""
    return JobStatus(
        "starting",
        f"{machines} pods run, but their ranks have not found each other",
        remedy="see what keeps the pods apart: a NetworkPolicy between them, the name of the first "
        "one's Service in DNS, a service mesh's sidecars",
    )


class Progress:
    """How long each phase has taken, logged when it changes.

    Args:
        budgets: The contract's.
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
        """Take note; returns why the job is to be given up, or nothing.

        A job is stuck from the first observation that says so: one that comes late, from a
        launcher that was itself held up, does not tell how long it has been so.

        Args:
            now: How it stands.
            moment: When, in seconds of a steady clock.
        """
        if self._now is None or now.phase != self._now.phase:
            self._since = moment
        if now != self._now:
            logger.info("training is %s: %s", now.phase, now.reason)
        self._now = now
        if not now.is_stuck:
            self._stuck_since = None
            return self._overdue(now, moment - self._since)
        if self._stuck_since is None:
            self._stuck_since = moment
        stuck_seconds = moment - self._stuck_since
        if stuck_seconds > self._stuck_limit:
            what = "it cannot start" if now.phase == "queued" else "a pod cannot start"
            return f"{what}, for {stuck_seconds:.0f} s (stuck_minutes)"
        return self._overdue(now, moment - self._since)

    def _overdue(self, now: JobStatus, seconds: float) -> str:
        if now.phase == "ended":
            return ""
        limit, name = self._limits[now.phase]
        return f"it has been {now.phase} for {seconds:.0f} s ({name})" if seconds > limit else ""


@dataclass(frozen=True)
class JobResult:
    """How an attempt ended.

    Attributes:
        state: For the decision what comes next.
        cause: Why, as the cluster tells it.
    """

    state: JobState
    cause: str


def job_result(
    job: JobView, pods: Sequence[PodView], *, missing: int, all_ranks_finished: bool,
    was_interrupted: bool,
) -> JobResult:  # fmt: skip
    """How an attempt ended, once nothing of it runs.

    Succeeded is what rank 0 has put on record after every rank told it so, and what no pod
    contradicts. A pod that was on its way out when the training was complete does not: the
    operator deletes those that still run when the first one has ended.

    Args:
        job: The job.
        pods: As they were seen last, those included that are gone.
        missing: How many never existed.
        all_ranks_finished: What rank 0's record says.
        was_interrupted: Whether it says that a signal stopped them behind a checkpoint.
    """
    failed = [pod for pod in pods if pod.phase == "Failed" or pod.is_displaced]
    seen = "; ".join(pod.describe() for pod in failed) or job.message or "no pod says why"
    if missing:
        seen = f"{missing} of its pods never existed; {REFUSED}. The others: {seen}"
    if all_ranks_finished and all(pod.is_leaving or pod.is_displaced for pod in failed):
        return JobResult(JobState.SUCCEEDED, "every rank finished")
    if was_interrupted:
        return JobResult(JobState.INTERRUPTED, seen)
    if job.outcome == "succeeded":  # its other pods were deleted because of that
        seen = f"the job claims to have succeeded, but not every rank has finished: {seen}"
        return JobResult(JobState.FAILED, seen)
    # When one has failed, the operator deletes the others: then their end says nothing.
    are_taken_away = bool(failed) and all(pod.is_displaced or pod.is_leaving for pod in failed)
    if are_taken_away or any(pod.is_displaced and pod.disruption != DELETED for pod in failed):
        return JobResult(JobState.DISPLACED, seen)
    return JobResult(JobState.FAILED, seen)


def stopped_error(job: str, reason: str, now: JobStatus) -> TrainingFailedError:
    """What a person needs to know of a job that was deleted because it took too long."""
    return TrainingFailedError(
        f"the training job {job} was given up and deleted: {reason}",
        evidence=now.reason,
        action=f"{now.remedy}, or raise the budget in [resources.cluster.budgets]; run again to "
        "resume from the last checkpoint",
    )


def is_past_deadline(job: JobView, pods: Sequence[PodView]) -> bool:
    """Whether the kubelet has ended a pod, or the Trainer its job, for taking too long."""
    return job.is_past_deadline or any(pod.reason == DEADLINE for pod in pods)
