"""A server that speaks the Kubernetes API's wire format: TLS, Status objects, watches, logs.

It holds pods, jobs and workflows, refuses what a real one refuses, and fails on request:
refused connections, 429, 5xx, watches that are dropped or answer 410, tokens that expire, discovery
that is not allowed.
"""

import datetime
import ipaddress
import json
import ssl
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fake_cluster_state import Faults, Store

NAMESPACE = "team-a"
# Notebooks share a group and version with PyTorchJobs.
GROUPS = {
    "experiments": "kubeflow.org", "notebooks": "kubeflow.org", "pytorchjobs": "kubeflow.org",
    "trainjobs": "trainer.kubeflow.org",
}  # fmt: skip
JOBS = ("pytorchjobs", "trainjobs")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each answer waits 40 ms for an acknowledgement
    store: Store
    faults: Faults
    served: set
    rights: set
    trainjob_fields: dict

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        self._answer("GET")

    def do_POST(self):
        self._answer("POST")

    def do_DELETE(self):
        self._answer("DELETE")

    def _answer(self, method):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        fault = self.faults.pick(f"{method} {self.path}")
        if fault == 0:
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, bytes):
            self._content(200, fault, {"Content-Type": "text/html"})
            return
        if fault is not None:
            self._status(fault, "InternalError", "failed calling webhook", {"Retry-After": "0"})
            return
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if token not in self.faults.tokens:
            self._status(401, "Unauthorized", "Unauthorized")
            return
        parts = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(parts.query).items()}
        self._route(method, parts.path, query, body)

    def _route(self, method, path, query, body):
        words = path.strip("/").split("/")
        if "namespaces" not in words:
            self._discover(words)
            return
        at = words.index("namespaces")
        plural, name = words[at + 2], words[at + 3] if len(words) > at + 3 else ""
        if plural != "pods" and plural not in self.served:
            self._status(404, "NotFound", "the server could not find the requested resource")
            return
        group = "" if words[0] == "api" else words[1]
        below = words[at + 4] if len(words) > at + 4 else ""
        verb = {"POST": "create", "DELETE": "delete"}.get(method, "get" if name else "list")
        if query.get("watch"):
            verb = "watch"
        if plural in self.faults.forbidden:
            self._forbid(f'cannot {verb} resource "{plural}" in API group "{group}"')
            return
        self.rights.add((group, f"{plural}/{below}" if below else plural, verb))
        if below == "log":
            self._log(name, query)
        elif verb == "watch":
            self._watch(plural, query)
        elif verb == "list":
            self._list(plural, query)
        else:
            getattr(self, f"_{verb}")(plural, name, query, body)

    def _discover(self, words):
        if self.faults.hides_discovery:
            self._forbid(f'cannot get path "/{"/".join(words)}"')
            return
        if words[0] == "openapi":
            group, version = words[3], words[4]
            kind = {"group": group, "kind": "TrainJob", "version": version}
            schema = {
                "x-kubernetes-group-version-kind": [kind],
                "properties": {"spec": {"properties": self.trainjob_fields}},
            }
            self._json(200, {"components": {"schemas": {"TrainJob": schema}}})
            return
        found = [name for name in self.served if GROUPS.get(name) == words[1]]
        if not found:
            self._status(404, "NotFound", "the server could not find the requested resource")
            return
        self._json(200, {"kind": "APIResourceList", "resources": [{"name": n} for n in found]})

    def _create(self, plural, name, query, body):
        assert query == {"fieldValidation": "Strict"}, query
        name = body["metadata"]["name"]
        with self.store.lock:
            used, limit = len(self.store.all(plural)), self.faults.quota.get(plural)
            if limit is not None and used >= limit:
                count = f"count/{plural}.kubeflow.org"
                self._status(
                    403, "Forbidden", f'{plural} "{name}" is forbidden: exceeded quota: perennial, '
                    f"requested: {count}=1, used: {count}={used}, limited: {count}={limit}"
                )  # fmt: skip
                return
            if self.store.get(plural, name):
                self._status(409, "AlreadyExists", f'{plural} "{name}" already exists')
                return
            body["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": NAMESPACE}
            now = datetime.datetime.now(datetime.UTC)
            body["metadata"]["creationTimestamp"] = now.strftime("%Y-%m-%dT%H:%M:%SZ")
            made = self.store.put(plural, body)
            self.store.created.append(made)
        self._json(201, made)

    def _get(self, plural, name, query, body):
        found = self.store.get(plural, name)
        if found is None:
            self._status(404, "NotFound", f'{plural} "{name}" not found')
            return
        self._json(200, found)

    def _delete(self, plural, name, query, body):
        # Trainer 2.1 makes the pods of a TrainJob again that is deleted in the foreground.
        leaves_at_once = plural in ("experiments", "trainjobs")
        wanted = "Background" if leaves_at_once else "Foreground"
        assert body["propagationPolicy"] == wanted, plural
        with self.store.lock:
            found = self.store.get(plural, name)
            if found is None:
                self._status(404, "NotFound", f'{plural} "{name}" not found')
                return
            wanted = body.get("preconditions", {}).get("uid")
            if wanted and wanted != found["metadata"]["uid"]:
                self._status(409, "Conflict", "the UID in the precondition does not match")
                return
            self.store.deleted.append(name)
            if leaves_at_once:
                self.store.drop(plural, name)
                self._json(200, {"kind": "Status", "status": "Success"})
                return
            leaving = json.loads(json.dumps(found))
            leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            leaving["metadata"]["finalizers"] = ["foregroundDeletion"]
            self.store.put(plural, leaving)
        self._json(200, leaving)

    def _list(self, plural, query):
        with self.store.lock:
            items = [each for each in self.store.all(plural) if _matches(each, query)]
            version = str(self.store.version)
        self._json(200, {"metadata": {"resourceVersion": version}, "items": items})

    def _watch(self, plural, query):
        at = int(query["resourceVersion"])
        until = time.monotonic() + min(float(query["timeoutSeconds"]), 5.0)
        self._begin_stream()
        if at < self.store.forgotten:
            status = {"kind": "Status", "code": 410, "reason": "Expired"}
            self._chunk({"type": "ERROR", "object": status})
            self._end_stream()
            return
        while time.monotonic() < until and not self._is_dropped():
            with self.store.lock:
                new = [event for event in self.store.events if event[0] > at]
                if not new:
                    self.store.lock.wait(0.05)
            for version, changed, kind, body in new:
                at = version
                if changed == plural and _matches(body, query):
                    self._chunk({"type": kind, "object": body})
        if not self._is_dropped():
            bookmark = {"metadata": {"resourceVersion": str(at)}}
            self._chunk({"type": "BOOKMARK", "object": bookmark})
            self._end_stream()

    def _log(self, pod, query):
        if pod not in self.store.logs:
            self._status(400, "BadRequest", f'container in pod "{pod}" is waiting to start')
            return
        self._begin_stream()
        sent, since = 0, query.get("sinceTime", "")
        while not self._is_dropped():
            with self.store.lock:
                lines = self.store.logs.get(pod, [])[sent:]
                is_over = pod in self.store.closed_logs
                if not lines and not is_over:
                    self.store.lock.wait(0.05)
            for line in lines:
                if line >= since.removesuffix("Z"):
                    self._raw(f"{line}\n".encode())
            sent += len(lines)
            if is_over and not lines:
                self._end_stream()
                return

    def _is_dropped(self):
        if not self.faults.drop_streams and time.monotonic() >= self.faults.down_until:
            return False
        self.close_connection = True
        self.connection.close()
        return True

    def _begin_stream(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _chunk(self, value):
        self._raw(json.dumps(value).encode() + b"\n")

    def _raw(self, content):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    def _end_stream(self):
        self.wfile.write(b"0\r\n\r\n")

    def _forbid(self, what):
        user = f"system:serviceaccount:{NAMESPACE}:pipeline-runner"
        self._status(403, "Forbidden", f'forbidden: User "{user}" {what}')

    def _status(self, code, reason, message, headers=None):
        status = {"kind": "Status", "status": "Failure", "code": code, "reason": reason}
        self._json(code, status | {"message": message}, headers)

    def _json(self, code, value, headers=None):
        content = json.dumps(value).encode()
        self._content(code, content, {"Content-Type": "application/json", **(headers or {})})

    def _content(self, code, content, headers):
        self.send_response(code)
        self.send_header("Content-Length", str(len(content)))
        for name, text in headers.items():
            self.send_header(name, text)
        self.end_headers()
        self.wfile.write(content)


def _matches(body, query):
    labels = body["metadata"].get("labels", {})
    wanted = [pair.partition("=") for pair in query.get("labelSelector", "").split(",") if pair]
    return all(labels.get(name) == value if has else name in labels for name, has, value in wanted)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request, client_address):
        """Connections that break off are what clients and faults do here."""

    def finish_request(self, request, client_address):
        request = self.context.wrap_socket(request, server_side=True)
        try:
            super().finish_request(request, client_address)
        finally:
            request.close()


