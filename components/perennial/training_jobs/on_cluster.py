"""Cluster launcher: one training job at a time, as PyTorchJob or TrainJob, until it ends."""

import logging
import os
import secrets
import threading
import time
from dataclasses import replace
from typing import Literal, NamedTuple

from typing_extensions import override

from perennial.clients.cluster import PODS, AlreadyExistsError, ApiError, Cluster
from perennial.clients.object_store import open_store
from perennial.contracts.environment import ClusterAddress, Environment
from perennial.contracts.errors import PerennialError, TrainingFailedError
from perennial.engine.handover import fetch_errors, fetch_result, hand_over, is_remote, read_end
from perennial.engine.job import Job
from perennial.training_jobs.attempt_watch import AttemptFiles, PodLogs, WatchedPods, heartbeats
from perennial.training_jobs.config import ResourcesSection
from perennial.training_jobs.launcher import (
    JobResult,
    JobState,
    Launcher,
    LocalLauncher,
    PollIntervals,
    forget_last_attempt,
)
from perennial.training_jobs.leftovers import pods_of
from perennial.training_jobs.manifests import (
    SPEC_DIGEST,
    JobKind,
    JobRequest,
    PyTorchJob,
    RunIdentity,
    TrainJob,
)
from perennial.training_jobs.status import (
    DEADLINE,
    SECONDS_PER_MINUTE,
    JobStatus,
    JobView,
    Progress,
    is_past_deadline,
    job_result,
    job_status,
    read_admission,
    rendezvous_pending,
    stopped_error,
)

logger = logging.getLogger(__name__)


class ExistingJobPolicy(NamedTuple):
    """The decision on a job that was found: to replace is to delete it and create ours."""

    action: Literal["adopt", "replace", "wait"]
    reason: str


def decide_on_existing_job(found: JobView, run_id: str, spec_digest: str) -> ExistingJobPolicy:
    """Decide whether our run follows a job of the same name, which is of the same training."""
    if found.is_leaving:
        return ExistingJobPolicy("wait", "it is being deleted")
    if found.outcome is not None:
        return ExistingJobPolicy("replace", f"it has {found.outcome} and will not resume")
    if found.run_id != run_id:
        return ExistingJobPolicy("adopt", f"run {found.run_id} runs the same training")
    if found.spec_digest != spec_digest:
        return ExistingJobPolicy("replace", "this run requests other resources")
    return ExistingJobPolicy("adopt", "an earlier attempt of this step started it")


class QueuedTooLongError(Exception):
    """An attempt waits for machines, and fewer may be enough."""


EXIT_TERMINATED = 143  # 128 + SIGTERM, as in shells
# A creation in flight when the signal arrived becomes visible within this time.
CREATION_POLLS, CREATION_POLL_SECONDS = 10, 0.05


