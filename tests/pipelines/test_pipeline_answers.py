"""What a pipeline server would not answer is never read as its answer, nor asked of it."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from deployments import contract, profile
from perennial.cli import main
from perennial.clients.pipeline_api import PipelineApi
from perennial.contracts.errors import PerennialError
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.operations import TargetCluster, cancel, start_deployed, undeploy
from perennial.deployment.plan import apply
from perennial.deployment.run_request import RunRequest
from pipeline_server import pipeline_server

PAGE = b"<!doctype html><title>Log in</title>"


class Gateway(BaseHTTPRequestHandler):
    """What stands before a server whose session has ended: a page, or the way to one."""

    def answer(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.server.redirects and self.path != "/login":
            self.send_response(302)
            self.send_header("Location", "/login?state=a-secret-word")
            body = b""
        else:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            body = PAGE
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = answer  # noqa: N815 - the standard library's names

    def log_message(self, *args):
        pass


@contextmanager
def gateway(*, redirects):
    http = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    http.redirects = redirects
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield PipelineApi(f"http://127.0.0.1:{http.server_port}")
    finally:
        http.shutdown()
        thread.join()
        http.server_close()


@pytest.mark.parametrize("redirects", [True, False], ids=["redirected", "a page"])
@pytest.mark.parametrize(
    "ask",
    [
        lambda api: api.find_experiment("flights"),
        lambda api: api.create_experiment("flights", "a model"),
        lambda api: api.schedules("experiment-1"),
        lambda api: api.run("run-1"),
        lambda api: api.terminate("run-1"),
        lambda api: api.delete_schedule("recurring-run-1"),
    ],
    ids=["find", "create", "list", "get", "terminate", "delete"],
)
def test_a_login_page_is_no_empty_answer(redirects, ask):
    with (
        gateway(redirects=redirects) as api,
        pytest.raises(PerennialError, match="login page") as caught,
    ):
        ask(api)
    assert "a-secret-word" not in str(caught.value)


@pytest.fixture
def deployed():
    with pipeline_server() as (server, url):
        where = profile(url)
        target = TargetCluster(where, connect(where))
        list(apply(target.api, desire(contract(), where)))
        yield server, target


def test_long_evidence_starts_a_run_although_descriptions_are_short(deployed):
    server, target = deployed
    evidence = '{"files": "' + "a" * 500 + '"}'
    run = server.runs[start_deployed(target, "flights-late", RunRequest("training", "n", evidence))]
    assert run["description"].endswith("…")
    assert "a" * 500 in run["runtime_config"]["parameters"]["trigger"]


def test_a_run_that_is_being_cancelled_is_not_cancelled_again(deployed):
    server, target = deployed
    ((schedule, item),) = server.schedules.items()
    run = server.add_run(
        "CANCELING", recurring_run_id=schedule, experiment_id=item["experiment_id"]
    )
    assert cancel(target, run)
    printed = list(undeploy(target, "flights-late", cancel_running=True))
    assert not [line for line in printed if line.startswith("cancelled")]
    assert not [call for call in server.calls if call.endswith(":terminate")]
    server.runs[run]["state"] = "FAILED"
    assert not cancel(target, run)


def test_a_run_that_ends_before_it_is_cancelled_stops_no_undeployment(deployed):
    server, target = deployed
    ((schedule, item),) = server.schedules.items()
    run = server.add_run("RUNNING", recurring_run_id=schedule, experiment_id=item["experiment_id"])

    def end(number, call):
        if call.endswith(":terminate"):
            server.runs[run]["state"] = "SUCCEEDED"

    server.before = end
    list(undeploy(target, "flights-late", cancel_running=True))
    assert "kept the disabled" not in " ".join(
        undeploy(target, "flights-late", cancel_running=True)
    )
    assert server.schedules == {}


def test_a_refusal_to_cancel_a_run_that_goes_on_is_an_error(deployed):
    server, target = deployed
    run = server.add_run("RUNNING", experiment_id=next(iter(server.experiments)))
    server.fault = (len(server.mutations), "refuse")
    with pytest.raises(PerennialError, match="refuses to terminate"):
        cancel(target, run)


@pytest.mark.parametrize(
    ("verb", "message"),
    [("trigger", "goes on, and `perennial cancel` ends it"), ("deploy", "stopped\n")],
)
def test_an_interrupted_command_reports_what_becomes_of_the_run(monkeypatch, capsys, verb, message):
    def interrupted(options):
        raise KeyboardInterrupt

    monkeypatch.setattr("perennial.deployment.verbs.connect_to", interrupted)
    arguments = {"trigger": ["--reason", "x", "flights"], "deploy": ["contract.toml"]}[verb]
    assert main([verb, "--profile", "profile.toml", *arguments]) == 130
    assert capsys.readouterr().err.endswith(f"{message}\n" if verb == "trigger" else message)
