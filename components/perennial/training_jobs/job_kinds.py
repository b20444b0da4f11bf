"""Job kinds: what a PyTorchJob and a TrainJob are made of, and how their status is read."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from perennial.clients.api_server import Resource
from perennial.clients.cluster import Object
from perennial.contracts.errors import PerennialError
from perennial.training_jobs.config import ClusterSection
from perennial.training_jobs.leftovers import LEFT_IN_PLACE, PYTORCHJOBS, RUN_LABEL, TRAINJOBS
from perennial.training_jobs.pods import PodView, container_resources, pod_deadline, pod_spec
from perennial.training_jobs.request import ATTEMPT, SPEC_DIGEST, JobRequest

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


class JobKind(ABC):
    """Manifests and status of one kind, as pure functions.

    Attributes:
        title: Its name for people.
        resource: Its API resource.
        container: Its operator's name of the training container.
        api_version: API version of its manifests.
    """

    title: str
    resource: Resource
    container: str

    @property
    def api_version(self) -> str:
        """Return API group and version."""
        return f"{self.resource.group}/{self.resource.version}"

    @abstractmethod
    def spec(self, request: JobRequest, fields: frozenset[str]) -> Object:
        """Return the manifest's spec.

        Args:
            request: The job to run.
            fields: Fields of the served version, for those that only some versions have.

        Raises:
            PerennialError: this kind does not support what the contract requests.
        """

    @abstractmethod
    def rank_of(self, pod: Object) -> int:
        """Return the machine number of a pod; 0 runs the first rank."""

    @abstractmethod
    def outcome(self, conditions: dict[str, Object]) -> Literal["succeeded", "failed"] | None:
        """Return the outcome, given the conditions that are true."""

    def manifest(self, request: JobRequest, fields: frozenset[str] = frozenset()) -> Object:
        """Return the manifest to create."""
        spec = self.spec(request, fields)
        return {
            "apiVersion": self.api_version,
            "kind": self.title,
            "metadata": request.metadata(spec),
            "spec": spec,
        }

    def view(self, job: Object) -> JobView:
        """Return the view of a job's status."""
        metadata, status = job["metadata"], job.get("status", {})
        true = {
            each["type"]: each
            for each in status.get("conditions", ())
            if each.get("status") == "True"
        }
        annotations = metadata.get("annotations", {})
        return JobView(
            name=metadata["name"],
            uid=metadata["uid"],
            run_id=metadata.get("labels", {}).get(RUN_LABEL, ""),
            attempt=annotations.get(ATTEMPT, ""),
            spec_digest=annotations.get(SPEC_DIGEST, ""),
            outcome=self.outcome(true),
            is_suspended=self._is_suspended(job, true),
            is_leaving="deletionTimestamp" in metadata,
            is_past_deadline=true.get("Failed", {}).get("reason") == DEADLINE,
            message="; ".join(found["message"] for found in true.values() if found.get("message")),
        )

    def pod_view(self, pod: Object) -> PodView:
        """Return the view of a pod's status."""
        return PodView.of(pod, self.container)

    def _is_suspended(self, job: Object, true: dict[str, Object]) -> bool:
        suspended = job["spec"].get("suspend") or job["spec"].get("runPolicy", {}).get("suspend")
        return bool(suspended) or "Suspended" in true


# How long ended jobs are kept; their evidence is in the object store and the run's page anyway.
KEPT_SECONDS = 24 * 3600
# A service mesh's sidecar would outlive the training, or block it.
ANNOTATIONS = {"sidecar.istio.io/inject": "false", **LEFT_IN_PLACE}