class ClusterLauncher(Launcher):
    """Runs attempts as jobs, in a namespace, for which an operator creates pods."""

    def __init__(
        self,
        cluster: Cluster,
        kind: JobKind,
        run: RunIdentity,
        resources: ResourcesSection,
        *,
        tracking_run_id: str = "",
        intervals: PollIntervals | None = None,
    ) -> None:
        self.log = ""
        self._cluster = cluster
        # Used only by the main thread, so that a signal handler finds it open and idle.
        self._direct = cluster.twin()
        self._kind = kind
        self._run = run
        self._resources = resources
        self._machines = resources.cluster.machines
        self._tracking_run_id = tracking_run_id
        self._intervals = intervals or PollIntervals()
        self._fields = cluster.spec_fields(kind.resource, kind.title)
        self._job: Job | None = None
        self._creating = ""
        self._followed: JobView | None = None
        self._earlier_pods: set[str] = set()

    @override
    def start(self, job: Job) -> None:
        require_remote_store(job.store_uri or job.folder)
        unattended = 60.0 * self._resources.cluster.budgets.unattended_minutes
        forget_last_attempt(job)
        while True:
            resources = self._resources.on_machines(self._machines)
            attempt = {
                # Names a folder in the store that has no markers of an earlier attempt.
                "attempt": secrets.token_hex(4),
                "unattended_seconds": unattended,
                "num_processes": resources.num_processes,
            }
            job = job.model_copy(update=attempt)
            # Before the creation: pods read the job as soon as they start.
            hand_over(job)
            request = JobRequest(job, self._run, resources, self._tracking_run_id)
            try:
                found = self._create_or_adopt(request)
                break
            except QueuedTooLongError as error:
                logger.warning("%s", error)
        self._followed = found
        # Another run's job of the same training may have another size.
        followed = {"attempt": found.attempt, "num_processes": found.processes}
        self._job = job.model_copy(update=followed)
        self.log = str(job.logs / "job.log")
        logger.info(
            "job=%s attempt=%s uid=%s pods=%d",
            found.name,
            found.attempt,
            found.uid,
            found.machines,
        )

    @override
    def wait(self) -> JobResult:
        if self._job is None or self._followed is None:
            raise RuntimeError("wait() before start()")
        job, followed, ended = self._job, self._followed, threading.Event()
        pods = WatchedPods(self._cluster, self._kind, followed.name, ended, self._earlier_pods)
        logs = PodLogs(
            self._cluster,
            self._kind.container,
            job.logs,
            job.logs / "job.log",
            self._intervals.reconnect,
        )
        files = AttemptFiles(job, self._intervals)
        try:
            with heartbeats(job, self._intervals.heartbeat):
                view = self._follow(job, followed, pods, logs, files)
            if view is None:
                found = self._handle_deleted_job(job, followed)
            else:
                found = self._classify(job, view, pods)
                self._earlier_pods |= {pod.uid for pod in pods.seen()}
                if view.is_suspended:
                    # The same attempt continues with new pods, perhaps at once: delete the markers
                    # of the earlier ones before the upload of logs takes its time.
                    fetch_errors(job)
                    files.forget()
        except QueuedTooLongError as error:
            view, found = None, JobResult(JobState.TOO_LARGE, str(error))
        finally:
            ended.set()
            logs.close()
            fetch_errors(job)
            are_stored = files.keep_logs(logs.files, is_last=True)
        if view is not None and view.outcome is not None and are_stored:
            self._delete_ended(followed)
        self._followed = None
        logger.info("job=%s ended state=%s evidence=%s", followed.name, found.state, found.evidence)
        return found

    @override
    def stop(self) -> None:
        """Delete the job and end this process: a terminated step has 0.1 s left."""
        if self._followed is not None:
            self._delete_at_once(self._followed)
        elif self._creating:
            self._delete_job_being_created()
        os._exit(EXIT_TERMINATED)

    @override
    def close(self) -> None:
        try:
            if self._followed is not None:
                self._delete_and_forget(self._followed)
        finally:
            self._direct.close()
            self._cluster.close()

    def _create_or_adopt(self, request: JobRequest) -> JobView:
        """Create the job, or adopt an existing one; return its view."""
        body = self._kind.manifest(request, self._fields)
        queue = Progress(self._resources.cluster.budgets, request.job.kind)
        while True:
            existing = self._cluster.get(self._kind.resource, request.name)
            if existing is None:
                self._wait_until_gone(request.name)
                try:
                    # Before the request: a signal may arrive before the answer does.
                    self._creating = request.name
                    view = self._kind.view(self._cluster.create(self._kind.resource, body))
                except AlreadyExistsError:
                    # Another run of the same training was first: decide on its job.
                    continue
                except ApiError as error:
                    self._wait_for_quota(request, error, queue)
                    continue
                logger.info("created %s %s", self._kind.title, request.name)
                return view
            view = self._kind.view(existing)
            if view.attempt == request.job.attempt:
                return view  # only the response to the creation was lost
            digest = body["metadata"]["annotations"][SPEC_DIGEST]
            decision = decide_on_existing_job(view, self._run.run_id, digest)
            logger.info("found job=%s: %s, %s", view.name, decision.reason, decision.action)
            if decision.action == "adopt":
                return view
            if decision.action == "replace":
                self._cluster.delete(self._kind.resource, view.name, uid=view.uid)
            self._wait_until_gone(view.name, view.uid)

    def _wait_for_quota(self, request: JobRequest, error: ApiError, queue: Progress) -> None:
        """Pause before the next try of a creation that a quota refused; raise any other error."""
        if not error.exceeds_quota:
            raise error
        timeout = queue.update(JobStatus("queued", error.evidence), time.monotonic())
        if timeout:
            raise TrainingFailedError(
                f"the {request.job.kind} job {request.name} timed out before it was created: "
                f"{timeout}",
                evidence=error.evidence,
                action=error.action,
            ) from error
        self._try_fewer_machines(queue)
        time.sleep(self._intervals.poll)

    def _try_fewer_machines(self, progress: Progress) -> None:
        """Let the next attempt ask for fewer machines if this one has been queued for too long.

        Raises:
            QueuedTooLongError: it has, and fewer are allowed.
        """
        sizes, machines = self._resources.sizes, self._machines
        # The smallest size keeps waiting until `queued_hours`.
        if machines == sizes[-1]:
            return
        waited = progress.seconds_queued(time.monotonic())
        if waited > SECONDS_PER_MINUTE * self._resources.cluster.budgets.smaller_after_minutes:
            self._machines = sizes[sizes.index(machines) + 1]
            raise QueuedTooLongError(
                f"it has been queued for {waited:.0f} s with {machines} machines; "
                f"{self._machines} are asked for"
            )

    def _wait_until_gone(self, name: str, uid: str = "") -> None:
        """Wait until a job and its pods are gone: a new job's pods would have the same names.

        Without a uid the job is gone already, and its last pods are waited for. Another job of the
        name ends the waiting.
        """
        deadline = time.monotonic() + self._resources.cluster.grace_seconds + self._intervals.settle
        selector = pods_of(self._kind.resource, name)
        while time.monotonic() < deadline:
            existing = self._cluster.get(self._kind.resource, name)
            if existing is not None and existing["metadata"]["uid"] != uid:
                return
            if existing is None and not self._cluster.list(PODS, selector):
                return
            time.sleep(self._intervals.shortest)
        raise PerennialError(
            f"timed out waiting for the deletion of job {name}",
            evidence=f"uid {uid} or one of its pods still exists"
            if uid
            else "the job is gone, but one of its pods still exists",
            action="find what blocks its pods: a finalizer, or a machine that does not respond",
        )

    def _follow(
        self, job: Job, followed: JobView, pods: WatchedPods, logs: PodLogs, files: AttemptFiles
    ) -> JobView | None:
        """Follow the attempt until it has ended; return the job, or None if it was deleted."""
        machines = followed.machines
        progress = Progress(self._resources.cluster.budgets, job.kind)
        while True:
            pods.wait(self._intervals)
            view = self._read_job(followed)
            seen = pods.seen()
            logs.follow(pods.by_machine())
            files.fetch_curves()
            files.keep_logs(logs.files)
            if view is None:
                return None
            admission = read_admission(self._direct, view) if view.is_suspended else None
            now = job_status(view, seen, machines, admission)
            if now.phase == "running" and not files.is_rendezvous_complete():
                # Its time counts as starting: ranks that cannot connect would wait for hours.
                now = rendezvous_pending(machines)
            reason = progress.update(now, time.monotonic())
            if now.phase == "running":
                self._machines = self._resources.cluster.machines  # of the next attempt
            elif followed.run_id == self._run.run_id and not reason:
                try:
                    self._try_fewer_machines(progress)
                except QueuedTooLongError:
                    self._delete_and_forget(followed)
                    raise
            if is_past_deadline(view, seen):
                reason = DEADLINE
            elif now.phase == "ended":
                settled = self._wait_for_pods(followed, view, pods)
                if settled is None or not is_past_deadline(settled, pods.seen()):
                    return settled
                view, reason = settled, DEADLINE
            if reason:
                self._delete_and_forget(followed)
                if view.is_past_deadline:
                    now = replace(now, reason=f"{view.message}; {now.reason}")
                raise stopped_error(job, followed.name, reason, now)

    def _read_job(self, followed: JobView) -> JobView | None:
        """Return the current job; None if it is gone, or another one has its name."""
        found = self._direct.get(self._kind.resource, followed.name)
        if found is None or found["metadata"]["uid"] != followed.uid:
            return None
        return self._kind.view(found)

    def _handle_deleted_job(self, job: Job, followed: JobView) -> JobResult:
        """Return the result, or raise the error, for a job that was deleted while it was followed.

        Another run's step deletes its job when it has ended.
        """
        if _has_finished(job):
            return JobResult(JobState.SUCCEEDED, "every rank finished")
        if followed.run_id != self._run.run_id:
            return JobResult(JobState.DISPLACED, f"run {followed.run_id} deleted its job")
        self._followed = None
        raise TrainingFailedError(
            f"the {job.kind} job {followed.name} was deleted while it ran",
            action=f"run the step again to {job.again}",
        )

    def _wait_for_pods(self, followed: JobView, view: JobView, pods: WatchedPods) -> JobView | None:
        """Wait until none of its pods runs, or delete the job; None if it is already gone."""
        those = {pod.uid for pod in pods.seen()}
        grace = self._resources.cluster.grace_seconds + self._intervals.settle
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            have_ended = all(pod.has_ended for pod in pods.seen() if pod.uid in those)
            # A suspended job gets new pods, now or later; the next attempt follows those.
            goes_on = view.is_suspended or bool(pods.present - those)
            is_over = view.outcome is not None or (goes_on and not pods.present & those)
            if view.is_past_deadline or (is_over and have_ended):
                return view
            pods.wait(self._intervals)
            found = self._read_job(followed)
            if found is None:
                return None
            view = found
        # The operator may never notice a failed pod; the others would run on.
        if view.outcome is None and not view.is_suspended:
            self._delete_and_forget(followed)
        return view

    def _classify(self, job: Job, view: JobView, pods: WatchedPods) -> JobResult:
        end, has_finished = read_end(job), _has_finished(job)
        # `decide_restart` looks for the marker in this machine's folder.
        first = open_store(job.attempt_uri).read(job.first_step.name)
        if first is not None:
            job.first_step.touch()
        return job_result(
            view,
            pods.seen(),
            missing=view.machines - len(pods.machines),
            all_ranks_finished=has_finished,
            was_interrupted=end is not None and not end.is_finished,
        )

    def _delete_ended(self, followed: JobView) -> None:
        """Delete an ended job whose logs are stored, because quotas count it as long as it exists.

        The reaper deletes it if this fails.
        """
        if followed.run_id != self._run.run_id:
            return
        try:
            self._cluster.delete(self._kind.resource, followed.name, uid=followed.uid)
        except ApiError as error:
            logger.warning("the ended job=%s is not deleted: %s", followed.name, error)

    def _delete_and_forget(self, followed: JobView) -> None:
        if followed.run_id == self._run.run_id:
            self._cluster.delete(self._kind.resource, followed.name, uid=followed.uid)
        self._followed = None

    def _delete_at_once(self, job: JobView) -> bool:
        if job.run_id != self._run.run_id:
            return True  # another run's, which continues without us
        try:
            return self._direct.delete(self._kind.resource, job.name, uid=job.uid, is_patient=False)
        except ApiError:
            return False  # the clean-up at the run's end deletes it

    def _delete_job_being_created(self) -> None:
        for _ in range(CREATION_POLLS):
            try:
                found = self._direct.get(self._kind.resource, self._creating)
            except ApiError:
                return  # the clean-up at the run's end deletes it
            if found is not None and self._delete_at_once(self._kind.view(found)):
                return
            time.sleep(CREATION_POLL_SECONDS)


