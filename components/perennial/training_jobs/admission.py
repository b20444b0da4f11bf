"""Admission: what does Kueue say about a job that is suspended?"""

from dataclasses import dataclass

from perennial.clients.api_server import FORBIDDEN, NOT_FOUND, ApiError, Resource
from perennial.clients.cluster import Cluster, Object, label_selector

WORKLOADS = Resource("kueue.x-k8s.io", "v1beta2", "workloads")
JOB_UID = "kueue.x-k8s.io/job-uid"  # Kueue's label on the Workload that it makes of a job
NOT_STARTED = (
    "read why in the log of Kueue's controller: kubectl -n kueue-system logs deployment/"
    "kueue-controller-manager. Known: Kueue from 0.17 on cannot start TrainJobs of a Trainer below "
    "2.2; upgrade both"
)


@dataclass(frozen=True)
class Admission:
    """How a suspended job stands with Kueue.

    Attributes:
        reason: Why it is suspended, in a line.
        remedy: What a person has to do where Kueue has let it go and it stays suspended; else
            empty, for waiting is in order then.
    """

    reason: str
    remedy: str = ""


def read_admission(cluster: Cluster, uid: str) -> Admission:
    """What is known about a job that is suspended.

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
            return Admission("it is suspended, and this cluster serves no Workloads of Kueue")
        if error.status == FORBIDDEN:
            return Admission(f"it is suspended; why cannot be read: {error.evidence}")
        raise
    if not found:
        return Admission("it is suspended, and Kueue has made no Workload of it")
    return admission_of(max(found, key=lambda each: each["metadata"]["creationTimestamp"]))


def admission_of(workload: Object) -> Admission:
    """What a Workload says about its job, which is suspended."""
    status = workload.get("status", {})
    conditions = {each["type"]: each for each in status.get("conditions", ())}
    true = {name: each for name, each in conditions.items() if each["status"] == "True"}
    if "Finished" in true:
        return Admission(f"Kueue has given it up: {_words(true['Finished'])}", NOT_STARTED)
    if not workload.get("spec", {}).get("active", True):
        return Admission(f"its Workload was deactivated: {_words(true.get('Evicted', {}))}")
    if "Admitted" in true and "Evicted" not in true:
        said = _words(true["Admitted"])
        return Admission(f"Kueue has admitted it ({said}), but it stays suspended", NOT_STARTED)
    if "QuotaReserved" in true:
        waits = [each for each in status.get("admissionChecks", ()) if each["state"] != "Ready"]
        told = "; ".join(f"{each['name']} {each['state']}: {each['message']}" for each in waits)
        return Admission(f"it waits for admission checks: {told or 'none is named'}")
    return Admission(f"it waits to be admitted: {_words(conditions.get('QuotaReserved', {}))}")


def _words(condition: Object) -> str:
    return str(condition.get("message") or condition.get("reason") or "Kueue does not say why")
