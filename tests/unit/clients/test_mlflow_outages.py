"""A real MLflow server that goes away and comes back costs a run time, and nothing else."""

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from outages import Road
from perennial.clients import mlflow_client
from perennial.clients.mlflow_client import MlflowError, open_mlflow
from perennial.clients.outages import OUTAGE_SECONDS, waiting_out_outages
from perennial.clients.tracking import open_tracking
from perennial.contracts.environment import Environment
from perennial.contracts.errors import OutageError
from perennial.registry.model_registry import open_registry
from ports import get_free_port

pytestmark = pytest.mark.full  # a server takes long to start
QUIET = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Where a server listens, over a database that exists."""
    folder = tmp_path_factory.mktemp("server")
    mlflow_client._make_database(f"sqlite:///{folder}/mlflow.db")
    port = get_free_port()
    command = [
        sys.executable, "-m", "mlflow", "server", "--workers", "1", "--port", str(port),
        "--backend-store-uri", f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination", str(folder / "artifacts"),
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=log, start_new_session=True, env=os.environ | QUIET
        )
    try:
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            time.sleep(0.2)
        yield port
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture
def away(server, tmp_path, monkeypatch):
    """The road to the server, and a run's environment that has no other."""
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    road = Road("127.0.0.1", server)
    environment = Environment(str(tmp_path / "store"), road.url, "run-1")
    yield road, environment
    road.end()


@pytest.mark.timeout(120)
def test_every_record_of_a_run_outlasts_an_outage(away, monkeypatch):
    road, environment = away
    monkeypatch.setenv(OUTAGE_SECONDS, "60")
    with waiting_out_outages():
        road.close_for(0.5)
        tracking = open_tracking(environment, "prices")
        road.close_for(0.5, "error")
        tracking.log_params({"a": 1})
        road.close_for(0.5, "reset")
        tracking.log_metrics({"loss": 0.5})
        road.close_for(0.5)
        tracking.set_tags({"kind": "test"})
        road.close_for(0.5)
        assert open_registry(environment).versions("prices") == []
        road.close_for(0.5)
        tracking.finish()
    (run,) = open_mlflow(environment).search_runs(
        [open_mlflow(environment).get_experiment_by_name("prices").experiment_id]
    )
    assert run.info.status == "FINISHED"
    assert run.data.params == {"a": "1"}
    assert run.data.metrics == {"loss": 0.5}
    assert run.data.tags["kind"] == "test"


def test_an_absent_server_is_an_outage_and_reported_at_once_at_a_prompt(away, monkeypatch):
    road, environment = away
    monkeypatch.setenv(OUTAGE_SECONDS, "0.3")
    road.close()
    with pytest.raises(OutageError, match="does not answer after"), waiting_out_outages():
        open_tracking(environment, "prices")
    with pytest.raises(MlflowError, match="MLflow's server does not answer"):
        open_tracking(environment, "prices")
