"""What `train_model` receives: the model, how to train it, and on what."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from perennial.contracts.section import Section

Name = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9A-Z./_-]*$")]
IMAGE_BY_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


def by_digest(image: str) -> str:
    """An image by content; empty where an option lets it be.

    Raises:
        PydanticCustomError: a tag, or anything else without a digest.
    """
    if image and IMAGE_BY_DIGEST.fullmatch(image) is None:
        raise PydanticCustomError(
            "image_without_digest",
            "an image by digest, REPOSITORY@sha256:…; a tag may mean another image tomorrow",
            {"write": "what `docker buildx imagetools inspect IMAGE` says after Digest"},
        )
    return image


Digest = Annotated[str, AfterValidator(by_digest)]


class Toleration(Section):
    """A taint of machines that training pods may be put on in spite of it."""

    key: Name
    """The taint's key."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Equal` compares the taint's value, too."""
    value: Name = ""
    """The taint's value, with `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """Of the taint; empty for all effects."""

    @model_validator(mode="after")
    def _compares_what_it_names(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError('Kubernetes refuses a value with "Exists"; write operator = "Equal"')
        return self


class Budgets(Section):
    """How long each phase of a training on a cluster may take before it is given up."""

    queued_hours: Annotated[float, Field(gt=0)] = 24.0
    """Waiting for admission and for room. Raise it for busy queues; a training that can never be
    placed is noticed only then."""
    starting_minutes: Annotated[float, Field(gt=0)] = 20.0
    """From being placed until all processes have found each other: images of many GB on new
    machines take longest."""
    stuck_minutes: Annotated[float, Field(gt=0)] = 3.0
    """How long a pod may fail to start for the same reason, such as an image that cannot be pulled
    or a missing secret, and how long a job may stay suspended that Kueue has admitted. Raise it
    where registries are flaky."""
    unattended_minutes: Annotated[float, Field(gt=0)] = 20.0
    """How long a training goes on when its step was killed and nothing deletes the job; it then
    stops at a checkpoint. Longer than a step takes to be started again, and than an outage of the
    object store that is waited for."""
    running_hours: Annotated[float, Field(gt=0)] = 72.0
    """One attempt, once it runs. The kubelet ends the pods then, even if nobody is watching; an
    attempt that is resumed begins anew."""


class ClusterSection(Section):
    """What each training pod asks of a cluster; a training on this machine does not read it."""

    machines: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pods. Raise it when the processes do not fit on one machine; they are divided evenly."""
    accelerator: Name = ""
    """Resource to ask for, one for each process, such as `nvidia.com/gpu`; empty trains on
    processors."""
    cpus_per_process: Annotated[float, Field(gt=0)] = 1.0
    """Cores: asked for, and not limited. At least `threads_per_process`."""
    memory_gib_per_process: Annotated[float, Field(gt=0)] = 4.0
    """Asked for and at most, shared memory included. Raise it when a pod is killed as
    OOMKilled."""
    shared_memory_gib: Annotated[float, Field(gt=0)] = 1.0
    """Size of /dev/shm in each pod. Raise it when NCCL or loading processes end with a bus
    error."""
    image: Digest = ""
    """Trainer image; empty takes the one that the train_model step itself runs, so that both have
    the same code. Name another one by digest; a tag is refused."""
    queue: Name = ""
    """Kueue's LocalQueue. Set it wherever Kueue shares out the machines: pods that bypass it are
    outside its quota."""
    gang_scheduler: Name = ""
    """Scheduler that places all pods or none, such as `volcano`; the operator must have been
    started with it. Not needed with a queue, which admits all or none."""
    priority_class: Name = ""
    """Who gives way to whom when there is no room."""
    service_account: Name = ""
    """Of the training pods, where it is what opens the object store. No token is mounted."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Labels that machines must have, such as a GPU's model."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of machines that may be used in spite of them."""
    spread_over: Name = "kubernetes.io/hostname"
    """Label over whose values pods are spread where there is a choice; empty for no preference."""
    run_as_user: Annotated[int, Field(ge=1)] | None = 1000
    """Numeric user of every container in the training pods. Leave it out where the platform
    assigns users, as OpenShift does."""
    grace_seconds: Annotated[int, Field(ge=1)] = 120
    """Time between the request to stop and the kill: enough to write one more checkpoint."""
    runtime: Name = "perennial"
    """TrainingRuntime that TrainJobs refer to; `k8s/components/training-runtime` has it."""
    budgets: Budgets = Field(default_factory=Budgets)
    """When to give up."""


class ResourcesSection(Section):
    """What a training may use."""

    launcher: Literal["auto", "local", "pytorchjob", "trainjob"] = "auto"
    """Where the processes run: `local` beside the step, else as this kind of job. `auto` takes what
    the cluster serves, and says why; outside a pipeline's step on a cluster it is `local`."""
    num_processes: Annotated[int, Field(ge=1, le=4096)] = 2
    """Processes that train together: one per GPU, or one per few processor cores."""
    threads_per_process: Annotated[int, Field(ge=1, le=256)] = 1
    """Threads of each process. Never more in all than there are free cores: a step can then take
    tens of times as long."""
    max_restarts: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a training that was killed (preemption, out of memory, lost machine) resumes from
    its last checkpoint. An exception in the code fails at once: it would come again."""
    cluster: ClusterSection = Field(default_factory=ClusterSection)
    """Pods of a training on a cluster."""

    @property
    def processes_per_machine(self) -> int:
        """Processes in each pod."""
        return self.num_processes // self.cluster.machines

    @model_validator(mode="after")
    def _divides_evenly(self) -> Self:
        if self.num_processes % self.cluster.machines:
            raise ValueError(
                f"resources.num_processes = {self.num_processes} cannot be divided evenly among "
                f"resources.cluster.machines = {self.cluster.machines}"
            )
        return self
