"""The servers of a cluster, on a network of containers: a store of the S3 protocol, and MLflow."""

import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.error import URLError

import boto3
import pytest
from moto.server import ThreadedMotoServer

from containers import Network

ACCOUNT = {
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "AWS_DEFAULT_REGION": "us-east-1",
}

ENDPOINT = "AWS_ENDPOINT_URL_S3"


@dataclass(frozen=True)
class Store:
    """A bucket on a server that speaks the S3 protocol, as containers and this machine reach it."""

    endpoint: str
    bucket: str

    @property
    def variables(self) -> dict[str, str]:
        return {**ACCOUNT, ENDPOINT: self.endpoint}


@contextmanager
def store_server(network: Network) -> Iterator[str]:
    """A server on this machine's address in a network of containers; gives its own."""
    server = ThreadedMotoServer(ip_address=network.gateway, port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield f"http://{host}:{port}"
    finally:
        server.stop()


def new_bucket(endpoint: str) -> Store:
    """An empty bucket, which this process reaches, too."""
    found = Store(endpoint, f"bucket-{uuid.uuid4().hex}")
    os.environ.update(found.variables)
    boto3.client("s3").create_bucket(Bucket=found.bucket)
    return found


@pytest.fixture(scope="session")
def store_endpoint(network) -> Iterator[str]:
    """The server of all tests."""
    with store_server(network) as endpoint:
        yield endpoint


@pytest.fixture
def store(store_endpoint, monkeypatch) -> Store:
    """A bucket of the test's own."""
    for name in (*ACCOUNT, ENDPOINT):
        monkeypatch.setenv(name, "")  # so that they are put back
    return new_bucket(store_endpoint)


@pytest.fixture
def tracking_server(network, store, tmp_path) -> Iterator[str]:
    """MLflow's own server, which keeps artifacts in the store."""
    address = f"{network.gateway}:5000"
    command = (sys.executable, "-m", "mlflow", "server", "--workers", "1")
    with (tmp_path / "mlflow.log").open("wb") as log:
        server = subprocess.Popen(
            [
                *command, "--host", network.gateway, "--port", "5000",
                "--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db",
                "--artifacts-destination", f"s3://{store.bucket}/mlflow",
            ],
            stdout=log, stderr=log, cwd=tmp_path, start_new_session=True,
            env={
                **os.environ, "MLFLOW_S3_ENDPOINT_URL": store.endpoint,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_SERVER_ALLOWED_HOSTS": "*", "MLFLOW_DISABLE_TELEMETRY": "true",
            },
        )  # fmt: skip
    try:
        wait_until_healthy(f"http://{address}/health", server)
        yield f"http://{address}"
    finally:
        os.killpg(server.pid, 15)
        server.wait(timeout=60)


def wait_until_healthy(address: str, server: subprocess.Popen) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert server.poll() is None, "MLflow's server ended"
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (URLError, TimeoutError, ConnectionError):
            time.sleep(0.5)
    raise AssertionError("MLflow's server does not answer")
