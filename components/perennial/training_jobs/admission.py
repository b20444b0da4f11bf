"""Admission: read from Kueue why a job is suspended."""

from dataclasses import dataclass

from perennial.clients.api_server import FORBIDDEN, NOT_FOUND, ApiError, Resource
from perennial.clients.cluster import Cluster, Object, label_selector

WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
JOB_UID = "kueue.x-k8s.io/job-uid"  # Kueue's label on the Workload that it makes of a job
NOT_STARTED = (
    "read the log of Kueue's controller: kubectl -n kueue-system logs deployment/"
    "kueue-controller-manager. Known issue: Kueue 0.17 and later cannot start TrainJobs of a "
    "Trainer below 2.2; upgrade both"
)


@dataclass(frozen=True)
class Admission:
    """Kueue's state of a suspended job.

    Attributes:
        reason: Why it is suspended, in one line.
        remedy: What a person must do if Kueue admitted the job but it stays suspended; empty if
            waiting is in order.
    """

    reason: str
    remedy: str = ""


def read_admission(cluster: Cluster, uid: str) -> Admission:
    """Return Kueue's state of a suspended job.

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
            return Admission("it is suspended, and the cluster does not serve Kueue's Workloads")
        if error.status == FORBIDDEN:
            return Admission(f"it is suspended; the reason cannot be read: {error.evidence}")
        raise
    if not found:
        return Admission("it is suspended, and Kueue has not created a Workload for it")
    return admission_of(max(found, key=lambda each: each["metadata"]["creationTimestamp"]))


def admission_of(workload: Object) -> Admission:
    """Return the state of a suspended job from its Workload."""
    status = workload.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    true = {name: each for name, each in conditions.items() if each["status"] == "True"}
    if "Finished" in true:
        return Admission(f"Kueue stopped it: {_message(true['Finished'])}", NOT_STARTED)
    if not workload.get("spec", {}).get("active", True):
        return Admission(f"its Workload was deactivated: {_message(true.get('Evicted', {}))}")
    if "Admitted" in true and "Evicted" not in true:
        message = _message(true["Admitted"])
        return Admission(f"Kueue admitted it ({message}), but it stays suspended", NOT_STARTED)
    if "QuotaReserved" in true:
        waits = [each for each in status.get("admissionChecks", ()) if each["state"] != "Ready"]
        messages = "; ".join(f"{each['name']} {each['state']}: {each['message']}" for each in waits)
        return Admission(f"it waits for admission checks: {messages or 'none is named'}")
    return Admission(f"it waits to be admitted: {_message(conditions.get('QuotaReserved', {}))}")


def _message(condition: Object) -> str:
    return str(condition.get("message") or condition.get("reason") or "Kueue reports no reason")
