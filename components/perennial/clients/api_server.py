"""API server: what it serves, how it refuses, and how long to try again."""

import time
from dataclasses import dataclass

from perennial.contracts.errors import PerennialError

TOO_MANY, CONFLICT, NOT_FOUND, UNAUTHORIZED, FORBIDDEN = 429, 409, 404, 401, 403
SERVER_ERROR = 500
SETTLING_SECONDS = 60.0


@dataclass(frozen=True)
class Resource:
    """A kind of object, as the API's paths name it."""

    group: str
    version: str
    plural: str

    @property
    def root(self) -> str:
        """Path at which the API server serves the group."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods")
WORKFLOWS = Resource("argoproj.io", "v1alpha1", "workflows")


class ApiError(PerennialError):
    """The API server refused a request, or could not be reached.

    Args:
        request: What was asked, as method and path.
        status: HTTP status; 0 when there was no answer.
        message: The server's message.
        retry_after: Seconds to wait that the server asked for; 0 when it did not.
    """

    def __init__(self, request: str, status: int, message: str, retry_after: float = 0.0) -> None:
        self.status = status
        self.retry_after = retry_after
        is_discovery = "/namespaces/" not in request
        actions = {
            FORBIDDEN: "bind the cluster role system:discovery to the service account, or to the "
            "group system:authenticated as Kubernetes does: Perennial asks which kinds it serves"
            if is_discovery
            else "grant the service account this verb; k8s/ has a role with all that are needed",
            UNAUTHORIZED: "check that the service account's token is mounted and not expired",
            0: "check that the API server is up and that network policies let this pod reach it",
        }
        super().__init__(
            f"the API server refused {request} ({status})" if status
            else f"the API server did not answer {request}",
            evidence=message, action=actions.get(status, ""),
        )  # fmt: skip

    @property
    def misses_definition(self) -> bool:
        """Whether the kind is not served, rather than one object not there."""
        return self.status == NOT_FOUND and '" not found' not in self.evidence

    @property
    def passes(self) -> bool:
        """Whether the same request may succeed later.

        500 is among them: it is what an operator's webhook that cannot be reached makes of a
        creation.
        """
        return self.status in (0, TOO_MANY, UNAUTHORIZED) or self.status >= SERVER_ERROR


class AlreadyExistsError(Exception):
    """There is an object of that name."""


class Settling:
    """Tells a refusal from the first words of an API server that has just started.

    Before it has read all accounts, roles and definitions, it answers 401, 403 or 404 to what it
    answered before (seen on 1.20: `RBAC: role … not found`, a second after its port was open). So
    such an answer is final only where no such start can be the reason, or after a minute of it.
    """

    def __init__(self) -> None:
        self._answered: set[str] = set()
        self._away_at = -SETTLING_SECONDS

    def answered(self, request: str) -> None:
        """Remember that this was answered."""
        self._answered.add(request)

    def refused(self, request: str, error: ApiError, seconds: float) -> bool:
        """Whether the same request may soon be answered after all.

        Args:
            request: Method and path.
            error: What came instead of an answer.
            seconds: For how long it has been tried.
        """
        now = time.monotonic()
        if error.status == 0 or error.status >= SERVER_ERROR:
            self._away_at = now
        was_there = request in self._answered or now - self._away_at < SETTLING_SECONDS
        is_start = error.status in (UNAUTHORIZED, FORBIDDEN) or error.misses_definition
        return is_start and was_there and seconds < SETTLING_SECONDS
