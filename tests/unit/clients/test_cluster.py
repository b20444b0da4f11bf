"""The cluster that is connected to, and watches that a server or a proxy ends at once."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from kubernetes.client import Configuration
from kubernetes.config import kube_config

from perennial.clients.cluster import PODS, Cluster
from perennial.clients.outages import Persistence
from perennial.contracts.errors import PerennialError


@pytest.fixture
def kubeconfig(tmp_path, monkeypatch):
    """Writes the file that KUBECONFIG names, with two contexts of which the second is active."""
    path = tmp_path / "config"
    monkeypatch.setattr(kube_config, "KUBE_CONFIG_DEFAULT_LOCATION", str(path))

    def write(**active):
        text = {
            "apiVersion": "v1", "kind": "Config", "current-context": "ours",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [
                {"name": "theirs", "context": {"cluster": "c", "user": "u", "namespace": "theirs"}},
                {"name": "ours", "context": {"cluster": "c", "user": "u", **active}},
            ],
        }  # fmt: skip
        path.write_text(yaml.safe_dump(text))

    return write


@pytest.mark.parametrize(
    ("active", "asked", "expected"),
    [
        ({"namespace": "forecasting"}, "", "forecasting"),
        ({"namespace": "forecasting"}, "kubeflow", "kubeflow"),
        ({}, "", "default"),
    ],
)
def test_the_namespace_is_the_one_asked_for_else_the_active_contexts(
    kubeconfig, active, asked, expected
):
    kubeconfig(**active)
    assert Cluster.connect(None, asked).namespace == expected


def test_without_a_kubeconfig_there_is_no_cluster_to_talk_to(kubeconfig):
    with pytest.raises(PerennialError, match="no Kubernetes cluster"):
        Cluster.connect(None)


EXPIRED = json.dumps({"type": "ERROR", "object": {"kind": "Status", "code": 410}}).encode()


@pytest.mark.parametrize("content", [b"", EXPIRED + b"\n", b"<html>\n"])
def test_a_watch_that_ends_at_once_does_not_flood_the_server(content):
    requests = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments):
            pass

        def do_GET(self):
            requests.append(self.path)
            listing = json.dumps({"metadata": {"resourceVersion": "1"}, "items": []}).encode()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(content if "watch=true" in self.path else listing)

    server, ended = ThreadingHTTPServer(("127.0.0.1", 0), Handler), threading.Event()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}).start()
    address = Configuration(host=f"http://127.0.0.1:{server.server_port}")
    cluster = Cluster(address, "team-a", persistence=Persistence(5.0, first_pause_seconds=0.2))
    timer = threading.Timer(1.0, ended.set)
    timer.start()
    try:
        assert {} in list(cluster.watch(PODS, "", ended))
    finally:
        timer.cancel()
        server.shutdown()
        server.server_close()
    assert len([path for path in requests if "watch=true" in path]) in range(2, 12)
