"""Pods: build the spec of a training pod, and read its status."""

from dataclasses import dataclass
from typing import Literal

from perennial.clients.cluster import Object
from perennial.training_jobs.config import ClusterSection
from perennial.training_jobs.request import SCRATCH, JobRequest

# Caused by the kubelet or the scheduler, not by the training.
DISPLACING = frozenset(
    {
        "Evicted", "Preempting", "NodeLost", "NodeShutdown", "NodeAffinity", "Shutdown",
        "Terminated", "TerminationByKubelet", "UnexpectedAdmissionError", "OutOfcpu",
        "OutOfmemory", "OutOfpods",
    }
)  # fmt: skip
# Waiting reasons with which every container starts.
STARTING = frozenset({"", "ContainerCreating", "PodInitializing"})
SECONDS_PER_MINUTE, SECONDS_PER_HOUR = 60, 3600


def pod_spec(request: JobRequest, container: str, *, is_first: bool) -> Object:
    """Return the spec of one machine's pod of a PyTorchJob.

    Args:
        request: The job.
        container: Name that the operator requires of the container.
        is_first: Whether it runs the first rank.
    """
    cluster = request.resources.cluster
    spec: Object = {
        # Never: the launcher decides on restarts, and the failed pod is the evidence.
        "restartPolicy": "Never",
        # Enforced by the kubelet; the operator's own deadline is not.
        "activeDeadlineSeconds": pod_deadline(cluster),
        "terminationGracePeriodSeconds": cluster.grace_seconds,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(cluster.run_as_user),
        "containers": [
            {
                "name": container,
                "image": request.image,
                "command": request.command,
                "env": request.environment(is_first=is_first),
                "resources": container_resources(request),
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": VOLUME_MOUNTS,
            }
        ],
        "volumes": volumes(cluster),
    }
    spec |= _placement(cluster)
    if request.run.pull_secrets:
        spec["imagePullSecrets"] = list(request.run.pull_secrets)
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": request.labels},
        }
    ]
    return spec


CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
VOLUME_MOUNTS: list[Object] = [
    {"name": "scratch", "mountPath": SCRATCH},
    {"name": "tmp", "mountPath": "/tmp"},  # a mount, not a file of ours
    {"name": "shm", "mountPath": "/dev/shm"},
]


def pod_security(user: int | None) -> Object:
    """Return restricted Pod Security; the user applies to the operator's init container too."""
    context: Object = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    return context | ({"runAsUser": user} if user is not None else {})


def volumes(cluster: ClusterSection) -> list[Object]:
    """Return the writable volumes; shared memory counts as the container's memory."""
    return [
        {"name": "scratch", "emptyDir": {}},
        {"name": "tmp", "emptyDir": {}},
        {
            "name": "shm",
            "emptyDir": {"medium": "Memory", "sizeLimit": _gib(cluster.shared_memory_gib)},
        },
    ]


def container_resources(request: JobRequest) -> Object:
    """Return requests and limits of one machine's container.

    Cores are not limited: a throttled process delays all others.
    """
    cluster, processes = request.resources.cluster, request.resources.processes_per_machine
    memory = _gib(cluster.memory_gib_per_process * processes)
    cores = f"{round(cluster.cpus_per_process * processes * 1000)}m"
    accelerators = {cluster.accelerator: str(processes)} if cluster.accelerator else {}
    return {
        "requests": {"cpu": cores, "memory": memory, **accelerators},
        "limits": {"memory": memory, **accelerators},
    }


def pod_deadline(cluster: ClusterSection) -> int:
    """Return the seconds after which the kubelet ends a pod, in case the launcher is gone.

    A pod's time starts when it is scheduled, while others of its job may still be queued.
    """
    budgets = cluster.budgets
    hours = budgets.queued_hours + budgets.running_hours
    seconds = hours * SECONDS_PER_HOUR + budgets.starting_minutes * SECONDS_PER_MINUTE
    return max(1, round(seconds)) + cluster.grace_seconds


