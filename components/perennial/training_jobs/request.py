"""Job request: the inputs of a training job's manifest, partly read from the step's own pod."""

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
from perennial.training_jobs.launcher import worker_settings
from perennial.training_jobs.leftovers import KFP_RUN_LABEL, MANAGED_BY, RUN_LABEL

MODEL_LABEL = "perennial/model"
FINGERPRINT_LABEL = "perennial/fingerprint"
ATTEMPT = "perennial/attempt"
SPEC_DIGEST = "perennial/spec-sha256"
STORE = "perennial/store-uri"
STEP_CONTAINER = "main"  # where Argo runs a step's program
# Training pods get the step's variables except those that KFP and Argo set about the step, and
# those that are the step's own.
KEPT_BACK = re.compile(
    rf"^(_?KFP_|ARGO_|METADATA_|ML_PIPELINE_|({LEASE}|{RUN_FOLDER}|{CACHE}|{SECRET_FILES})$)"
)
SCRATCH = "/scratch"


@dataclass(frozen=True)
class RunIdentity:
    """The pipeline run that a training belongs to.

    Attributes:
        run_id: KFP's run id.
        owner: Reference to the Argo Workflow; None if the pod has no owner.
        image: Image of the step's own container.
        environment: Variables to pass on, secrets by reference.
        pull_secrets: References to the image pull secrets.
    """

    run_id: str
    owner: Object | None
    image: str
    environment: tuple[Object, ...]
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
                *(_reference(name, *place) for name, place in secret_places(mounted).items()),
            ),
            pull_secrets=tuple(pod["spec"].get("imagePullSecrets", ())),
        )


@dataclass(frozen=True)
class JobRequest:
    """One training job on a cluster; manifests are functions of it.

    Attributes:
        name: The same for every attempt of the same training, so that the API server ensures that
            there is one job at a time.
        run: The pipeline run.
        model: The model's name.
        fingerprint: The training's fingerprint.
        attempt: Name of the attempt; its files are under `attempts/` in the store.
        address: Address of the worker's job description.
        store_uri: Address of the training's files.
        resources: The contract's section.
        tracking_run_id: An MLflow run that the platform opened; for the first rank only.
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
        """Return the request for one attempt at a job."""
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
        """Return the trainer image."""
        return self.resources.cluster.image or self.run.image

    @property
    def labels(self) -> dict[str, str]:
        """Return the labels by which the job and its pods are found."""
        return {
            **MANAGED_BY,
            RUN_LABEL: self.run.run_id,
            MODEL_LABEL: label_value(self.model),
            FINGERPRINT_LABEL: self.fingerprint[:16],
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
            *("python", "-m", "torch.distributed.run", "--max-restarts", "0"),
            *("--rdzv-conf", f"timeout={math.ceil(patience.total_seconds())}"),
            *("-m", "perennial.engine.worker", self.address),
        ]

    def metadata(self, spec: Mapping[str, Any]) -> Object:
        """Return the job's metadata; the spec's digest identifies an equal job."""
        # The address contains the attempt's name, which makes no difference between two jobs.
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
        """Return the containers' variables; ours override the step's.

        Args:
            is_first: Whether the pod runs the first rank.
        """
        own = {
            **worker_settings(self.resources.threads_per_process),
            CACHE: f"{SCRATCH}/cache",
            # The step reads it from a label that training pods lack.
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
    """Return a secret as a variable of a training pod; no argument is user text."""
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}}


def job_name(model: str, fingerprint: str) -> str:
    """Return a name that is valid for the job's services and pods: RFC 1035, with suffixes."""
    slug = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")[:24].strip("-") or "model"
    prefix = slug if slug[0].isalpha() else f"m-{slug}"
    return f"{prefix}-{fingerprint[:12]}"


def label_value(text: str) -> str:
    """Return the nearest text that is valid as a label's value."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:63].strip("-._")
