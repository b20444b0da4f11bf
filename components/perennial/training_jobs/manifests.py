"""Manifests: what a PyTorchJob and a TrainJob are made of, and the run that they belong to."""

import hashlib
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from typing_extensions import override

from perennial.clients.cluster import Object, Resource
from perennial.contracts.environment import (
    CACHE,
    LEASE,
    NODE,
    RUN_FOLDER,
    RUN_ID,
    SECRET_FILES,
    TRACKING_RUN_ID,
    secret_places,
)
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json
from perennial.engine.job import Job
from perennial.training_jobs.config import ClusterSection, ResourcesSection
from perennial.training_jobs.launcher import worker_settings
from perennial.training_jobs.leftovers import (
    KFP_RUN_LABEL,
    LEFT_IN_PLACE,
    MANAGED_BY,
    PYTORCHJOBS,
    RUN_LABEL,
    TRAINJOBS,
)
from perennial.training_jobs.status import (
    DEADLINE,
    SECONDS_PER_HOUR,
    SECONDS_PER_MINUTE,
    JobView,
)

ATTEMPT = "perennial/attempt"
SPEC_DIGEST = "perennial/spec-sha256"
STEP_CONTAINER = "main"  # where Argo runs a step's program
# Training pods get the step's variables except those that KFP and Argo set about the step, and
# those that are the step's own.
KEPT_BACK = re.compile(
    rf"^(_?KFP_|ARGO_|METADATA_|ML_PIPELINE_|({LEASE}|{NODE}|{RUN_FOLDER}|{CACHE}|{SECRET_FILES})$)"
)
SCRATCH = "/scratch"


@dataclass(frozen=True)
class RunIdentity:
    """The pipeline run that a training belongs to, as the pod of its step describes it."""

    run_id: str
    owner: Object | None
    """Reference to the Argo Workflow; None if the pod has no owner."""
    image: str
    environment: tuple[Object, ...]
    """Variables to pass on, secrets by reference."""
    pull_secrets: tuple[Object, ...] = ()

    @classmethod
    def of_pod(cls, pod: Object) -> "RunIdentity":
        """Read the identity from a step's own pod.

        The owner is the Workflow, never the pod: deleting the pod, as when its machine is drained,
        would delete the running training too.

        Raises:
            PerennialError: the pod does not belong to a pipeline run.
        """
        metadata = pod["metadata"]
        run_id = metadata.get("labels", {}).get(KFP_RUN_LABEL, "")
        containers = {each["name"]: each for each in pod["spec"]["containers"]}
        if not run_id or STEP_CONTAINER not in containers:
            raise PerennialError(
                f"the pod {metadata['name']} is not a pipeline step",
                evidence=f"it has no label {KFP_RUN_LABEL} or no container {STEP_CONTAINER}",
                action='start the training through a pipeline, or set resources.launcher = "local"',
            )
        owners = [
            {name: found[name] for name in ("apiVersion", "kind", "name", "uid")}
            for found in metadata.get("ownerReferences", ())
            if found["kind"] == "Workflow"
        ]
        container = containers[STEP_CONTAINER]
        variables = container.get("env", ())
        mounted = next((each["value"] for each in variables if each["name"] == SECRET_FILES), "")
        return cls(
            run_id=run_id,
            owner=owners[0] if owners else None,
            image=container["image"],
            environment=(
                *(each for each in variables if not KEPT_BACK.match(each["name"])),
                # Secrets become variables: not every version of TrainJob has a field for volumes.
                *(
                    {
                        "name": name,
                        "valueFrom": {"secretKeyRef": {"name": secret, "key": key}},
                    }
                    for name, (secret, key) in secret_places(mounted).items()
                ),
            ),
            pull_secrets=tuple(pod["spec"].get("imagePullSecrets", ())),
        )


