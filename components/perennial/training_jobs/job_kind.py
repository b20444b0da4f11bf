"""Job kind: manifests and status of one kind of training job."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from perennial.clients.api_server import Resource
from perennial.clients.cluster import Object
from perennial.training_jobs.pods import PodView
from perennial.training_jobs.request import ATTEMPT, SPEC_DIGEST, JobRequest
from perennial.training_jobs.selectors import RUN_LABEL

DEADLINE = "DeadlineExceeded"


@dataclass(frozen=True)
class JobView:
    """The relevant fields of a job's status.

    Attributes:
        name: The job's name.
        uid: Identifies the job: another one may get its name.
        run_id: The pipeline run that created it.
        attempt: Name of the attempt.
        spec_digest: Digest of the manifest that it was created from.
        outcome: The outcome that its operator reports; None while it runs.
        is_suspended: Whether it waits to be admitted.
        is_leaving: Whether it is being deleted.
        is_past_deadline: Whether its operator ended it for taking too long.
        message: The operator's message.
    """

    name: str
    uid: str
    run_id: str
    attempt: str
    spec_digest: str
    outcome: Literal["succeeded", "failed"] | None
    is_suspended: bool
    is_leaving: bool
    is_past_deadline: bool
    message: str


class JobKind(ABC):
    """Manifests and status of one kind, as pure functions.

    Attributes:
        title: Its name for people.
        resource: Its API resource.
        container: Its operator's name of the training container.
        api_version: API version of its manifests.
    """

    title: str
    resource: Resource
    container: str

    @property
    def api_version(self) -> str:
        """Return API group and version."""
        return f"{self.resource.group}/{self.resource.version}"

    @abstractmethod
    def spec(self, request: JobRequest, fields: frozenset[str]) -> Object:
        """Return the manifest's spec.

        Args:
            request: The job to run.
            fields: Fields of the served version, for those that only some versions have.

        Raises:
            PerennialError: this kind does not support what the contract requests.
        """

    @abstractmethod
    def rank_of(self, pod: Object) -> int:
        """Return the machine number of a pod; 0 runs the first rank."""

    @abstractmethod
    def outcome(self, conditions: dict[str, Object]) -> Literal["succeeded", "failed"] | None:
        """Return the outcome, given the conditions that are true."""

    def manifest(self, request: JobRequest, fields: frozenset[str] = frozenset()) -> Object:
        """Return the manifest to create."""
        spec = self.spec(request, fields)
        return {
            "apiVersion": self.api_version,
            "kind": self.title,
            "metadata": request.metadata(spec),
            "spec": spec,
        }

    def view(self, job: Object) -> JobView:
        """Return the view of a job's status."""
        metadata, status = job["metadata"], job.get("status", {})
        true = {
            each["type"]: each
            for each in status.get("conditions", ())
            if each.get("status") == "True"
        }
        annotations = metadata.get("annotations", {})
        return JobView(
            name=metadata["name"],
            uid=metadata["uid"],
            run_id=metadata.get("labels", {}).get(RUN_LABEL, ""),
            attempt=annotations.get(ATTEMPT, ""),
            spec_digest=annotations.get(SPEC_DIGEST, ""),
            outcome=self.outcome(true),
            is_suspended=self._is_suspended(job, true),
            is_leaving="deletionTimestamp" in metadata,
            is_past_deadline=true.get("Failed", {}).get("reason") == DEADLINE,
            message="; ".join(found["message"] for found in true.values() if found.get("message")),
        )

    def pod_view(self, pod: Object) -> PodView:
        """Return the view of a pod's status."""
        return PodView.of(pod, self.container)

    def _is_suspended(self, job: Object, true: dict[str, Object]) -> bool:
        suspended = job["spec"].get("suspend") or job["spec"].get("runPolicy", {}).get("suspend")
        return bool(suspended) or "Suspended" in true