def _has_finished(job: Job) -> bool:
    """Whether every rank of the attempt has finished; the result is then in the job's folder."""
    end = read_end(job)
    # A PyTorchJob succeeds when its master exits, whether or not the other ranks have finished.
    if end is None or not end.is_finished or set(end.ranks) != set(range(job.num_processes)):
        return False
    fetch_result(job)
    return True


def _choose_kind(resources: ResourcesSection, cluster: Cluster) -> tuple[JobKind, str]:
    """Return the kind of job for a training on a cluster, and why.

    If both kinds are served, an administrator installed the older one on purpose. With a queue the
    newer one is selected: Kueue 0.19 and later ignore PyTorchJobs, which would then run outside the
    quota.

    Raises:
        PerennialError: the cluster does not serve what is wanted, or neither.
    """
    kinds: dict[str, JobKind] = {"pytorchjob": PyTorchJob(), "trainjob": TrainJob()}
    served = [name for name, kind in kinds.items() if cluster.serves(kind.resource)]
    wanted, has_queue = resources.launcher, bool(resources.cluster.queue)
    if wanted in served:
        return kinds[wanted], "set in the contract"
    if wanted != "auto" or not served:
        raise PerennialError(
            f'resources.launcher = "{wanted}" is not possible on this cluster',
            evidence=f"its API server serves {', '.join(served) or 'neither kind'}",
            action="install Kubeflow Trainer 2.3 (TrainJob) or the training operator 1.9.4 "
            "(PyTorchJob); k8s/ contains the manifests that Perennial needs in addition",
        )
    if len(served) == 2:
        if has_queue:
            return kinds["trainjob"], "both kinds are served, and Kueue ignores PyTorchJobs"
        return kinds["pytorchjob"], "both kinds are served, and its API is stable"
    if served == ["trainjob"]:
        return kinds["trainjob"], "the cluster serves only TrainJob"
    reason = "the cluster serves only PyTorchJob, which Kubeflow is retiring"
    if has_queue:
        reason += (
            "; the queue applies only if Kueue's integration kubeflow.org/pytorchjob is enabled"
        )
    return kinds["pytorchjob"], reason


