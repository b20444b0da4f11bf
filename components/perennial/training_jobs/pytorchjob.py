"""PyTorchJob: the training operator's kind, `kubeflow.org/v1`."""

from typing import Literal

from typing_extensions import override

from perennial.clients.cluster import Object
from perennial.training_jobs.job_kind import JobKind
from perennial.training_jobs.pods import pod_spec
from perennial.training_jobs.request import JobRequest
from perennial.training_jobs.selectors import LEFT_IN_PLACE, PYTORCHJOBS

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