def _placement(cluster: ClusterSection) -> Object:
    given: Object = {
        "serviceAccountName": cluster.service_account,
        "priorityClassName": cluster.priority_class,
        "schedulerName": cluster.gang_scheduler,
        "nodeSelector": cluster.node_selector,
        "tolerations": [
            {key: value for key, value in each.model_dump().items() if value}
            for each in cluster.tolerations
        ],
    }
    return {name: value for name, value in given.items() if value}


def _gib(size: float) -> str:
    return f"{round(size * 1024)}Mi"


@dataclass(frozen=True)
class PodView:
    """The relevant fields of a pod's status.

    Attributes:
        name: The pod's name.
        uid: Identifies the pod: another one may get its name.
        phase: The API's phase.
        is_scheduled: Whether it has a machine.
        is_leaving: Whether it is being deleted.
        has_started: Whether its container runs or has run.
        reason: The API's reason why it waits or ended.
        message: The API's message with the reason.
        exit_code: Exit code of its container; None before it ended.
        disruption: Why the cluster disrupts it; empty if it does not.
    """

    name: str
    uid: str
    phase: Literal["Pending", "Running", "Succeeded", "Failed", "Unknown"]
    is_scheduled: bool
    is_leaving: bool
    has_started: bool
    reason: str
    message: str
    exit_code: int | None
    disruption: str

    @classmethod
    def of(cls, pod: Object, container: str) -> "PodView":
        """Return the view of a pod, by its training container."""
        status = pod.get("status", {})
        conditions = {each["type"]: each for each in status.get("conditions", ())}
        scheduled = conditions.get("PodScheduled", {})
        is_scheduled = scheduled.get("status") == "True"
        ours = _state_of(status.get("containerStatuses", ()), container)
        ended, waiting = ours.get("terminated", {}), _waiting(status)
        told = [ended, waiting, {} if is_scheduled else scheduled]
        target = conditions.get("DisruptionTarget", {})
        return cls(
            name=pod["metadata"]["name"],
            uid=pod["metadata"]["uid"],
            phase=status.get("phase", "Pending"),
            is_scheduled=is_scheduled or bool(ours),
            is_leaving="deletionTimestamp" in pod["metadata"],
            has_started="running" in ours or bool(ended),
            reason=_first(status.get("reason", ""), *(each.get("reason", "") for each in told)),
            message=_first(status.get("message", ""), *(each.get("message", "") for each in told)),
            exit_code=ended.get("exitCode"),
            disruption=target.get("reason", "") if target.get("status") == "True" else "",
        )

    @property
    def has_ended(self) -> bool:
        """Whether none of its containers runs any more."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_displaced(self) -> bool:
        """Whether it was preempted or evicted, or its machine was lost."""
        return bool(self.disruption) or self.reason in DISPLACING or self.phase == "Unknown"

    @property
    def is_stuck(self) -> bool:
        """Whether one of its containers cannot start."""
        return self.phase == "Pending" and self.is_scheduled and self.reason not in STARTING

    def describe(self) -> str:
        """Return name, phase, reason and message in one line."""
        ending = "" if self.exit_code is None else f", exit code {self.exit_code}"
        why = (
            f": {self.disruption or self.reason}{ending}" if self.disruption or self.reason else ""
        )
        message = f" ({self.message.strip()[:300]})" if self.message else ""
        return f"{self.name} {self.phase}{why}{message}"


def _state_of(statuses: list[Object], container: str) -> Object:
    for each in statuses:
        if each["name"] == container:
            state: Object = each.get("state", {})
            return state
    return {}


def _waiting(status: Object) -> Object:
    """Return what a container waits for; init containers come first."""
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    found = [each["state"]["waiting"] for each in containers if "waiting" in each.get("state", {})]
    # A container behind one that cannot start only reports that it waits for it.
    return next((each for each in found if each.get("reason", "") not in STARTING), {}) or next(
        iter(found), {}
    )


def _first(*texts: str) -> str:
    return next((text for text in texts if text), "")