class PyTorchJob(JobKind):
    """A master with the first rank, and workers."""

    title = "PyTorchJob"
    resource = PYTORCHJOBS
    container = "pytorch"

    @override
    def spec(self, request: JobRequest, fields: frozenset[str]) -> Object:
        cluster = request.resources.cluster
        replicas = {"Master": self._replica(request, 1, is_first=True)}
        if cluster.machines > 1:
            replicas["Worker"] = self._replica(request, cluster.machines - 1, is_first=False)
        policy: Object = {
            # Deletes the pods that still run when one failed; the failed pod stays, with its log.
            "cleanPodPolicy": "Running",
            "ttlSecondsAfterFinished": KEPT_SECONDS,
            # No backoffLimit: at the limit, the operator deletes every pod, the failed one too.
        }
        if cluster.gang_scheduler:
            policy["schedulingPolicy"] = {"minAvailable": cluster.machines}
        return {
            "nprocPerNode": str(request.resources.processes_per_machine),
            "runPolicy": policy,
            "pytorchReplicaSpecs": replicas,
        }

    @override
    def rank_of(self, pod: Object) -> int:
        labels = pod["metadata"]["labels"]
        index = int(labels.get("training.kubeflow.org/replica-index", "0"))
        is_master = labels.get("training.kubeflow.org/replica-type") == "master"
        return 0 if is_master else index + 1

    @override
    def outcome(self, conditions: dict[str, Object]) -> Literal["succeeded", "failed"] | None:
        if "Failed" in conditions:
            return "failed"
        return "succeeded" if "Succeeded" in conditions else None

    def _replica(self, request: JobRequest, count: int, *, is_first: bool) -> Object:
        return {
            "replicas": count,
            "restartPolicy": "Never",
            "template": {
                "metadata": {"labels": request.labels, "annotations": ANNOTATIONS},
                "spec": pod_spec(request, self.container, is_first=is_first),
            },
        }


DEADLINE_FIELD = "activeDeadlineSeconds"  # from 2.2 on
# Options whose fields differ between versions of TrainJob.
OF_THE_RUNTIME = (
    "service_account", "priority_class", "gang_scheduler", "node_selector", "tolerations",
    "run_as_user", "grace_seconds", "shared_memory_gib",
)  # fmt: skip
OURS = ClusterSection()  # what the TrainingRuntime in k8s/ is made for


class TrainJob(JobKind):
    """Equal machines, numbered; the first one holds the first rank."""

    title = "TrainJob"
    resource = TRAINJOBS
    container = "node"

    @override
    def spec(self, request: JobRequest, fields: frozenset[str]) -> Object:
        resources = request.resources
        refuse_what_the_runtime_decides(resources.cluster)
        spec: Object = {
            "runtimeRef": {
                "apiGroup": self.resource.group,
                "kind": "TrainingRuntime",
                "name": resources.cluster.runtime,
            },
            "trainer": {
                "image": request.image,
                "command": request.command,
                # All machines get the same variables; only the first rank uses the tracking run.
                "env": request.environment(is_first=True),
                "numNodes": resources.cluster.machines,
                "numProcPerNode": resources.processes_per_machine,
                "resourcesPerNode": container_resources(request),
            },
        }
        if DEADLINE_FIELD in fields:
            spec[DEADLINE_FIELD] = pod_deadline(resources.cluster)
        return spec

    @override
    def rank_of(self, pod: Object) -> int:
        labels = pod["metadata"]["labels"]
        return int(labels.get("batch.kubernetes.io/job-completion-index", "0"))

    @override
    def outcome(self, conditions: dict[str, Object]) -> Literal["succeeded", "failed"] | None:
        if "Failed" in conditions:
            return "failed"
        return "succeeded" if "Complete" in conditions else None


def refuse_what_the_runtime_decides(cluster: ClusterSection) -> None:
    """Refuse options of a contract that a TrainJob cannot express.

    Raises:
        PerennialError: there are some, or the TrainingRuntime's deadline precedes the budgets.
    """
    asked = cluster.changed(*OF_THE_RUNTIME)
    if asked:
        raise PerennialError(
            f"a TrainJob does not support resources.cluster.{', '.join(asked)}",
            evidence="its fields have other names in every version of the Trainer",
            action=f"set it in the TrainingRuntime {cluster.runtime!r} (copy k8s/components/"
            "training-runtime under another name and set resources.cluster.runtime), and remove it "
            "from the contract",
        )
    if cluster.runtime == OURS.runtime and pod_deadline(cluster) > pod_deadline(OURS):
        raise PerennialError(
            f"the TrainingRuntime {cluster.runtime!r} ends pods before the timeouts in "
            "[resources.cluster.budgets]",
            evidence=f"its activeDeadlineSeconds is {pod_deadline(OURS)}; the timeouts sum up to "
            f"{pod_deadline(cluster)}",
            action="copy k8s/components/training-runtime under another name with a later deadline "
            "and set resources.cluster.runtime",
        )
