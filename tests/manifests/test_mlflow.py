"""MLflow's server starts with the settings of its Deployment, and answers under its service's names alone."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import pytest
import yaml

from cluster_manifests import K8S
from ports import get_free_port

DEPLOYMENT = yaml.safe_load((K8S / "components" / "mlflow" / "deployment.yaml").read_text())
(CONTAINER,) = DEPLOYMENT["spec"]["template"]["spec"]["containers"]
SECONDS = 120
pytestmark = pytest.mark.full  # MLflow's server takes ten seconds to start


def asked(port, path, host):
    body = json.dumps({"max_results": 1}).encode() if "search" in path else None
    headers = {"Host": host, "Content-Type": "application/json"}
    try:
        with urlopen(Request(f"http://127.0.0.1:{port}{path}", body, headers)) as answer:
            return answer.status
    except HTTPError as error:
        return error.code


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    home = tmp_path_factory.mktemp("mlflow")
    port = get_free_port()
    values = {each["name"]: each.get("value", "") for each in CONTAINER["env"]}
    values |= {"MLFLOW_BACKEND_STORE_URI": f"sqlite:///{home}/mlflow.db", "HOME": str(home)}
    program, *words = CONTAINER["command"]
    command = [str(Path(sys.executable).with_name(program)), *words]
    command[command.index("--host") + 1], command[command.index("--port") + 1] = (
        "127.0.0.1",
        str(port),
    )
    command[command.index("--workers") + 1] = "1"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (home / "log.txt").open("wb") as log:
        server = subprocess.Popen(
            command,
            env={"PATH": path, **values},
            stdout=log,
            stderr=log,
            cwd=home,
            start_new_session=True,
        )
    try:
        wait_until_healthy(server, port, home / "log.txt")
        yield port
    finally:
        server.terminate()
        server.wait()


def wait_until_healthy(server, port, log):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()
        try:
            if asked(port, "/health", "10.1.2.3:5000") == 200:  # as the kubelet's probe asks
                return
        except (URLError, ConnectionError):
            time.sleep(0.5)
    raise AssertionError(log.read_text())


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("mlflow.perennial.svc:5000", 200),
        ("mlflow.perennial.svc.cluster.local:5000", 200),
        ("localhost:5000", 200),
        ("evil.example", 403),
    ],
)
def test_the_server_answers_under_the_names_of_its_service_alone(port, host, status):
    assert asked(port, "/api/2.0/mlflow/experiments/search", host) == status


def test_artifacts_do_not_pass_through_the_server(port):
    assert asked(port, "/api/2.0/mlflow-artifacts/artifacts", "localhost:5000") != 200
