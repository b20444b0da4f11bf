"""TrainJob: Kubeflow Trainer's kind, `trainer.kubeflow.org/v1alpha1`.

The API changed with every minor version, so a job uses only fields that exist in all versions since
2.0; everything else about its pods is in our TrainingRuntime.
"""

from typing import Literal

from typing_extensions import override

from perennial.clients.cluster import Object
from perennial.contracts.errors import PerennialError
from perennial.training_jobs.config import ClusterSection
from perennial.training_jobs.job_kind import JobKind
from perennial.training_jobs.pods import container_resources, pod_deadline
from perennial.training_jobs.request import JobRequest
from perennial.training_jobs.selectors import TRAINJOBS

DEADLINE_FIELD = "activeDeadlineSeconds"  # from 2.2 on
# Options whose fields differ between versions of TrainJob.
OF_THE_RUNTIME = (
    "service_account", "priority_class", "gang_scheduler", "node_selector", "tolerations",
    "spread_over", "run_as_user", "grace_seconds", "shared_memory_gib",
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
