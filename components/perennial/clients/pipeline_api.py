"""Pipeline API: the only client of a Kubeflow Pipelines server, by its REST API.

`kfp.Client` is not used: it prints links, reads a file in the user's home, and cannot be imported
inside a component. The client that KFP generates takes what is not JSON for an empty answer.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

from perennial.contracts.errors import PerennialError

EPOCH = datetime.fromtimestamp(0, UTC)
Object = dict[str, Any]  # as the server sends it
CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
PAGE_SIZE = 100
LONGEST_WAIT_SECONDS = 30  # a server that is busy may ask for hours
LONGEST_DESCRIPTION = 255  # characters of the column in MySQL; a longer one fails the creation
REDIRECTS = range(300, 400)
SUCCESS, CONFLICT, NOT_FOUND = range(200, 300), 409, 404
SERVER_ERRORS = range(500, 600)
# Repeated for seconds: a proxy's, or the server's own when it is busy.
TRANSIENT = (429, 502, 503, 504)
HINTS: Mapping[int, str] = {
    400: "the server refuses the request; its version may be too old (2.16 and newer are tested)",
    401: "the credentials are missing or expired: check [auth] of the profile",
    403: "the account may not do this in the namespace: check the role bindings in k8s/",
    404: "check `pipelines_url` of the profile: it ends where /apis/v2beta1 begins",
}
LOGIN = (
    "a login page answers like this: check [auth] of the profile, whose credentials may have "
    "expired, and at `pipelines_url`, which ends where /apis/v2beta1 begins"
)


class TakenError(Exception):
    """Something of this name exists already; whoever wants it there can go on."""


class UnreachableError(PerennialError):
    """The server did not answer, failed, or asked to retry later; another try may succeed."""


class GoneError(PerennialError):
    """The requested object does not exist on the server."""


@dataclass(frozen=True)
class PipelineVersion:
    """One immutable compiled pipeline on the server."""

    pipeline_id: str
    version_id: str


@dataclass(frozen=True)
class Schedule:
    """A recurring run."""

    schedule_id: str
    name: str
    description: str
    enabled: bool
    cron: str
    created_at: datetime
    parameters: Mapping[str, str] = field(default_factory=dict)
    experiment_id: str = ""

    @property
    def age(self) -> tuple[datetime, str]:
        """Orders schedules by their creation, equal for every reader."""
        return self.created_at, self.schedule_id


@dataclass(frozen=True)
class PipelineRun:
    """One run on the server."""

    run_id: str
    name: str
    state: str
    history: tuple[str, ...]
    created_at: datetime
    finished_at: datetime | None
    schedule_id: str
    pipeline_id: str
    tasks: Mapping[str, str]
    """Task → state, as the dashboard shows them; empty in a list of runs."""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will happen any more."""
        return self.state in ("SUCCEEDED", "FAILED", "SKIPPED", "CANCELED", "ERROR")

    @property
    def was_canceled(self) -> bool:
        """Whether somebody terminated it.

        A terminated run ends in state FAILED on current servers (measured on 2.16.1); only its
        history tells it from one that failed by itself.
        """
        return self.state in ("CANCELING", "CANCELED") or "CANCELING" in self.history

    @property
    def outcome(self) -> str:
        """Its state in a word that people use."""
        if self.was_canceled:
            return "cancelled" if self.is_over else "being cancelled"
        return self.state.lower()


@dataclass(frozen=True)
class NewRun:
    """Request to start a run."""

    name: str
    version: PipelineVersion
    parameters: Mapping[str, str]
    service_account: str = ""
    pipeline_root: str = ""
    description: str = ""

    def body(self, experiment_id: str, description: str) -> Object:
        """Return the fields of a request that runs and recurring runs have in common."""
        return {
            "experiment_id": experiment_id,
            "display_name": self.name,
            "description": description,
            # Both ids are needed, against the description of the API.
            "pipeline_version_reference": {
                "pipeline_id": self.version.pipeline_id,
                "pipeline_version_id": self.version.version_id,
            },
            "runtime_config": {
                "parameters": dict(self.parameters),
                **({"pipeline_root": self.pipeline_root} if self.pipeline_root else {}),
            },
            **({"service_account": self.service_account} if self.service_account else {}),
        }


