"""A real API server over etcd, as controller developers test against: no controllers, no nodes.

Its binaries are looked for in the folder `KUBEBUILDER_ASSETS`, where `setup-envtest` puts them, and
on the PATH.
"""

import contextlib
import os
import shutil
import subprocess
import threading
import time
from urllib.parse import parse_qs, urlsplit

import pytest
import requests
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fake_api_server import Handler, Server, certified
from fake_cluster_state import Faults, Store
from ports import get_free_port

ADMIN = "administrator"
NODE = "node-1"
READY_SECONDS = 120
MERGE = "application/merge-patch+json"


def binary(name):
    return shutil.which(name, path=os.environ.get("KUBEBUILDER_ASSETS")) or shutil.which(name)


needs_api_server = pytest.mark.skipif(
    not (binary("kube-apiserver") and binary("etcd")),
    reason="no kube-apiserver and etcd in KUBEBUILDER_ASSETS or on the PATH",
)


class Kubelet(Handler):
    """The node's side of a log request, which the API server passes on to it."""

    def do_GET(self):
        parts = urlsplit(self.path)
        _, namespace, pod, _ = parts.path.strip("/").split("/")  # containerLogs/…/CONTAINER
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self._log(f"{namespace}/{pod}", query)


class ApiServer:
    """etcd, the API server, and a node whose kubelet gives logs and nothing else.

    Args:
        folder: For data, certificates and what the processes print.
    """

    def __init__(self, folder):
        self.folder = folder
        self.authority = folder / "certificates" / "apiserver.crt"
        self.port, self.etcd_port = get_free_port(), get_free_port()
        self.logs = Store()
        self._sessions = threading.local()
        self._write_keys()
        self._kubelet = self._start_kubelet()
        self._etcd = self._start_etcd()
        self.start()
        self._add_node()

    def _write_keys(self):
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        form = serialization.PrivateFormat.TraditionalOpenSSL
        secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        (self.folder / "accounts.key").write_bytes(secret)
        (self.folder / "tokens.csv").write_text(f"{ADMIN},{ADMIN},1,system:masters\n")

    def _start_kubelet(self):
        (self.folder / "kubelet").mkdir()
        bound = type("BoundKubelet", (Kubelet,), {"store": self.logs, "faults": Faults()})
        kubelet = Server(("127.0.0.1", 0), bound)
        kubelet.context = certified(self.folder / "kubelet")
        threading.Thread(target=kubelet.serve_forever, args=(0.05,), daemon=True).start()
        return kubelet

    def _start_etcd(self):
        url, peer = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{get_free_port()}"
        return self._spawn(
            "etcd", f"--data-dir={self.folder / 'etcd'}", f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}", f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=default={peer}",
        )  # fmt: skip

    def start(self):
        """Start the API server, on the port and with the data that it had."""
        key = self.folder / "accounts.key"
        self._server = self._spawn(
            "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--secure-port={self.port}", "--bind-address=127.0.0.1",
            f"--cert-dir={self.authority.parent}", "--authorization-mode=RBAC",
            f"--token-auth-file={self.folder / 'tokens.csv'}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
            # No controller makes a namespace's default account, which this would insist on.
            "--disable-admission-plugins=ServiceAccount",
        )  # fmt: skip
        deadline = time.monotonic() + READY_SECONDS
        while not self._is_ready():
            log = (self.folder / "kube-apiserver.log").read_text()[-2000:]
            assert self._server.poll() is None, log
            assert time.monotonic() < deadline, log
            time.sleep(0.1)

    def _is_ready(self):
        with contextlib.suppress(OSError):
            return self._ask("GET", "/readyz").status_code == 200
        return False

    def _spawn(self, name, *arguments):
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen([binary(name), *arguments], stdout=log, stderr=log)

    def _add_node(self):
        self.make("/api/v1/nodes", {"metadata": {"name": NODE}})
        port = self._kubelet.server_address[1]
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        }
        self.ask("PATCH", f"/api/v1/nodes/{NODE}/status", {"status": status}, kind=MERGE)

    def ask(self, *request, **options):
        """The answer to a request of the administrator, who waits for a server that is away."""
        deadline = time.monotonic() + READY_SECONDS
        while True:
            try:
                return self._ask(*request, **options)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _ask(self, method, path, body=None, *, kind="application/json"):
        if not hasattr(self._sessions, "own"):
            self._sessions.own = requests.Session()
        return self._sessions.own.request(
            method, f"https://127.0.0.1:{self.port}{path}", json=body, verify=str(self.authority),
            headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}, timeout=30,
        )  # fmt: skip

    def make(self, path, body):
        """Create an object below a path."""
        answer = self.ask("POST", path, body)
        assert answer.status_code == 201, answer.text[:500]
        return answer.json()

    def path_of(self, item):
        """Where an object is kept; None where its kind is not served."""
        version = item["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        answer = self.ask("GET", root)
        served = answer.json()["resources"] if answer.status_code == 200 else []
        for each in served:
            if each["kind"] == item["kind"] and "/" not in each["name"]:
                where = (
                    f"/namespaces/{item['metadata'].get('namespace')}" if each["namespaced"] else ""
                )
                return f"{root}{where}/{each['name']}/{item['metadata']['name']}"
        return None

    def kill(self):
        """End the API server as a machine that dies does, without a word to anybody."""
        self._server.kill()
        self._server.wait()

    def close(self):
        self.kill()
        self._etcd.kill()
        self._etcd.wait()
        self._kubelet.shutdown()
        self._kubelet.server_close()
