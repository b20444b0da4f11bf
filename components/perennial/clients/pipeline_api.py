"""Pipeline API: the only client of a Kubeflow Pipelines server.

Stands on the client that KFP generates from its OpenAPI description, not on `kfp.Client`: that one
prints links, reads a file in the user's home, and cannot be imported inside a component.
"""

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import kfp_server_api
import urllib3
from urllib3.util.retry import Retry

from perennial.contracts.errors import PerennialError

EPOCH = datetime.fromtimestamp(0, UTC)
CONNECT_SECONDS, READ_SECONDS = 10.0, 60.0
PAGE_SIZE = 100
LONGEST_WAIT_SECONDS = 30  # a server that is busy may ask for hours
LONGEST_DESCRIPTION = 255  # characters of the column in MySQL; a longer one fails the creation
REDIRECTS = range(300, 400)
CONFLICT, NOT_FOUND = 409, 404
BUSY = (429, 502, 503, 504)
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
    """The server did not answer, or asked to retry later; the request may be repeated."""


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

    def fields(self) -> dict[str, object]:
        """Return the fields that runs and recurring runs have in common."""
        return {
            "display_name": self.name,
            "service_account": self.service_account or None,
            # Both ids are needed, against the description of the API.
            "pipeline_version_reference": kfp_server_api.V2beta1PipelineVersionReference(
                pipeline_id=self.version.pipeline_id, pipeline_version_id=self.version.version_id
            ),
            "runtime_config": kfp_server_api.V2beta1RuntimeConfig(
                parameters=dict(self.parameters), pipeline_root=self.pipeline_root or None
            ),
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
        configuration = kfp_server_api.Configuration(host=url.rstrip("/"))
        configuration.retries = Retry(
            total=4,
            redirect=False,  # followed to a login page, whose 200 would read as an empty answer
            backoff_factor=0.5,
            retry_after_max=LONGEST_WAIT_SECONDS,
            status_forcelist=BUSY,
            allowed_methods=("GET", "DELETE"),
            raise_on_status=False,
        )
        if ca_file:
            configuration.ssl_ca_cert = ca_file
        if token is not None:
            configuration.api_key["authorization"] = ""  # without any, the hook is never asked
            configuration.api_key_prefix["authorization"] = "Bearer"
            configuration.refresh_api_key_hook = _token_hook(token)
        client = kfp_server_api.ApiClient(configuration, cookie=cookie or None)
        self._client = client
        self.url = url
        self._namespace = namespace
        self._pipelines = kfp_server_api.PipelineServiceApi(client)
        self._uploads = kfp_server_api.PipelineUploadServiceApi(client)
        self._experiments = kfp_server_api.ExperimentServiceApi(client)
        self._schedules = kfp_server_api.RecurringRunServiceApi(client)
        self._runs = kfp_server_api.RunServiceApi(client)

    def find_pipeline(self, name: str) -> str | None:
        """A pipeline's id."""
        call = self._pipelines.pipeline_service_list_pipelines
        found = self._find("a pipeline", call, name, namespace=self._namespace)
        return found.pipelines[0].pipeline_id if found.pipelines else None

    def find_version(self, pipeline_id: str, name: str) -> PipelineVersion | None:
        """A version of a pipeline by its name."""
        call = self._pipelines.pipeline_service_list_pipeline_versions
        found = self._find("a pipeline version", call, name, pipeline_id=pipeline_id)
        if not found.pipeline_versions:
            return None
        return PipelineVersion(pipeline_id, found.pipeline_versions[0].pipeline_version_id)

    def find_experiment(self, name: str) -> str | None:
        """An experiment's id."""
        call = self._experiments.experiment_service_list_experiments
        found = self._find("an experiment", call, name, namespace=self._namespace)
        return found.experiments[0].experiment_id if found.experiments else None

    def version_documents(self, version: PipelineVersion) -> list[dict[str, Any]]:
        """A version's pipeline and platform specification; empty when it was deleted."""
        call = self._pipelines.pipeline_service_get_pipeline_version
        try:
            found = self._ask(
                "look up a pipeline version", call, version.pipeline_id, version.version_id
            )
        except GoneError:
            return []
        spec = found.pipeline_spec or {}
        if "pipeline_spec" not in spec:
            return [spec]
        return [spec["pipeline_spec"], spec.get("platform_spec") or {}]

    def create_pipeline(self, name: str, description: str) -> None:
        """Create a pipeline without versions.

        Raises:
            TakenError: it exists.
        """
        pipeline = kfp_server_api.V2beta1Pipeline(
            display_name=name, name=name, description=description, namespace=self._namespace
        )
        self._ask(
            "create a pipeline", self._pipelines.pipeline_service_create_pipeline, pipeline=pipeline
        )

    def upload_version(self, pipeline_id: str, name: str, package: str) -> None:
        """Upload a compiled pipeline, a YAML text, as a version of a pipeline.

        Raises:
            TakenError: a version of this name exists.
        """
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pipeline.yaml"
            file.write_text(package)
            self._ask(
                "upload a pipeline version", self._uploads.upload_pipeline_version, str(file),
                pipelineid=pipeline_id, name=name,
            )  # fmt: skip

    def create_experiment(self, name: str, description: str) -> None:
        """Create an experiment: the folder of a model's runs in the dashboard.

        Raises:
            TakenError: it exists.
        """
        experiment = kfp_server_api.V2beta1Experiment(
            display_name=name, description=description, namespace=self._namespace
        )
        create = self._experiments.experiment_service_create_experiment
        self._ask("create an experiment", create, experiment=experiment)

    def schedules(self, experiment_id: str = "") -> list[Schedule]:
        """The recurring runs of an experiment, or of all there are, oldest first."""
        pages = self._pages(
            "list the recurring runs",
            self._schedules.recurring_run_service_list_recurring_runs,
            "recurring_runs",
            experiment_id=experiment_id or None,
            namespace=None if experiment_id else self._namespace,
            # So that whatever is created while pages are read lies on a later one.
            sort_by="created_at asc",
        )
        return sorted(map(_read_schedule, pages), key=lambda schedule: schedule.age)

    def create_schedule(self, experiment_id: str, new: NewSchedule) -> str:
        """Create a recurring run; its id."""
        modes = kfp_server_api.RecurringRunMode
        cron = kfp_server_api.V2beta1CronSchedule(cron=new.cron, start_time=new.starts_at)
        body = kfp_server_api.V2beta1RecurringRun(
            experiment_id=experiment_id,
            description=new.description,
            mode=modes.ENABLE if new.enabled else modes.DISABLE,
            trigger=kfp_server_api.V2beta1Trigger(cron_schedule=cron),
            # A pipeline finds its own data window; a backlog of slots would train the same twice.
            no_catchup=True,
            max_concurrency="1",
            **new.fields(),
        )
        create = self._schedules.recurring_run_service_create_recurring_run
        return str(self._ask("create a recurring run", create, body).recurring_run_id)

    def set_enabled(self, schedule_id: str, *, enabled: bool) -> None:
        """Let a recurring run start runs, or not; runs that it started go on."""
        service = self._schedules
        if enabled:
            call = service.recurring_run_service_enable_recurring_run
        else:
            call = service.recurring_run_service_disable_recurring_run
        self._ask("switch a recurring run", call, schedule_id)

    def delete_schedule(self, schedule_id: str) -> None:
        """Delete a recurring run, leaving its runs; one that is gone already is fine."""
        with suppress(GoneError):
            self._ask(
                "delete a recurring run",
                self._schedules.recurring_run_service_delete_recurring_run,
                schedule_id,
                # Servers before 2.16 ignore it and delete running runs: see `deployment.plan`.
                propagation_policy=kfp_server_api.V2beta1DeletePropagationPolicy.ORPHAN,
            )

    def start_run(self, experiment_id: str, new: NewRun) -> str:
        """Start a run; its id."""
        text = new.description
        if len(text) > LONGEST_DESCRIPTION:
            text = f"{text[: LONGEST_DESCRIPTION - 1]}…"
        body = kfp_server_api.V2beta1Run(
            experiment_id=experiment_id, description=text, **new.fields()
        )
        return str(self._ask("start a run", self._runs.run_service_create_run, body).run_id)

    def runs(self, experiment_id: str, *, limit: int = 20) -> list[PipelineRun]:
        """The newest runs of an experiment, newest first."""
        pages = self._pages(
            "list the runs", self._runs.run_service_list_runs, "runs",
            experiment_id=experiment_id, sort_by="created_at desc",
        )  # fmt: skip
        return [_read_run(item) for item, _ in zip(pages, range(limit), strict=False)]

    def unfinished_runs(self, experiment_id: str) -> list[PipelineRun]:
        """Every run of an experiment that is not over."""
        states = {"values": ["PENDING", "RUNNING", "CANCELING", "PAUSED"]}
        pages = self._pages(
            "list the runs", self._runs.run_service_list_runs, "runs", experiment_id=experiment_id,
            filter=_filter(operation="IN", key="state", string_values=states),
        )  # fmt: skip
        return [run for item in pages if not (run := _read_run(item)).is_over]

    def run(self, run_id: str) -> PipelineRun:
        """One run with its tasks."""
        return _read_run(self._ask("look up a run", self._runs.run_service_get_run, run_id))

    def terminate(self, run_id: str) -> None:
        """Ask for a run's end; see `PipelineRun.was_canceled` for how that shows."""
        self._ask("terminate a run", self._runs.run_service_terminate_run, run_id)

    def _find(  # type: ignore[no-untyped-def]  # noqa: ANN202 - the generated client is untyped
        self, what: str, call: Callable[..., Any], name: str, **options: object
    ):
        query = _filter(operation="EQUALS", key="display_name", string_value=name)
        return self._ask(f"look for {what}", call, filter=query, **options)

    def _pages(
        self, doing: str, call: Callable[..., Any], items: str, **options: object
    ) -> Iterator[Any]:
        token = ""
        while True:
            page = self._ask(doing, call, page_token=token, page_size=PAGE_SIZE, **options)
            yield from getattr(page, items) or ()
            token = page.next_page_token or ""
            if not token:
                return

    def _ask(  # type: ignore[no-untyped-def]  # noqa: ANN202 - the generated client is untyped
        self, doing: str, call: Callable[..., Any], *args: object, **options: object
    ):
        given = {key: value for key, value in options.items() if value is not None}
        with _explained(doing, self.url):
            answer = call(*args, _request_timeout=(CONNECT_SECONDS, READ_SECONDS), **given)
        # The generated client turns what is not JSON into an empty answer.
        text = str(self._client.last_response.data)
        if not text.lstrip().startswith("{"):
            raise PerennialError(
                f"the answer is not from a pipeline server (request: {doing})",
                evidence=f"{self.url} sends {text[:60]!r}",
                action=LOGIN,
            )
        return answer


def _token_hook(token: Callable[[], str]) -> Callable[[kfp_server_api.Configuration], None]:
    def refresh(configuration: kfp_server_api.Configuration) -> None:
        configuration.api_key["authorization"] = token()

    return refresh


@contextmanager
def _explained(doing: str, url: str) -> Iterator[None]:
    try:
        yield
    except kfp_server_api.ApiException as error:
        if error.status == CONFLICT:
            raise TakenError(doing) from error
        raise _refused(doing, url, error) from error
    except urllib3.exceptions.HTTPError as error:
        raise UnreachableError(
            f"the pipeline server cannot be reached to {doing}",
            evidence=f"{url}: {error}",
            action="check `pipelines_url` and `ca_file` of the profile, and the network",
        ) from error


def _refused(doing: str, url: str, error: kfp_server_api.ApiException) -> PerennialError:
    kinds = {NOT_FOUND: GoneError, **dict.fromkeys(BUSY, UnreachableError)}
    kind = kinds.get(error.status or 0, PerennialError)
    usual = LOGIN if error.status in REDIRECTS else "see the log of the deployment ml-pipeline"
    return kind(
        f"the pipeline server refuses to {doing}",
        evidence=f"{url}: {error.status} {error.reason}: {_message(error.body)}",
        action=HINTS.get(error.status or 0, usual),
    )


def _message(body: str | bytes | None) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else body or ""
    try:
        return str(json.loads(text)["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return text[:500]


def _filter(**predicate: object) -> str:
    return json.dumps({"predicates": [predicate]})


def _read_schedule(item: kfp_server_api.V2beta1RecurringRun) -> Schedule:
    trigger, config = item.trigger, item.runtime_config
    parameters = (config.parameters if config else None) or {}
    return Schedule(
        schedule_id=item.recurring_run_id,
        name=item.display_name or "",
        description=item.description or "",
        enabled=item.status == "ENABLED" or item.mode == "ENABLE",
        cron=trigger.cron_schedule.cron if trigger and trigger.cron_schedule else "",
        created_at=item.created_at or EPOCH,
        parameters={key: str(value) for key, value in parameters.items()},
        experiment_id=item.experiment_id or "",
    )


def _read_run(item: kfp_server_api.V2beta1Run) -> PipelineRun:
    reference, details = item.pipeline_version_reference, item.run_details
    return PipelineRun(
        run_id=item.run_id,
        name=item.display_name or "",
        state=item.state or "PENDING",
        history=tuple(entry.state for entry in item.state_history or () if entry.state),
        created_at=item.created_at or EPOCH,
        # An unfinished run's end comes as the epoch.
        finished_at=item.finished_at if (item.finished_at or EPOCH) > EPOCH else None,
        schedule_id=item.recurring_run_id or "",
        pipeline_id=(reference.pipeline_id if reference else "") or "",
        tasks={
            task.display_name or "": task.state or ""
            for task in (details.task_details if details else None) or ()
        },
    )