@dataclass(frozen=True)
class NewSchedule(NewRun):
    """Request to create a recurring run."""

    cron: str = ""
    """Six fields: seconds, minutes, hours, day of the month, month, day of the week; UTC."""
    enabled: bool = True
    starts_at: datetime | None = None
    """No run begins before."""


class PipelineApi:
    """Pipelines, versions, schedules and runs on one server.

    Reading is tried again when the connection drops or the server is busy. Creating is not: a
    deployment looks again at what exists and goes on from there.

    Args:
        url: Where /apis/v2beta1 lies below.
        namespace: Of the runs, in multi-user installations, where objects belong to namespaces.
        token: Gives the bearer token of the next request; called for each, since projected tokens
            rotate. None sends none.
        cookie: Of a session behind an authentication proxy.
        ca_file: Certificates to trust; empty for the usual ones.

    Raises:
        PerennialError: by every method, when the server cannot be reached or refuses.
    """

    def __init__(
        self,
        url: str,
        namespace: str | None = None,
        *,
        token: Callable[[], str] | None = None,
        cookie: str = "",
        ca_file: str = "",
    ) -> None:
        self.url = url.rstrip("/")
        self._namespace = {"namespace": namespace} if namespace else {}
        self._token = token
        self._session = requests.Session()
        self._session.trust_env = False  # proxies and .netrc are not meant for this server
        self._session.verify = ca_file or True
        if cookie:
            self._session.headers["Cookie"] = cookie
        retry = Retry(
            total=4,
            redirect=False,
            backoff_factor=0.5,
            retry_after_max=LONGEST_WAIT_SECONDS,
            status_forcelist=TRANSIENT,
            # A repeated DELETE finds nothing, which `delete_schedule` accepts.
            allowed_methods=("GET", "DELETE"),
            # The last answer is returned: `_refused` reports the server's own message.
            raise_on_status=False,
        )
        self._session.mount("http://", HTTPAdapter(max_retries=retry))
        self._session.mount("https://", HTTPAdapter(max_retries=retry))

    def find_pipeline(self, name: str) -> str | None:
        """Return a pipeline's id."""
        found = self._find("a pipeline", "pipelines", "pipelines", name, **self._namespace)
        return found["pipeline_id"] if found else None

    def find_version(self, pipeline_id: str, name: str) -> PipelineVersion | None:
        """Return a version of a pipeline by its name."""
        path = f"pipelines/{pipeline_id}/versions"
        found = self._find("a pipeline version", path, "pipeline_versions", name)
        return PipelineVersion(pipeline_id, found["pipeline_version_id"]) if found else None

    def find_experiment(self, name: str) -> str | None:
        """Return an experiment's id."""
        found = self._find("an experiment", "experiments", "experiments", name, **self._namespace)
        return found["experiment_id"] if found else None

    def version_documents(self, version: PipelineVersion) -> list[Object]:
        """Return a version's pipeline and platform specification; empty when it was deleted."""
        path = f"pipelines/{version.pipeline_id}/versions/{version.version_id}"
        try:
            found = self._ask("look up a pipeline version", "GET", path)
        except GoneError:
            return []
        spec = found.get("pipeline_spec") or {}
        if "pipeline_spec" not in spec:
            return [spec]
        return [spec["pipeline_spec"], spec.get("platform_spec") or {}]

    def create_pipeline(self, name: str, description: str) -> None:
        """Create a pipeline without versions.

        Raises:
            TakenError: it exists.
        """
        body = {"display_name": name, "name": name, "description": description, **self._namespace}
        self._ask("create a pipeline", "POST", "pipelines", json=body)

    def upload_version(self, pipeline_id: str, name: str, package: str) -> None:
        """Upload a compiled pipeline, a YAML text, as a version of a pipeline.

        Raises:
            TakenError: a version of this name exists.
        """
        self._ask(
            "upload a pipeline version",
            "POST",
            "pipelines/upload_version",
            params={"pipelineid": pipeline_id, "name": name},
            files={"uploadfile": ("pipeline.yaml", package.encode())},
        )

    def create_experiment(self, name: str, description: str) -> None:
        """Create an experiment: the folder of a model's runs in the dashboard.

        Raises:
            TakenError: it exists.
        """
        body = {"display_name": name, "description": description, **self._namespace}
        self._ask("create an experiment", "POST", "experiments", json=body)

    def schedules(self, experiment_id: str = "") -> list[Schedule]:
        """Return the recurring runs of an experiment, or of all there are, oldest first."""
        where = {"experiment_id": experiment_id} if experiment_id else self._namespace
        # By creation, so that whatever is created while pages are read lies on a later one.
        order = "created_at asc"
        pages = self._pages("recurringruns", "recurringRuns", sort_by=order, **where)
        return sorted(map(_read_schedule, pages), key=lambda schedule: schedule.age)

    def create_schedule(self, experiment_id: str, new: NewSchedule) -> str:
        """Create a recurring run; its id."""
        starts_at = {"start_time": new.starts_at.isoformat()} if new.starts_at else {}
        body = {
            **new.body(experiment_id, new.description),
            "mode": "ENABLE" if new.enabled else "DISABLE",
            "trigger": {"cron_schedule": {"cron": new.cron, **starts_at}},
            # A pipeline finds its own data window; a backlog of slots would train the same twice.
            "no_catchup": True,
            "max_concurrency": "1",
        }
        created = self._ask("create a recurring run", "POST", "recurringruns", json=body)
        return str(created["recurring_run_id"])

    def set_enabled(self, schedule_id: str, *, enabled: bool) -> None:
        """Let a recurring run start runs, or not; runs that it started go on."""
        verb = "enable" if enabled else "disable"
        self._ask("switch a recurring run", "POST", f"recurringruns/{schedule_id}:{verb}")

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a recurring run, leaving its runs; one that is gone already is fine."""
        # Servers before 2.16 ignore the policy and delete running runs: see `deployment.plan`.
        policy = {"propagation_policy": "ORPHAN"}
        with suppress(GoneError):
            path = f"recurringruns/{schedule_id}"
            self._ask("delete a recurring run", "DELETE", path, params=policy)

    def start_run(self, experiment_id: str, new: NewRun) -> str:
        """Start a run; its id."""
        text = new.description
        if len(text) > LONGEST_DESCRIPTION:
            text = f"{text[: LONGEST_DESCRIPTION - 1]}…"
        created = self._ask("start a run", "POST", "runs", json=new.body(experiment_id, text))
        return str(created["run_id"])

    def runs(self, experiment_id: str, *, limit: int = 20) -> list[PipelineRun]:
        """Return the newest runs of an experiment, newest first."""
        order = "created_at desc"
        pages = self._pages("runs", "runs", experiment_id=experiment_id, sort_by=order)
        return [_read_run(item) for item, _ in zip(pages, range(limit), strict=False)]

    def unfinished_runs(self, experiment_id: str) -> list[PipelineRun]:
        """Return every run of an experiment that is not over."""
        states = {"values": ["PENDING", "RUNNING", "CANCELING", "PAUSED"]}
        query = _filter(operation="IN", key="state", string_values=states)
        pages = self._pages("runs", "runs", experiment_id=experiment_id, filter=query)
        return [run for item in pages if not (run := _read_run(item)).is_over]

    def find_run(self, experiment_id: str, name: str) -> str | None:
        """Return the id of an experiment's run by its name."""
        found = self._find("a run", "runs", "runs", name, experiment_id=experiment_id)
        return found["run_id"] if found else None

    def run(self, run_id: str) -> PipelineRun:
        """Return one run with its tasks."""
        try:
            return _read_run(self._ask("look up a run", "GET", f"runs/{run_id}"))
        except GoneError as error:
            raise GoneError(
                f"there is no run {run_id!r}",
                evidence=error.evidence,
                action="`perennial runs --profile PROFILE` lists them",
            ) from error

    def terminate(self, run_id: str) -> None:
        """Ask for a run's end; see `PipelineRun.was_canceled` for how that shows."""
        self._ask("terminate a run", "POST", f"runs/{run_id}:terminate")

    def _find(self, what: str, path: str, items: str, name: str, **query: str) -> Object | None:
        query["filter"] = _filter(operation="EQUALS", key="display_name", string_value=name)
        found = self._ask(f"look for {what}", "GET", path, params=query).get(items)
        return found[0] if found else None

    def _pages(self, path: str, items: str, **query: str) -> Iterator[Object]:
        token, seen = "", set[str]()
        while token not in seen:
            seen.add(token)
            options = {**query, "page_token": token, "page_size": PAGE_SIZE}
            page = self._ask(f"list the {path}", "GET", path, params=options)
            yield from page.get(items) or ()
            token = page.get("next_page_token") or ""
            if not token:
                return
        raise _foreign(
            f"list the {path}", self.url, f"page {len(seen)} leads back to an earlier one"
        )

    def _ask(self, doing: str, method: str, path: str, **options: object) -> Object:
        # Read for each request: projected tokens rotate.
        headers = {"Authorization": f"Bearer {self._token()}"} if self._token else {}
        try:
            answer = self._session.request(
                method,
                f"{self.url}/apis/v2beta1/{path}",
                headers=headers,
                timeout=(CONNECT_SECONDS, READ_SECONDS),
                # To a login page, whose 200 would not be an answer.
                allow_redirects=False,
                **options,
            )
        except requests.RequestException as error:
            raise UnreachableError(
                f"the pipeline server cannot be reached to {doing}",
                evidence=f"{self.url}: {error}",
                action="check `pipelines_url` and `ca_file` of the profile, and the network",
            ) from error
        if answer.status_code == CONFLICT:
            raise TakenError(doing)
        if answer.status_code not in SUCCESS:
            raise _refused(doing, self.url, answer)
        try:
            found = answer.json()
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise _foreign(doing, self.url, f"it sends {answer.text[:60]!r}")
        return found