@dataclass(frozen=True)
class JobRequest:
    """One attempt at a job on a cluster; manifests are functions of it."""

    job: Job
    run: RunIdentity
    resources: ResourcesSection
    tracking_run_id: str = ""
    """An MLflow run that the platform opened; for the first rank only."""

    @property
    def name(self) -> str:
        """Return the same name for every attempt, so that the API server admits one at a time.

        Without the model's name: equal trainings of two models have the same checkpoints. With the
        store: a deployment to another one cannot see the result. It is short enough for the
        suffixes that operators add for services and pods.
        """
        store = hashlib.sha256(self.job.store_uri.encode()).hexdigest()
        return f"{self.job.kind}-{self.job.fingerprint[:12]}-{store[:6]}"

    @property
    def image(self) -> str:
        """Return the trainer image."""
        return self.resources.cluster.image or self.run.image

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels by which the job and its pods are found."""
        return {
            **MANAGED_BY,
            RUN_LABEL: self.run.run_id,
            "perennial/model": self.job.model.name,
            "perennial/fingerprint": self.job.fingerprint[:16],
        }

    @property
    def command(self) -> list[str]:
        """Return torchrun's command; the operator's PET_ variables describe the other machines.

        Its rendezvous timeout equals the launcher's: the default of ten minutes is less than the
        pull of another machine's image may take.
        """
        budgets = self.resources.cluster.budgets
        patience = timedelta(hours=budgets.queued_hours, minutes=budgets.starting_minutes)
        return [
            # The launcher decides on restarts by the cause; torchrun would repeat any error.
            *("python", "-m", "torch.distributed.run", "--max-restarts", "0"),
            *("--rdzv-conf", f"timeout={math.ceil(patience.total_seconds())}"),
            *("-m", self.job.program, self.job.address),
        ]

    def metadata(self, spec: Mapping[str, Any]) -> Object:
        """Return the job's metadata; the spec's digest identifies an equal job."""
        # The address contains the attempt's name, which makes no difference between two jobs.
        text = canonical_json(dict(spec)).replace(self.job.attempt, "")
        metadata: Object = {
            "name": self.name,
            "labels": self.labels,
            "annotations": {
                ATTEMPT: self.job.attempt,
                "perennial/store-uri": self.job.store_uri,
                SPEC_DIGEST: hashlib.sha256(text.encode()).hexdigest(),
            },
        }
        if self.resources.cluster.queue:
            metadata["labels"]["kueue.x-k8s.io/queue-name"] = self.resources.cluster.queue
        if self.run.owner:
            metadata["ownerReferences"] = [self.run.owner]
        return metadata

    def environment(self, *, is_first: bool) -> list[Object]:
        """Return the containers' variables; ours override the step's."""
        tracking = {TRACKING_RUN_ID: self.tracking_run_id} if self.tracking_run_id else {}
        return variables(self.run, self.resources, tracking if is_first else {})


def variables(
    run: RunIdentity, resources: ResourcesSection, more: Mapping[str, str]
) -> list[Object]:
    """Return the variables of a pod that trains; ours override the step's."""
    own = {
        **worker_settings(resources.threads_per_process),
        CACHE: f"{SCRATCH}/cache",
        # The step reads it from a label that training pods lack.
        RUN_ID: run.run_id,
        # Libraries write caches there, and the root file system is read-only.
        "HOME": SCRATCH,
        "TMPDIR": SCRATCH,
        "PYTHONUNBUFFERED": "1",
        **more,
    }
    passed_on = [found for found in run.environment if found["name"] not in own]
    return [*passed_on, *({"name": name, "value": own[name]} for name in sorted(own))]


