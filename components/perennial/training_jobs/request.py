"""Job request: all that a training job's manifest is made of, and what the own pod tells."""

import hashlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from perennial.clients.cluster import Object
from perennial.contracts.environment import (
    CACHE,
    LEASE,
    RUN_FOLDER,
    RUN_ID,
    SECRET_FILES,
    TRACKING_RUN_ID,
    secret_places,
)
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json
from perennial.engine.job import TrainingJob
from perennial.training_jobs.config import ResourcesSection
from perennial.training_jobs.selectors import KFP_RUN_LABEL, MANAGED_BY, RUN_LABEL
from perennial.training_jobs.worker_settings import worker_settings

MODEL_LABEL = "perennial/model"
FINGERPRINT_LABEL = "perennial/fingerprint"
ATTEMPT = "perennial/attempt"
SPEC_DIGEST = "perennial/spec-sha256"
STORE = "perennial/store-uri"
STEP_CONTAINER = "main"  # where Argo runs a step's program
# Of the step's variables, training pods get all but what KFP and Argo tell the step about itself,
# and what is the step's own.
KEPT_BACK = re.compile(
    rf"^(_?KFP_|ARGO_|METADATA_|ML_PIPELINE_|({LEASE}|{RUN_FOLDER}|{CACHE}|{SECRET_FILES})$)"
)
SCRATCH = "/scratch"


@dataclass(frozen=True)
class RunIdentity:
    """The pipeline run that a training belongs to.

    Attributes:
        run_id: KFP's.
        owner: Reference to the Argo Workflow; None where the pod has no owner.
        image: What the step's own container runs.
        environment: Variables to pass on, secrets by reference.
        pull_secrets: References to what opens the registry.
    """

    run_id: str
    owner: Object | None
    image: str
    environment: tuple[Object, ...]
    pull_secrets: tuple[Object, ...] = ()

    @classmethod
    def of_pod(cls, pod: Object) -> "RunIdentity":
        """What a step's own pod says.

        The owner is the Workflow, never the pod: a pod that is deleted, as when its machine is
        drained, would take the running training along.

        Raises:
            PerennialError: the pod is not one of a pipeline run.
        """
        metadata = pod["metadata"]
        run_id = metadata.get("labels", {}).get(KFP_RUN_LABEL, "")
        containers = {each["name"]: each for each in pod["spec"]["containers"]}
        if not run_id or STEP_CONTAINER not in containers:
            raise PerennialError(
                f"the pod {metadata['name']} is not a pipeline's step",
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
                *(_reference(name, *place) for name, place in secret_places(mounted).items()),
            ),
            pull_secrets=tuple(pod["spec"].get("imagePullSecrets", ())),
        )


@dataclass(frozen=True)
class JobRequest:
    """One training job on a cluster; manifests are functions of it.

    Attributes:
        name: The same for every attempt of the same training, so that the API server sees to it
            that there is one job at a time.
        run: The pipeline run.
        model: The model's name.
        fingerprint: The training's.
        attempt: Name of the attempt; its files lie under `attempts/` in the store.
        address: Where the worker finds its job.
        store_uri: Where the training's files lie.
        resources: The contract's section.
        tracking_run_id: An MLflow run that the platform opened; for the first rank alone.
    """

    name: str
    run: RunIdentity
    model: str
    fingerprint: str
    attempt: str
    address: str
    store_uri: str
    resources: ResourcesSection
    tracking_run_id: str = ""

    @classmethod
    def of(
        cls, job: TrainingJob, resources: ResourcesSection, run: RunIdentity,
        tracking_run_id: str = "",
    ) -> "JobRequest":  # fmt: skip
        """The request for one attempt at a job."""
        return cls(
            name=job_name(job.model.name, job.fingerprint),
            run=run,
            model=job.model.name,
            fingerprint=job.fingerprint,
            attempt=job.attempt,
            address=job.address,
            store_uri=job.store_uri,
            resources=resources,
            tracking_run_id=tracking_run_id,
        )

    @property
    def image(self) -> str:
        """The trainer image."""
        return self.resources.cluster.image or self.run.image

    @property
    def labels(self) -> dict[str, str]:
        """What the job and its pods are found by."""
        return {
            **MANAGED_BY,
            RUN_LABEL: self.run.run_id,
            MODEL_LABEL: label_value(self.model),
            FINGERPRINT_LABEL: self.fingerprint[:16],
        }

    @property
    def command(self) -> list[str]:
        """Torchrun; the operator's PET_ variables tell it about the other machines.

        It waits for them as long as the launcher does: ten minutes, its default, are less than
        another machine's image may take.
        """
        budgets = self.resources.cluster.budgets
        patience = timedelta(hours=budgets.queued_hours, minutes=budgets.starting_minutes)
        return [
            *("python", "-m", "torch.distributed.run", "--max-restarts", "0"),
            *("--rdzv-conf", f"timeout={math.ceil(patience.total_seconds())}"),
            *("-m", "perennial.engine.worker", self.address),
        ]

    def metadata(self, spec: Mapping[str, Any]) -> Object:
        """The job's metadata; the spec's digest says whether a job found is this one."""
        # The address holds the attempt's name, which is no difference between two jobs.
        text = canonical_json(dict(spec)).replace(self.attempt, "")
        metadata: Object = {
            "name": self.name,
            "labels": self.labels,
            "annotations": {
                ATTEMPT: self.attempt,
                STORE: self.store_uri,
                SPEC_DIGEST: hashlib.sha256(text.encode()).hexdigest(),
            },
        }
        if self.resources.cluster.queue:
            metadata["labels"]["kueue.x-k8s.io/queue-name"] = self.resources.cluster.queue
        if self.run.owner:
            metadata["ownerReferences"] = [self.run.owner]
        return metadata

    def environment(self, *, is_first: bool) -> list[Object]:
        """The containers' variables, ours over the step's.

        Args:
            is_first: Whether it is the pod of the first rank.
        """
        own = {
            **worker_settings(self.resources.threads_per_process),
            CACHE: f"{SCRATCH}/cache",
            # The step has it from a label that training pods lack.
            RUN_ID: self.run.run_id,
            "HOME": SCRATCH,
            "TMPDIR": SCRATCH,
            "PYTHONUNBUFFERED": "1",
        }
        if is_first and self.tracking_run_id:
            own[TRACKING_RUN_ID] = self.tracking_run_id
        passed_on = [found for found in self.run.environment if found["name"] not in own]
        return [*passed_on, *({"name": name, "value": own[name]} for name in sorted(own))]


def _reference(name: str, secret: str, key: str) -> Object:
    """A secret as a variable of a training pod, none of whose arguments is a text of users."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def job_name(model: str, fingerprint: str) -> str:
    """A name that services and pods of the job can carry: RFC 1035, with room for suffixes."""
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:24].strip("-") or "model"
    prefix = slug if slug[0].isalpha() else f"m-{slug}"
    return f"{prefix}-{fingerprint[:12]}"


def label_value(text: str) -> str:
    """The nearest text that is allowed as a label's value."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")
