"""Cluster: the only client of the Kubernetes API server."""

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlencode

from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, list_kube_config_contexts, load_kube_config
from urllib3 import BaseHTTPResponse, Timeout
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError

from perennial.clients.outages import LOG_EVERY_SECONDS, Persistence
from perennial.contracts.environment import ClusterAddress
from perennial.contracts.errors import PerennialError

Object = dict[str, Any]  # as the API server sends it
Query = Sequence[tuple[str, str]]

# A token is re-read for every request: a second refusal in a row is not a rotation.
REFUSALS = 3
CONNECT_SECONDS = 5.0
READ_SECONDS = 30.0
# A watch is renewed every minute, so that a connection that died silently is noticed.
WATCH_SECONDS = 60
# A log may be silent for hours: the system finds out within two minutes that its other end is gone.
KEPT_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 4}
SOCKET_OPTIONS = [
    *HTTPConnection.default_socket_options,
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in KEPT_ALIVE.items()
        if hasattr(socket, name)
    ),
]
TOO_MANY, CONFLICT, NOT_FOUND, UNAUTHORIZED, FORBIDDEN = 429, 409, 404, 401, 403
SERVER_ERROR = 500
SETTLING_SECONDS = 60.0
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resource:
    """A kind of object, as the API's paths name it."""

    group: str
    version: str
    plural: str
    deletion: Literal["Foreground", "Background"] = "Foreground"
    """Whether the object stays until what it owns is gone, or goes first."""

    @property
    def root(self) -> str:
        """Path at which the API server serves the group."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


PODS = Resource("", "v1", "pods")
WORKFLOWS = Resource("argoproj.io", "v1alpha1", "workflows")


RAISE_QUOTA = (
    "wait until other objects of this kind are gone, or raise the ResourceQuota that is named"
)


class ApiError(PerennialError):
    """The API server refused a request, or could not be reached, which is status 0.

    A request is a method and a path. `retry_after` are the seconds that the server asks to wait.
    """

    def __init__(self, request: str, status: int, message: str, retry_after: float = 0.0) -> None:
        self.status = status
        self.retry_after = retry_after
        self.exceeds_quota = status == FORBIDDEN and "exceeded quota" in message
        """Whether a ResourceQuota refused a creation, which it may admit later."""
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
            f"the API server refused {request} ({status})"
            if status
            else f"the API server did not answer {request}",
            evidence=message,
            action=RAISE_QUOTA if self.exceeds_quota else actions.get(status, ""),
        )

    @property
    def misses_definition(self) -> bool:
        """Whether the kind is not served, rather than one object not there."""
        # Of a missing object the server writes `pods "a" not found`; of an unknown kind, no name.
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
    """Tells a refusal from the first answers of an API server that has just started.

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
        """Whether a request, tried for so many seconds, may soon be answered after all."""
        now = time.monotonic()
        if error.status == 0 or error.status >= SERVER_ERROR:
            self._away_at = now
        was_there = request in self._answered or now - self._away_at < SETTLING_SECONDS
        is_start = error.status in (UNAUTHORIZED, FORBIDDEN) or error.misses_definition
        return is_start and not error.exceeds_quota and was_there and seconds < SETTLING_SECONDS