def _foreign(doing: str, url: str, why: str) -> PerennialError:
    return PerennialError(
        f"the answer is not from a pipeline server (request: {doing})",
        evidence=f"{url}: {why}",
        action=LOGIN,
    )


def _refused(doing: str, url: str, answer: requests.Response) -> PerennialError:
    status, message = answer.status_code, answer.text
    with suppress(ValueError, KeyError, TypeError):
        message = str(answer.json()["message"])
    kinds = {NOT_FOUND: GoneError, **dict.fromkeys((*TRANSIENT, *SERVER_ERRORS), UnreachableError)}
    usual = LOGIN if status in REDIRECTS else "see the log of the deployment ml-pipeline"
    return kinds.get(status, PerennialError)(
        f"the pipeline server refuses to {doing}",
        evidence=f"{url}: {status} {answer.reason}: {message[:500]}",
        action=HINTS.get(status, usual),
    )


def _filter(**predicate: object) -> str:
    return json.dumps({"predicates": [predicate]})


def _read_schedule(item: Object) -> Schedule:
    cron = (item.get("trigger") or {}).get("cron_schedule") or {}
    parameters = (item.get("runtime_config") or {}).get("parameters") or {}
    return Schedule(
        schedule_id=item["recurring_run_id"],
        name=item.get("display_name", ""),
        description=item.get("description", ""),
        enabled=item.get("status") == "ENABLED" or item.get("mode") == "ENABLE",
        cron=cron.get("cron", ""),
        created_at=_moment(item, "created_at"),
        parameters={key: str(value) for key, value in parameters.items()},
        experiment_id=item.get("experiment_id", ""),
    )


def _read_run(item: Object) -> PipelineRun:
    finished_at = _moment(item, "finished_at")
    tasks = (item.get("run_details") or {}).get("task_details") or ()
    return PipelineRun(
        run_id=item["run_id"],
        name=item.get("display_name", ""),
        state=item.get("state") or "PENDING",
        history=tuple(each["state"] for each in item.get("state_history", ()) if "state" in each),
        created_at=_moment(item, "created_at"),
        # An unfinished run's end comes as the epoch.
        finished_at=finished_at if finished_at > EPOCH else None,
        schedule_id=item.get("recurring_run_id", ""),
        pipeline_id=(item.get("pipeline_version_reference") or {}).get("pipeline_id", ""),
        tasks={task.get("display_name", ""): task.get("state", "") for task in tasks},
    )


def _moment(item: Object, name: str) -> datetime:
    """Return a time of an object; the epoch where it has none."""
    return datetime.fromisoformat(item[name]) if item.get(name) else EPOCH
