"""Training jobs: the kinds that exist, and the labels that Perennial's are found by."""

from collections.abc import Mapping
from types import MappingProxyType

from perennial.clients.api_server import Resource

PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs")
TRAINJOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs")
POD_LABELS: Mapping[Resource, str] = MappingProxyType(
    {
        PYTORCHJOBS: "training.kubeflow.org/job-name",
        TRAINJOBS: "jobset.sigs.k8s.io/jobset-name",
    }
)
"""Kind → the label by which its pods name their job; a TrainJob's own labels do not reach them."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "perennial"}
RUN_LABEL = "perennial/run"
KFP_RUN_LABEL = "pipeline/runid"  # of every pod of a run
ENDED = frozenset({"Succeeded", "Complete", "Failed"})
LEFT_IN_PLACE: Mapping[str, str] = MappingProxyType(
    {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
)
"""Annotations: to save a machine is no reason to move the pod. A training would lose what it did
since its last checkpoint; the step that follows it takes the training along."""


def pods_of(kind: Resource, job: str) -> str:
    """The query for the pods of a job of that name."""
    return f"{POD_LABELS[kind]}={job}"