class Cluster:
    """Objects of one namespace; `pod` is this process's own, empty outside a cluster."""

    def __init__(
        self,
        configuration: Configuration,
        namespace: str,
        *,
        pod: str = "",
        persistence: Persistence | None = None,
    ) -> None:
        self.namespace = namespace
        self._pod = pod
        self._configuration = configuration
        self._client = ApiClient(configuration)
        pools = self._client.rest_client.pool_manager
        pools.connection_pool_kw["socket_options"] = SOCKET_OPTIONS
        self._persistence = persistence or Persistence()
        self._settling = Settling()

    @classmethod
    def connect(
        cls,
        address: ClusterAddress | None,
        namespace: str = "",
        persistence: Persistence | None = None,
    ) -> "Cluster":
        """Return the cluster that this process runs in, else the one that kubeconfig names.

        A given namespace is used instead of the pod's own, or of the one in kubeconfig.

        Raises:
            PerennialError: there is neither.
        """
        if address is not None:
            place = namespace or address.namespace
            return cls(_in_cluster(address), place, pod=address.pod, persistence=persistence)
        configuration = Configuration()
        try:
            load_kube_config(client_configuration=configuration)
            _, active = list_kube_config_contexts()
        except ConfigException as error:
            raise PerennialError(
                "no Kubernetes cluster is configured",
                evidence=str(error),
                action="run in a pod with a service account, or set KUBECONFIG",
            ) from error
        found = namespace or active["context"].get("namespace") or "default"
        return cls(configuration, found, persistence=persistence)

    def twin(self) -> "Cluster":
        """Return the cluster with connections of its own, which no other thread uses."""
        twin = Cluster(
            self._configuration, self.namespace, pod=self._pod, persistence=self._persistence
        )
        twin._settling = self._settling  # of one API server
        return twin

    def close(self) -> None:
        """Close the connections."""
        self._client.rest_client.pool_manager.clear()

    def serves(self, resource: Resource) -> bool:
        """Whether the API server knows a kind of object."""
        answer = self._find(resource.root)
        return answer is not None and any(
            found["name"] == resource.plural for found in answer["resources"]
        )

    def spec_fields(self, resource: Resource, kind: str) -> frozenset[str]:
        """Return the fields that the served version of a kind has in its spec.

        None are known on servers before Kubernetes 1.27, which may describe nothing there.
        """
        answer = self._find(f"/openapi/v3{resource.root}")
        for schema in answer["components"]["schemas"].values() if answer else ():
            for found in schema.get("x-kubernetes-group-version-kind", ()):
                if (found["group"], found["kind"]) == (resource.group, kind):
                    return frozenset(schema["properties"]["spec"].get("properties", {}))
        return frozenset()

    def create(self, resource: Resource, body: Object) -> Object:
        """Create an object; a field that the server does not know is an error, not ignored.

        Raises:
            AlreadyExistsError: there is one of that name.
        """
        query = [("fieldValidation", "Strict")]
        try:
            return self._answer("POST", self._path(resource), query=query, body=body)
        except ApiError as error:
            if error.status == CONFLICT:
                raise AlreadyExistsError(body["metadata"]["name"]) from error
            raise

    def get(self, resource: Resource, name: str) -> Object | None:
        """Return an object, or None."""
        return self._find(self._path(resource, name))

    def list(self, resource: Resource, selector: str) -> list[Object]:
        """Return the objects whose labels match."""
        return self._listed(resource, selector)["items"]  # type: ignore[no-any-return]  # JSON

    def delete(
        self, resource: Resource, name: str, *, uid: str = "", is_patient: bool = True
    ) -> bool:
        """Delete an object with what it owns; False when there is none, or none of this uid.

        An impatient call is not tried again.
        """
        body: Object = {"propagationPolicy": resource.deletion}
        if uid:
            body["preconditions"] = {"uid": uid}
        path = self._path(resource, name)
        try:
            self._answer("DELETE", path, body=body, is_patient=is_patient)
        except ApiError as error:
            # The conflict is with the uid: another object has the name by now.
            if error.status in (NOT_FOUND, CONFLICT):
                return False
            raise
        return True

    def own_pod(self) -> Object:
        """Return the pod that this process runs in.

        Raises:
            PerennialError: it does not run in one.
        """
        found = self.get(PODS, self._pod) if self._pod else None
        if found is None:
            raise PerennialError(
                f"the API server has no pod {self._pod!r} in namespace {self.namespace}",
                action="KFP_POD_NAME names the step's pod; start the step through a pipeline",
            )
        return found

    def watch(
        self, resource: Resource, selector: str, ended: threading.Event
    ) -> Iterator[dict[str, Object]]:
        """Yield the objects whose labels match, by name: now, and after each change.

        Starts again when the version expired on the server, or the connection was lost; ends
        within a minute of the event.
        """
        pauses = self._persistence.pauses()
        while not ended.is_set():
            answer = self._listed(resource, selector)
            objects: dict[str, Object] = {
                item["metadata"]["name"]: item for item in answer["items"]
            }
            # A copy: the caller reads it in another thread while this one goes on.
            yield dict(objects)
            version = answer["metadata"]["resourceVersion"]
            try:
                for event in self._events(resource, selector, version, ended):
                    changed = event["object"]
                    name = changed["metadata"].get("name", "")
                    if event["type"] in ("ADDED", "MODIFIED"):
                        objects[name] = changed
                    elif event["type"] == "DELETED":
                        objects.pop(name, None)
                    pauses = self._persistence.pauses()  # the connection works again
                    yield dict(objects)
            except (HTTPError, ApiError) as error:
                logger.info("watch=%s restarts: %s", resource, error)
                ended.wait(next(pauses))

    def log_lines(self, pod: str, container: str, since: str = "") -> Iterator[str]:
        """Yield a container's log as it grows: each line with its time in front.

        It starts at the beginning, or at a time, to the second.

        Raises:
            ApiError: the container has not started, or is gone.
            urllib3.exceptions.HTTPError: the connection was lost.
        """
        query = [("container", container), ("follow", "true"), ("timestamps", "true")]
        if since:
            query.append(("sinceTime", since))
        path = f"{self._path(PODS, pod)}/log"
        # A program may be silent for long; the connection is kept alive below.
        response = self._send("GET", path, query=query, is_stream=True, read_seconds=None)
        try:
            for line in _lines(response):
                yield line.decode(errors="replace")
        finally:
            response.close()

    def _events(
        self, resource: Resource, selector: str, version: str, ended: threading.Event
    ) -> Iterator[Object]:
        """Changes after a version.

        Raises:
            ApiError: the version has expired on the server, or the watch failed there.
        """
        path = self._path(resource)
        while not ended.is_set():
            query = [
                ("labelSelector", selector),
                ("watch", "true"),
                ("resourceVersion", version),
                # Versions without a change, so that ours does not expire while nothing changes.
                ("allowWatchBookmarks", "true"),
                ("timeoutSeconds", str(WATCH_SECONDS)),
            ]
            response = self._send(
                "GET",
                path,
                query=query,
                is_stream=True,
                # Later than the server's own end, so that silence alone is no error.
                read_seconds=WATCH_SECONDS + READ_SECONDS,
            )
            try:
                for line in _lines(response):
                    event = _parsed(f"GET {path}", line)
                    if event["type"] == "ERROR":  # 410: what happened since is forgotten
                        status = event["object"]
                        code, message = status.get("code", 0), str(status.get("message", ""))
                        raise ApiError(f"GET {path}", code, message)
                    version = event["object"]["metadata"]["resourceVersion"]
                    yield event
                    if ended.is_set():
                        return
            finally:
                response.close()
            # A proxy that does not stream ends each watch at once.
            ended.wait(self._persistence.first_pause_seconds)

    def _find(self, path: str) -> Object | None:
        try:
            return self._answer("GET", path)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return None
            raise

    def _listed(self, resource: Resource, selector: str) -> Object:
        return self._answer("GET", self._path(resource), query=[("labelSelector", selector)])

    def _path(self, resource: Resource, name: str = "") -> str:
        place = f"{resource.root}/namespaces/{self.namespace}/{resource.plural}"
        return f"{place}/{name}" if name else place

    def _answer(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Object | None = None,
        is_patient: bool = True,
    ) -> Object:
        """Return the server's answer; ask again after an error that passes."""
        begun = time.monotonic()
        deadline = begun + self._persistence.budget_seconds
        request = f"{method} {path}"
        refusals, next_log = 0, begun
        for pause in self._persistence.pauses():
            try:
                response = self._send(method, path, query=query, body=body)
                answer = _parsed(request, response.data)
                self._settling.answered(request)
                return answer
            except ApiError as error:
                refusals += error.status == UNAUTHORIZED
                now = time.monotonic()
                is_start = self._settling.refused(request, error, now - begun)
                passes = is_start or (error.passes and refusals < REFUSALS)
                rest = deadline - now
                if rest <= error.retry_after or not passes or not is_patient:
                    raise
                if now >= next_log:
                    next_log = now + LOG_EVERY_SECONDS
                    logger.warning("waiting for up to %.0f s more: %s", rest, error.problem)
                time.sleep(min(max(pause, error.retry_after), rest))
        raise AssertionError("the pauses never end")

    def _send(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: Object | None = None,
        is_stream: bool = False,
        read_seconds: float | None = READ_SECONDS,
    ) -> BaseHTTPResponse:
        """Send one request; the credentials are read for each, because tokens rotate."""
        headers = {"Accept": "application/json", "Content-Type": "application/json"}
        self._client.update_params_for_auth(headers, [], ["BearerToken"])
        url = self._configuration.host + path + (f"?{urlencode(query)}" if query else "")
        request = f"{method} {path}"
        try:
            response: BaseHTTPResponse = self._client.rest_client.pool_manager.request(
                method,
                url,
                headers=headers,
                body=json.dumps(body).encode() if body else None,
                preload_content=not is_stream,
                # `_answer` retries, which logs the wait and keeps to the budget.
                retries=False,
                timeout=Timeout(connect=CONNECT_SECONDS, read=read_seconds),
            )
            if response.status >= 400:
                raise _refused(request, response)
        except HTTPError as error:
            raise ApiError(request, 0, f"{type(error).__name__}: {error}") from error
        return response


