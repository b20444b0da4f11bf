"""The `[resources]` section, and the sections of a contract that determine a training."""

import re
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from perennial.contracts.data import ModelSection
from perennial.contracts.section import Advanced, Section, flattened
from perennial.engine.config.training import TrainingSection

Name = Annotated[str, Field(max_length=253, pattern=r"^[a-z0-9A-Z./_-]*$")]
IMAGE_BY_DIGEST = re.compile(r"[^\s@]+@sha256:[0-9a-f]{64}")


def by_digest(image: str) -> str:
    """Validate an image reference by digest; empty where the option allows it.

    Raises:
        PydanticCustomError: a tag, or anything else without a digest.
    """
    if image and IMAGE_BY_DIGEST.fullmatch(image) is None:
        raise PydanticCustomError(
            "image_without_digest",
            "an image by digest, REPOSITORY@sha256:…; a tag may refer to another image later",
            {"write": "the Digest that `docker buildx imagetools inspect IMAGE` prints"},
        )
    return image


Digest = Annotated[str, AfterValidator(by_digest)]


class Toleration(Section):
    """A taint that training pods tolerate."""

    key: Name
    """The taint's key."""
    operator: Literal["Exists", "Equal"] = "Exists"
    """`Equal` compares the taint's value too."""
    value: Name = ""
    """The taint's value, with `Equal`."""
    effect: Literal["", "NoSchedule", "PreferNoSchedule", "NoExecute"] = ""
    """The taint's effect; empty for all effects."""

    @model_validator(mode="after")
    def _compares_what_it_names(self) -> Self:
        if self.operator == "Exists" and self.value:
            raise ValueError('Kubernetes rejects a value with "Exists"; write operator = "Equal"')
        return self


class Budgets(Section):
    """Timeouts of the phases of a training on a cluster."""

    queued_hours: Annotated[float, Field(gt=0)] = 24.0
    """Timeout for admission and scheduling. Raise it for busy queues; a training that can never be
    scheduled is noticed only then."""
    smaller_after_minutes: Annotated[float, Field(gt=0)] = 10.0
    """With `min_machines`: how long an attempt is queued before one with half the machines takes
    its place."""
    starting_minutes: Annotated[float, Field(gt=0)] = 20.0
    """Timeout from scheduling until the rendezvous of all processes is complete. Raise it for
    images of many GB on new machines."""
    stuck_minutes: Annotated[float, Field(gt=0)] = 3.0
    """Timeout for a pod that fails to start for the same reason, such as an image that cannot be
    pulled or a missing secret, and for a job that stays suspended after Kueue admitted it. Raise it
    if registries are flaky."""
    unattended_minutes: Annotated[float, Field(gt=0)] = 20.0
    """How long a training continues after its step was killed and nothing deleted the job; it then
    stops at a checkpoint. Must exceed the time to restart a step, and the longest outage of the
    object store that is waited for."""
    running_hours: Annotated[float, Field(gt=0)] = 72.0
    """Timeout of one attempt while it runs. The kubelet then ends the pods, even if the launcher is
    gone; a resumed attempt starts again at zero."""


class ClusterSection(Section):
    """Resources of each training pod on a cluster; ignored by a local training."""

    machines: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of pods. Raise it when the processes do not fit on one machine; they are divided
    evenly."""
    min_machines: Advanced[Annotated[int, Field(ge=1)] | None] = None
    """Fewest pods that a training may continue on. While an attempt finds no place, half of its
    machines are tried, down to this number; after an interruption all are asked for again. None
    waits for `machines`."""
    accelerator: Name = ""
    """Resource to request, one per process, such as `nvidia.com/gpu`; empty trains on CPUs."""
    cpus_per_process: Annotated[float, Field(gt=0)] = 1.0
    """Requested cores per process; there is no limit. At least `threads_per_process`."""
    memory_gib_per_process: Annotated[float, Field(gt=0)] = 4.0
    """Memory request and limit per process, shared memory included. Raise it when a pod is
    OOMKilled."""
    shared_memory_gib: Advanced[Annotated[float, Field(gt=0)]] = 1.0
    """Size of /dev/shm in each pod. Raise it when NCCL or loading processes end with a bus
    error."""
    image: Digest = ""
    """Trainer image; empty uses the image of the train_model step, so that both have the same code.
    Specify another one by digest; a tag is rejected."""
    queue: Name = ""
    """Kueue's LocalQueue. Set it if Kueue manages the machines: pods that bypass it are outside its
    quota."""
    gang_scheduler: Advanced[Name] = ""
    """Gang scheduler, such as `volcano`, which schedules all pods or none; the operator must be
    started with it. Not needed with a queue, which admits all or none."""
    priority_class: Advanced[Name] = ""
    """PriorityClass of the pods: it decides which pods are preempted when resources run out."""
    service_account: Name = ""
    """Service account of the training pods, if it grants access to the object store. No token is
    mounted."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels that machines must have, such as a GPU's model."""
    tolerations: tuple[Toleration, ...] = ()
    """Node taints that the pods tolerate."""
    run_as_user: Advanced[Annotated[int, Field(ge=1)] | None] = 1000
    """Numeric user ID of every container in the training pods. Leave it out if the platform assigns
    users, as OpenShift does."""
    grace_seconds: Advanced[Annotated[int, Field(ge=1)]] = 120
    """Time between SIGTERM and SIGKILL: must suffice to write one more checkpoint."""
    runtime: Advanced[Name] = "perennial"
    """TrainingRuntime that TrainJobs refer to; defined in `k8s/components/training-runtime`."""
    budgets: Advanced[Budgets] = Field(default_factory=Budgets)
    """Timeouts."""


