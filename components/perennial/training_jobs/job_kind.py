"""Job kind: what one kind of training job looks like to the API server."""

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
    """What matters of a job's status.

    Attributes:
        name: The job's name.
        uid: The job itself: another one may get its name.
        run_id: The pipeline run that made it.
        attempt: Which attempt it is.
        spec_digest: Of the manifest that it was made from.
        outcome: What its operator says; None while it goes on.
        is_suspended: Whether it waits to be admitted.
        is_leaving: Whether it is being deleted.
        is_past_deadline: Whether its operator ended it for taking too long.
        message: The operator's words.
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
    """Manifests and status of one kind; pure functions all.

    Attributes:
        title: Its name for people.
        resource: Where the API serves it.
        container: What its operator calls the training container.
        api_version: Of its manifests.
    """

    title: str
    resource: Resource
    container: str

    @property
    def api_version(self) -> str:
        """Group and version."""
        return f"{self.resource.group}/{self.resource.version}"

    @abstractmethod
    def spec(self, request: JobRequest, fields: frozenset[str]) -> Object:
        """The manifest's spec.

        Args:
            request: What to run.
            fields: Those that the served version has, for what only some versions have.

        Raises:
            PerennialError: this kind cannot do what the contract asks for.
        """

    @abstractmethod
    def rank_of(self, pod: Object) -> int:
        """Which machine a pod is; 0 holds the first rank."""

    @abstractmethod
    def outcome(self, conditions: dict[str, Object]) -> Literal["succeeded", "failed"] | None:
        """What the conditions that are true say."""

    def manifest(self, request: JobRequest, fields: frozenset[str] = frozenset()) -> Object:
        """The body of the creation."""
        spec = self.spec(request, fields)
        return {
            "apiVersion": self.api_version,
            "kind": self.title,
            "metadata": request.metadata(spec),
            "spec": spec,
        }

    def view(self, job: Object) -> JobView:
        """What a job's status says."""
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
        """What a pod's status says about the training."""
        return PodView.of(pod, self.container)

    def _is_suspended(self, job: Object, true: dict[str, Object]) -> bool:
        suspended = job["spec"].get("suspend") or job["spec"].get("runPolicy", {}).get("suspend")
        return bool(suspended) or "Suspended" in true
