"""A Kubeflow Pipelines server for tests: real HTTP, the shapes of KFP's own OpenAPI description.

What it answers is checked key by key against the models that KFP generates from that description,
and it refuses requests with keys that they lack. Behaviour follows what was seen on a live 2.16.1:
names are unique, a terminated run ends FAILED behind CANCELING, a version must be named with its
pipeline, five-field cron expressions are taken without complaint. From KFP's sources: a run that
is being cancelled or is over cannot be terminated, and MySQL keeps 255 characters of a description.
"""

import json
import re
import threading
import urllib.parse
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import kfp_server_api as shapes
import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2

MUTATING = ("POST", "DELETE")


class RefusedError(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status, self.message = status, message


def shaped(kind, value):
    """The value, if its keys are those of KFP's model, all the way down."""
    unknown = set(value) - set(kind.attribute_map.values())
    if unknown:
        raise RefusedError(400, f"{kind.__name__} has no {sorted(unknown)}")
    names = {json_name: name for name, json_name in kind.attribute_map.items()}
    for key, item in value.items():
        inner = getattr(shapes, str(kind.openapi_types[names[key]]), None)
        if isinstance(item, dict) and hasattr(inner, "attribute_map"):
            shaped(inner, item)
    return value


class PipelineServer:
    """Holds pipelines, versions, experiments, recurring runs and runs."""

    def __init__(self):
        self.pipelines, self.versions, self.experiments = {}, {}, {}
        self.schedules, self.runs = {}, {}
        self.calls, self.headers = [], []
        self.token = None
        self.page_size = 2  # small, so that every listing has pages
        self.before = lambda number, call: None
        self.is_away = False
        self.away_answer = (503, "no healthy upstream")  # of a proxy
        self.fault = None  # (number of the mutating call, "refuse" | "drop after")
        self._clock = datetime(2026, 11, 1, tzinfo=UTC)
        self._numbers = 0
        self._lock = threading.RLock()

    # What tests ask

    @property
    def mutations(self):
        return [call for call in self.calls if call.split()[0] in MUTATING]

    def enabled(self, kind):
        return [
            item
            for item in self.schedules.values()
            if f"kind={kind}" in item["description"] and item["status"] == "ENABLED"
        ]

    def add_run(self, state, **values):
        run = {
            "run_id": self._new("run"),
            "display_name": "a run",
            "state": state,
            "created_at": self._now(),
            "state_history": [{"state": "PENDING"}, {"state": state}],
            **values,
        }
        self.runs[run["run_id"]] = shaped(shapes.V2beta1Run, run)
        return run["run_id"]

    # Routes

    def answer(self, method, path, query, body):
        for pattern, allowed, handle in self._routes():
            found = re.fullmatch(pattern, path)
            if found and method == allowed:
                return handle(*found.groups(), query=query, body=body)
        raise RefusedError(404, f"Not Found: {method} {path}")

    def _routes(self):
        root = "/apis/v2beta1"
        part = r"([^/:]+)"
        return [
            (f"{root}/pipelines", "GET", self._list_pipelines),
            (f"{root}/pipelines", "POST", self._create_pipeline),
            (f"{root}/pipelines/upload_version", "POST", self._upload_version),
            (f"{root}/pipelines/{part}/versions", "GET", self._list_versions),
            (f"{root}/pipelines/{part}/versions/{part}", "GET", self._get_version),
            (f"{root}/experiments", "GET", self._list_experiments),
            (f"{root}/experiments", "POST", self._create_experiment),
            (f"{root}/recurringruns", "GET", self._list_schedules),
            (f"{root}/recurringruns", "POST", self._create_schedule),
            (f"{root}/recurringruns/{part}:(enable|disable)", "POST", self._switch_schedule),
            (f"{root}/recurringruns/{part}", "DELETE", self._delete_schedule),
            (f"{root}/runs", "GET", self._list_runs),
            (f"{root}/runs", "POST", self._create_run),
            (f"{root}/runs/{part}:terminate", "POST", self._terminate),
            (f"{root}/runs/{part}", "GET", self._get_run),
        ]

    def _list_pipelines(self, query, body):
        found = self._named(self.pipelines, query)
        return self._page(shapes.V2beta1ListPipelinesResponse, "pipelines", found, query)

    def _create_pipeline(self, query, body):
        shaped(shapes.V2beta1Pipeline, body)
        self._free(self.pipelines, body["display_name"])
        return self._keep(self.pipelines, "pipeline_id", shapes.V2beta1Pipeline, body)

    def _list_versions(self, pipeline, query, body):
        here = {key: item for key, item in self.versions.items() if item["pipeline_id"] == pipeline}
        return self._page(
            shapes.V2beta1ListPipelineVersionsResponse, "pipeline_versions",
            self._named(here, query), query,
        )  # fmt: skip

    def _get_version(self, pipeline, version, query, body):
        return self._existing(self.versions, version)

    def _upload_version(self, query, body):
        pipeline = self._existing(self.pipelines, query["pipelineid"])["pipeline_id"]
        here = {key: item for key, item in self.versions.items() if item["pipeline_id"] == pipeline}
        self._free(here, query["name"])
        spec, platform = yaml.load_all(body, Loader=yaml.CSafeLoader)
        json_format.ParseDict(spec, pipeline_spec_pb2.PipelineSpec())
        json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
        version = {
            "pipeline_id": pipeline,
            "display_name": query["name"],
            "pipeline_spec": {"pipeline_spec": spec, "platform_spec": platform},
        }
        return self._keep(
            self.versions, "pipeline_version_id", shapes.V2beta1PipelineVersion, version
        )

    def _list_experiments(self, query, body):
        found = self._named(self.experiments, query)
        return self._page(shapes.V2beta1ListExperimentsResponse, "experiments", found, query)

    def _create_experiment(self, query, body):
        shaped(shapes.V2beta1Experiment, body)
        self._free(self.experiments, body["display_name"])
        return self._keep(self.experiments, "experiment_id", shapes.V2beta1Experiment, body)

    def _list_schedules(self, query, body):
        found = [
            item
            for item in self.schedules.values()
            if query.get("experiment_id") in (None, item["experiment_id"])
        ]
        return self._page(shapes.V2beta1ListRecurringRunsResponse, "recurring_runs", found, query)

    def _create_schedule(self, query, body):
        shaped(shapes.V2beta1RecurringRun, body)
        self._existing(self.experiments, body["experiment_id"])
        self._check_reference(body)
        body["status"] = "ENABLED" if body["mode"] == "ENABLE" else "DISABLED"
        return self._keep(self.schedules, "recurring_run_id", shapes.V2beta1RecurringRun, body)

    def _switch_schedule(self, schedule, how, query, body):
        item = self._existing(self.schedules, schedule)
        item["status"] = "ENABLED" if how == "enable" else "DISABLED"
        item["mode"] = how.upper()
        return {}

    def _delete_schedule(self, schedule, query, body):
        self._existing(self.schedules, schedule)
        for run in self.runs.values():
            if run.get("recurring_run_id") == schedule and run["state"] == "RUNNING":
                run["state"] = "FAILED"  # as servers before 2.16 do
        del self.schedules[schedule]
        return {}

    def _list_runs(self, query, body):
        found = [
            run
            for run in self.runs.values()
            if run["experiment_id"] == query["experiment_id"] and _matches(run, query)
        ]
        if query.get("sort_by") == "created_at desc":
            found.reverse()
        return self._page(shapes.V2beta1ListRunsResponse, "runs", found, query)

    def _create_run(self, query, body):
        shaped(shapes.V2beta1Run, body)
        self._check_reference(body)
        if len(body.get("description", "")) > 255:
            raise RefusedError(500, "Error 1406 (22001): Data too long for column 'Description'")
        body |= {"state": "PENDING", "state_history": [{"state": "PENDING"}]}
        return self._keep(self.runs, "run_id", shapes.V2beta1Run, body)

    def _get_run(self, run, query, body):
        return self._existing(self.runs, run)

    def _terminate(self, run, query, body):
        item = self._existing(self.runs, run)
        if item["state"] not in ("PENDING", "RUNNING", "PAUSED"):
            raise RefusedError(400, f"Failed to terminate a run {run}. Row not found")
        item["state_history"] += [{"state": "CANCELING"}, {"state": "FAILED"}]
        item["state"] = "FAILED"
        return {}

    # Shapes

    def _check_reference(self, body):
        reference = body["pipeline_version_reference"]
        if not (reference.get("pipeline_id") and reference.get("pipeline_version_id")):
            raise RefusedError(400, "Pipeline version reference needs both ids")
        self._existing(self.versions, reference["pipeline_version_id"])

    def _keep(self, where, key, kind, body):
        item = {**body, key: self._new(key), "created_at": self._now()}
        where[item[key]] = shaped(kind, item)
        return item

    def _existing(self, where, key):
        if key not in where:
            raise RefusedError(404, f"{key} not found")
        return where[key]

    def _free(self, where, name):
        if any(item["display_name"] == name for item in where.values()):
            raise RefusedError(409, f"Already exist error: the name {name} already exists")

    def _named(self, where, query):
        return [item for item in where.values() if _matches(item, query)]

    def _page(self, kind, name, items, query):
        # As KFP does it: a token names the last item of a page, so that a deletion skips nothing.
        after, backwards = query.get("page_token") or "", query.get("sort_by", "").endswith("desc")
        if after:
            items = [item for item in items if (item["created_at"] > after) != backwards]
            items = [item for item in items if item["created_at"] != after]
        size = min(int(query.get("page_size") or 10), self.page_size)
        page = {kind.attribute_map[name]: items[:size]}
        if len(items) > size:
            page[kind.attribute_map["next_page_token"]] = items[size - 1]["created_at"]
        return shaped(kind, page)

    def _new(self, kind):
        self._numbers += 1
        return f"{kind.removesuffix('_id')}-{self._numbers:04d}"

    def _now(self):
        self._clock += timedelta(seconds=1)
        return self._clock.isoformat().replace("+00:00", "Z")


def _matches(item, query):
    for predicate in json.loads(query.get("filter") or "{}").get("predicates", ()):
        shaped(shapes.V2beta1Predicate, predicate)
        value = item.get(predicate["key"])
        if predicate["operation"] == "EQUALS" and value != predicate["string_value"]:
            return False
        if predicate["operation"] == "IN" and value not in predicate["string_values"]["values"]:
            return False
    return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement

    def _handle(self):
        server = self.server.pipelines
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        path = urllib.parse.unquote(parts.path)
        with server._lock:
            number = len(server.mutations)
            call = f"{self.command} {path}"
            server.before(number, call)
            server.calls.append(call)
            server.headers.append(dict(self.headers))
            faulty = self.command in MUTATING and server.fault and server.fault[0] == number
            how = server.fault[1] if faulty else ""
            try:
                if server.is_away:
                    raise RefusedError(*server.away_answer)
                if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
                    raise RefusedError(401, "Unauthenticated")
                if how == "refuse":
                    raise RefusedError(500, "the database is away")
                answer = server.answer(self.command, path, query, self._body(raw))
                status = 200
            except RefusedError as refused:
                status, answer = (
                    refused.status,
                    {"error": refused.message, "message": refused.message, "code": 13},
                )
        if how == "drop after":
            self.close_connection = True
            self.connection.close()
            return
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _body(self, raw):
        kind = self.headers.get("Content-Type", "")
        if kind.startswith("multipart/"):
            boundary = re.search(r"boundary=(.+)", kind)[1].encode()
            (file,) = [part for part in raw.split(b"--" + boundary) if b"uploadfile" in part]
            return file.partition(b"\r\n\r\n")[2].rstrip(b"\r\n").decode()
        return json.loads(raw) if raw else {}

    do_GET = do_POST = do_DELETE = _handle  # noqa: N815 - the standard library's names

    def log_message(self, *args):
        pass


@contextmanager
def pipeline_server():
    """A server on a free port; yields it and its address."""
    http = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    http.daemon_threads = True
    http.pipelines = PipelineServer()
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield http.pipelines, f"http://127.0.0.1:{http.server_port}"
    finally:
        http.shutdown()
        thread.join()
        http.server_close()
