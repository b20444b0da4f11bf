"""Selectors: the kinds of training jobs, and the labels by which Perennial's are found."""

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
"""Kind → the label with the job's name on its pods; they do not get a TrainJob's own labels."""
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
"""Annotations that forbid moving the pod to save a machine: a training would lose its progress
since the last checkpoint, and a moved step would take its training along."""


def pods_of(kind: Resource, job: str) -> str:
    """Return the label selector of the pods of a job."""
    return f"{POD_LABELS[kind]}={job}"