class ResourcesSection(Section):
    """Resources of a training."""

    launcher: Literal["auto", "local", "pytorchjob", "trainjob"] = "auto"
    """Where the processes run: `local` in the step itself, otherwise as this kind of job. `auto`
    selects a kind that the cluster serves and logs the reason; outside a pipeline step on a cluster
    it is `local`."""
    num_processes: Annotated[int, Field(ge=1, le=4096)] = 2
    """Number of training processes: one per GPU, or one per few CPU cores."""
    threads_per_process: Advanced[Annotated[int, Field(ge=1, le=256)]] = 1
    """Threads of each process. Never more in total than free cores: a step could take tens of times
    as long."""
    max_restarts: Annotated[int, Field(ge=0, le=100)] = 3
    """How often a training that was killed (preemption, out of memory, lost machine) resumes from
    its last checkpoint. An exception in the code fails at once, because it would recur."""
    cluster: ClusterSection = Field(default_factory=ClusterSection)
    """Pods of a training on a cluster."""

    @property
    def processes_per_machine(self) -> int:
        """Return the number of processes in each pod."""
        return self.num_processes // self.cluster.machines

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the numbers of machines that attempts may have, the largest first."""
        sizes = [self.cluster.machines]
        least = self.cluster.min_machines or self.cluster.machines
        while sizes[-1] > least:
            # Halves, so that few sizes are tried: each one waits for `smaller_after_minutes`.
            sizes.append(max(sizes[-1] // 2, least))
        return tuple(sizes)

    def on_machines(self, machines: int) -> "ResourcesSection":
        """Return the same resources on another number of machines, with as many processes each."""
        cluster = self.cluster.model_copy(update={"machines": machines})
        processes = machines * self.processes_per_machine
        return self.model_copy(update={"num_processes": processes, "cluster": cluster})

    @model_validator(mode="after")
    def _shrinks(self) -> Self:
        cluster = self.cluster
        if cluster.min_machines is None and cluster.budgets.changed("smaller_after_minutes"):
            raise ValueError(
                "cluster.budgets.smaller_after_minutes has no effect without cluster.min_machines: "
                "set that, or remove it"
            )
        if cluster.min_machines is not None and cluster.min_machines >= cluster.machines:
            raise ValueError(
                f"cluster.min_machines = {cluster.min_machines} is not less than cluster.machines "
                f"= {cluster.machines}: lower it, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _divides_evenly(self) -> Self:
        if self.num_processes % self.cluster.machines:
            raise ValueError(
                f"resources.num_processes = {self.num_processes} is not divisible by "
                f"resources.cluster.machines = {self.cluster.machines}"
            )
        return self


class TrainModelConfig(Section):
    """The sections that `train_model` reads."""

    model: ModelSection
    training: TrainingSection = TrainingSection()
    resources: ResourcesSection = ResourcesSection()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        processes = self.resources.num_processes
        if self.training.strategy == "single" and processes != 1:
            raise ValueError(
                f"training.strategy = 'single' is one process, but resources.num_processes = "
                f"{processes}; set it to 1, or strategy to 'fsdp' or 'ddp'"
            )
        parts = self.training.parallelism.data_size(processes)
        if self.training.global_batch_size < parts:
            raise ValueError(
                f"training.global_batch_size = {self.training.global_batch_size} is less than the "
                f"{parts} groups of processes that share the rows; raise it"
            )
        for machines in self.resources.sizes[1:]:
            fewer, together = machines * self.resources.processes_per_machine, self._together
            if fewer % together:
                raise ValueError(
                    f"resources.cluster.min_machines allows attempts of {fewer} processes, which "
                    f"are not a multiple of the {together} that training.parallelism needs; raise "
                    "it, or remove it"
                )
        return self

    @property
    def _together(self) -> int:
        """Return the processes that hold one copy of the model's parts."""
        plan = self.training.parallelism
        return plan.tensor * plan.context * plan.pipeline * plan.expert * plan.replicas


def flatten_options(settings: TrainModelConfig) -> dict[str, object]:
    """Return each option of the model, training and resources by its dotted name; unset ones not.

    Of the resources, those of a cluster do not enter the numbers.
    """
    sections = settings.model_dump(mode="json", include={"model", "training", "resources"})
    sections["resources"].pop("cluster", None)
    found = flattened(sections)
    return {name: value for name, value in found.items() if value not in (None, "", [], {})}