def training_pod(
    program: Object, resources: ResourcesSection, run: RunIdentity, labels: Mapping[str, str]
) -> Object:
    """Return the spec of a pod that trains.

    `program` has name, image, command and variables of its container; pods with these labels are
    spread over machines.
    """
    cluster = resources.cluster
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
                **program,
                "resources": container_resources(resources),
                "securityContext": CONTAINER_SECURITY,
                "volumeMounts": VOLUME_MOUNTS,
            }
        ],
        "volumes": volumes(cluster),
    }
    placement = {
        "serviceAccountName": cluster.service_account,
        "priorityClassName": cluster.priority_class,
        "schedulerName": cluster.gang_scheduler,
        "nodeSelector": cluster.node_selector,
        "tolerations": [
            {key: value for key, value in each.model_dump().items() if value}
            for each in cluster.tolerations
        ],
    }
    spec |= {name: value for name, value in placement.items() if value}
    if run.pull_secrets:
        spec["imagePullSecrets"] = list(run.pull_secrets)
    spec["topologySpreadConstraints"] = [
        {
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            # A preference: with fewer machines than pods, the training still runs.
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(labels)},
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


def container_resources(resources: ResourcesSection) -> Object:
    """Return requests and limits of one machine's container.

    Cores are not limited: a throttled process delays all others.
    """
    cluster, processes = resources.cluster, resources.processes_per_machine
    memory = _gib(cluster.memory_gib_per_process * processes)
    cores = f"{round(cluster.cpus_per_process * processes * 1000)}m"
    accelerators = {cluster.accelerator: str(processes)} if cluster.accelerator else {}
    return {
        # Equal memory: under pressure, pods above their request are evicted first.
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


def _gib(size: float) -> str:
    return f"{round(size * 1024)}Mi"


class JobKind(ABC):
    """Manifests and status of one kind, as pure functions."""

    title: str
    """Its name for people."""
    resource: Resource
    container: str
    """Its operator's name of the training container."""
    success: str
    """Its operator's condition for a job that succeeded."""

    @abstractmethod
    def spec(self, request: JobRequest, fields: frozenset[str]) -> Object:
        """Return the manifest's spec; some fields exist only in some served versions.

        Raises:
            PerennialError: this kind does not support what the contract requests.
        """

    @abstractmethod
    def rank_of(self, pod: Object) -> int:
        """Return the machine number of a pod; 0 runs the first rank."""

    @abstractmethod
    def size_of(self, spec: Object) -> tuple[int, int]:
        """Return the machines of a job, and the processes of each."""

    def manifest(self, request: JobRequest, fields: frozenset[str] = frozenset()) -> Object:
        """Return the manifest to create."""
        spec = self.spec(request, fields)
        return {
            "apiVersion": f"{self.resource.group}/{self.resource.version}",
            "kind": self.title,
            "metadata": request.metadata(spec),
            "spec": spec,
        }

    def view(self, job: Object) -> JobView:
        """Read a job's status."""
        metadata, status = job["metadata"], job.get("status", {})
        true = {
            each["type"]: each
            for each in status.get("conditions", ())
            if each.get("status") == "True"
        }
        annotations = metadata.get("annotations", {})
        machines, processes_per_machine = self.size_of(job["spec"])
        suspended = job["spec"].get("suspend") or job["spec"].get("runPolicy", {}).get("suspend")
        return JobView(
            name=metadata["name"],
            uid=metadata["uid"],
            run_id=metadata.get("labels", {}).get(RUN_LABEL, ""),
            attempt=annotations.get(ATTEMPT, ""),
            spec_digest=annotations.get(SPEC_DIGEST, ""),
            machines=machines,
            processes=machines * processes_per_machine,
            outcome="failed" if "Failed" in true else "succeeded" if self.success in true else None,
            is_suspended=bool(suspended) or "Suspended" in true,
            is_leaving="deletionTimestamp" in metadata,
            is_past_deadline=true.get("Failed", {}).get("reason") == DEADLINE,
            message="; ".join(found["message"] for found in true.values() if found.get("message")),
        )


# How long ended jobs are kept; their evidence is in the object store and the run's page anyway.
KEPT_SECONDS = 24 * 3600
# A service mesh's sidecar would outlive the training, or block it.
ANNOTATIONS = {"sidecar.istio.io/inject": "false", **LEFT_IN_PLACE}


class PyTorchJob(JobKind):
    """A master with the first rank, and workers."""

    title = "PyTorchJob"
    resource = PYTORCHJOBS
    container = "pytorch"
    success = "Succeeded"

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
            # A text in this API, which also takes "auto".
            "nprocPerNode": str(request.resources.processes_per_machine),
            "runPolicy": policy,
            "pytorchReplicaSpecs": replicas,
        }

    @override
    def rank_of(self, pod: Object) -> int:
        labels = pod["metadata"]["labels"]
        index = int(labels.get("training.kubeflow.org/replica-index", "0"))
        is_master = labels.get("training.kubeflow.org/replica-type") == "master"
        # The operator counts each type from 0.
        return 0 if is_master else index + 1

    @override
    def size_of(self, spec: Object) -> tuple[int, int]:
        machines = sum(replica["replicas"] for replica in spec["pytorchReplicaSpecs"].values())
        return machines, int(spec["nprocPerNode"])

    def _replica(self, request: JobRequest, count: int, *, is_first: bool) -> Object:
        program = {
            "name": self.container,
            "image": request.image,
            "command": request.command,
            "env": request.environment(is_first=is_first),
        }
        return {
            "replicas": count,
            "restartPolicy": "Never",
            "template": {
                "metadata": {"labels": request.labels, "annotations": ANNOTATIONS},
                "spec": training_pod(program, request.resources, request.run, request.labels),
            },
        }


DEADLINE_FIELD = "activeDeadlineSeconds"  # from 2.2 on
# Options whose fields differ between versions of TrainJob.
OF_THE_RUNTIME = (
    "service_account",
    "priority_class",
    "gang_scheduler",
    "node_selector",
    "tolerations",
    "run_as_user",
    "grace_seconds",
    "shared_memory_gib",
)
OURS = ClusterSection()  # what the TrainingRuntime in k8s/ is made for


class TrainJob(JobKind):
    """Equal machines, numbered; the first one holds the first rank."""

    title = "TrainJob"
    resource = TRAINJOBS
    container = "node"
    success = "Complete"

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
                "resourcesPerNode": container_resources(request.resources),
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
    def size_of(self, spec: Object) -> tuple[int, int]:
        trainer = spec["trainer"]
        return trainer["numNodes"], int(trainer["numProcPerNode"])


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
