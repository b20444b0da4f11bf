"""Training jobs: the kinds that exist, and the labels that Perennial's are found by."""

from components.clients.api_server import Resource

PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs")
TRAINJOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs")
MANAGED_BY = {"app.kubernetes.io/managed-by": "perennial"}
RUN_LABEL = "perennial/run"
KFP_RUN_LABEL = "pipeline/runid"  # of every pod of a run
ENDED = frozenset({"Succeeded", "Complete", "Failed"})