def certified(folder):
    """A TLS context whose certificate, its own authority, is written there for clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fake")])
    now = datetime.datetime.now(datetime.UTC)
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name).issuer_name(name).public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(place, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    encoding = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(certificate.public_bytes(encoding))
    (folder / "key.pem").write_bytes(
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "ca.crt", folder / "key.pem")
    return context


class FakeCluster:
    """The server, and the folder that tells a pod about it."""

    def __init__(self, folder, served=("workflows", "workloads", *JOBS)):
        self.store, self.faults, self.rights = Store(), Faults(), set()
        self.folder = folder
        folder.mkdir()
        context = certified(folder)
        handler = type(
            "BoundHandler", (Handler,),
            {"store": self.store, "faults": self.faults, "served": set(served),
             "rights": self.rights, "trainjob_fields": {"trainer": {}, "activeDeadlineSeconds": {}}},
        )  # fmt: skip
        self.handler = handler
        self.server = Server(("127.0.0.1", 0), handler)
        self.server.context = context
        self.port = self.server.server_address[1]
        (folder / "namespace").write_text(NAMESPACE)
        (folder / "token").write_text("token-0")
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def environment(self, pod):
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.port),
            "PERENNIAL_SERVICE_ACCOUNT": str(self.folder),
            "KFP_POD_NAME": pod,
        }

    def rotate_token(self, name):
        self.faults.tokens = {name}
        (self.folder / "token").write_text(name)

    def active_jobs(self):
        return [
            job["metadata"]["name"]
            for plural in JOBS
            for job in self.store.all(plural)
            if not any(
                condition["type"] in ("Succeeded", "Failed", "Complete")
                for condition in job.get("status", {}).get("conditions", ())
            )
        ]

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()