def require_remote_store(uri: str) -> None:
    """Check that pods can access a store.

    Raises:
        PerennialError: it is a folder of this machine.
    """
    if not is_remote(uri):
        raise PerennialError(
            f"pods cannot access the store {uri!r}",
            action="set PERENNIAL_STORE_URI to an object store, such as s3://bucket/prefix",
        )


def is_local(resources: ResourcesSection) -> bool:
    """Whether the processes of a job run in this step itself.

    A local run may be started in a pod, such as a notebook: only a pipeline's step gets its pod's
    name.
    """
    address = ClusterAddress.read()
    is_step = address is not None and bool(address.pod)
    return resources.launcher == "local" or (resources.launcher == "auto" and not is_step)


def open_launcher(resources: ResourcesSection, environment: Environment) -> Launcher:
    """Open the launcher of a step.

    Raises:
        PerennialError: the cluster cannot run the training as configured, or its API cannot be
            read.
    """
    if is_local(resources):
        is_set = resources.launcher == "local"
        reason = "set in the contract" if is_set else "this is not a pipeline step on a cluster"
        logger.info("launcher=local: %s", reason)
        return LocalLauncher(resources.threads_per_process)
    return open_cluster_launcher(resources, environment)


def open_cluster_launcher(resources: ResourcesSection, environment: Environment) -> ClusterLauncher:
    """Open the launcher of a step on a cluster, whose jobs have pods of their own.

    Raises:
        PerennialError: as `open_launcher`.
    """
    cluster = Cluster.connect(ClusterAddress.read())
    kind, reason = _choose_kind(resources, cluster)
    logger.info("launcher=%s: %s", kind.title.lower(), reason)
    run = RunIdentity.of_pod(cluster.own_pod())
    return ClusterLauncher(
        cluster, kind, run, resources, tracking_run_id=environment.tracking_run_id
    )