def label_selector(labels: Mapping[str, str]) -> str:
    """Return the query for objects that have all these labels."""
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items()))


def _in_cluster(address: ClusterAddress) -> Configuration:
    def refresh(configuration: Configuration) -> None:
        token = Path(address.token_file).read_text().strip()
        configuration.api_key["authorization"] = f"Bearer {token}"

    configuration = Configuration(host=address.url)
    configuration.ssl_ca_cert = address.ca_file or None
    refresh(configuration)  # the client asks for a token only where there has been one
    configuration.refresh_api_key_hook = refresh
    return configuration


def _refused(request: str, response: BaseHTTPResponse) -> ApiError:
    """Return the error in an answer: a Status object, unless a proxy answered instead."""
    text = response.data.decode(errors="replace")
    try:
        message = str(json.loads(text).get("message", text))
    except (ValueError, AttributeError):
        message = text[:500]
    after = response.headers.get("Retry-After", "")
    return ApiError(request, response.status, message, float(after) if after.isdigit() else 0.0)


def _parsed(request: str, content: bytes) -> Object:
    """Return the object in an answer.

    Raises:
        ApiError: it is none, such as the page of a proxy: the server itself did not answer.
    """
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ApiError(request, 0, f"not a JSON object came back: it begins {content[:60]!r}")
    return found


def _lines(response: BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a stream as they arrive, without the last one if it was cut off."""
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from lines
