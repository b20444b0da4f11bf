"""What `FakeCluster` is to a test, on a real API server: a namespace, its objects and accounts."""

import itertools
import json
import time

from api_server import MERGE, NODE
from cluster_manifests import K8S, SCHEMAS, build_component
from fake_api_server import FakeCluster
from fake_cluster_state import Store

LAUNCHER, REAPER = "pipeline-runner", "perennial-reaper"
NUMBERS = itertools.count(1)
# Plural → group, version, kind; pods are the API server's own.
KINDS = {
    "pytorchjobs": ("kubeflow.org", "v1", "PyTorchJob"),
    "trainjobs": ("trainer.kubeflow.org", "v1alpha1", "TrainJob"),
    "workflows": ("argoproj.io", "v1alpha1", "Workflow"),
    "workloads": ("kueue.x-k8s.io", "v1beta2", "Workload"),
}
CONFLICT, GONE = 409, 404


def schema_of(kind):
    """The released schema, or one that takes everything."""
    released = sorted(SCHEMAS.glob(f"{kind.lower()}-*.json"))
    if released:
        return without_empty_defaults(json.loads(released[-1].read_text()))
    return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}


def without_empty_defaults(schema):
    """Before 1.22, an API server takes some defaults of "" for none, and refuses the definition.

    What tells the members of a list apart must then be required instead.
    """
    if isinstance(schema, list):
        return [without_empty_defaults(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {
        key: without_empty_defaults(value)
        for key, value in schema.items()
        if (key, value) != ("default", "")
    }
    keys = made.get("x-kubernetes-list-map-keys", ())
    if isinstance(keys, list):
        made["items"]["required"] = sorted({*made["items"].get("required", ()), *keys})
    return made


def define(server):
    """Make the API server serve what operators would define."""
    for plural, (group, version, kind) in KINDS.items():
        names = {
            "plural": plural,
            "singular": kind.lower(),
            "kind": kind,
            "listKind": f"{kind}List",
        }
        served = {
            "name": version, "served": True, "storage": True, "subresources": {"status": {}},
            "schema": {"openAPIV3Schema": schema_of(kind)},
        }  # fmt: skip
        definition = {
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": f"{plural}.{group}"},
            "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
        }  # fmt: skip
        if group.endswith("k8s.io"):  # a protected group: its definition names who approved it
            leave = "https://github.com/kubernetes-sigs/kueue"
            definition["metadata"]["annotations"] = {"api-approved.kubernetes.io": leave}
        server.make("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    for plural, (group, version, _) in KINDS.items():
        while server.ask("GET", f"/apis/{group}/{version}/{plural}").status_code != 200:
            time.sleep(0.05)


class Objects:
    """Those of one kind, by name."""

    def __init__(self, server, root):
        self.server, self.root = server, root

    def __contains__(self, name):
        return self.server.ask("GET", f"{self.root}/{name}").status_code != GONE

    def __getitem__(self, name):
        answer = self.server.ask("GET", f"{self.root}/{name}")
        if answer.status_code == GONE:
            raise KeyError(name)
        return answer.json()


class RealStore(Store):
    """The objects of a namespace, read and written as its administrator; logs as its kubelet."""

    def __init__(self, server, namespace):
        super().__init__()
        self.server, self.namespace = server, namespace
        self.lock, self.logs = server.logs.lock, server.logs.logs
        self.closed_logs = server.logs.closed_logs
        roots = {"pods": "/api/v1"} | {
            plural: f"/apis/{group}/{version}" for plural, (group, version, _) in KINDS.items()
        }
        self.roots = {
            plural: f"{root}/namespaces/{namespace}/{plural}" for plural, root in roots.items()
        }
        self.objects = {plural: Objects(server, root) for plural, root in self.roots.items()}

    def get(self, plural, name):
        try:
            return self.objects[plural][name]
        except KeyError:
            return None

    def all(self, plural):
        answer = self.server.ask("GET", self.roots[plural])
        # While it starts, a server answers before it serves what was defined.
        return answer.json()["items"] if answer.status_code == 200 else []

    def write_log(self, pod, line):
        super().write_log(f"{self.namespace}/{pod}", line)

    def close_log(self, pod):
        super().close_log(f"{self.namespace}/{pod}")

    def put(self, plural, body):
        """Create an object, or write what a controller that has read it would write."""
        name = body["metadata"]["name"]
        if "resourceVersion" not in body["metadata"]:
            self.server.make(self.roots[plural], self._whole(plural, body))
        elif plural != "pods":
            self._write(plural, name, body, "")
        elif body["status"]["phase"] == "Running" and not body["spec"].get("nodeName"):
            self._bind(name)
        if "status" in body:
            self._write(plural, name, body, "/status")
        return self.objects[plural][name]

    def _whole(self, plural, body):
        if plural == "pods":
            return body
        group, version, kind = KINDS[plural]
        return {"apiVersion": f"{group}/{version}", "kind": kind, **body}

    def _bind(self, name):
        target = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
        self.server.make(f"{self.roots['pods']}/{name}/binding", target)

    def _write(self, plural, name, body, below):
        while True:
            current = self.objects[plural][name]
            part = "status" if below else "spec"
            changed = current | {part: body[part]}
            answer = self.server.ask("PUT", f"{self.roots[plural]}/{name}{below}", changed)
            if answer.status_code == GONE:
                raise KeyError(name)
            if answer.status_code != CONFLICT:
                assert answer.status_code == 200, answer.text[:500]
                return

    def drop(self, plural, name):
        """Remove an object, and what holds it: the garbage collector's part."""
        path = f"{self.roots[plural]}/{name}"
        self.server.ask("DELETE", path, {"gracePeriodSeconds": 0})
        self.server.ask("PATCH", path, {"metadata": {"finalizers": None}}, kind=MERGE)


class RealCluster:
    """A namespace of its own with the roles of `k8s/`, and the folder that tells a pod of it.

    The pod is a step's, until it becomes another account's.

    Args:
        server: The API server.
        folder: Made for the account's token, certificate and namespace.
    """

    active_jobs = FakeCluster.active_jobs

    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.namespace = f"team-{next(NUMBERS)}"
        folder.mkdir()
        server.make("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self.store = RealStore(server, self.namespace)
        (folder / "namespace").write_text(self.namespace)
        (folder / "ca.crt").write_bytes(server.authority.read_bytes())
        (folder / "k8s").mkdir()
        self._grant(build_component(K8S / "components" / "reaper", folder / "k8s"))
        self.become(LAUNCHER)

    def _grant(self, items):
        """Apply the roles, bindings and accounts among a kustomization's objects."""
        rbac = "/apis/rbac.authorization.k8s.io/v1"
        paths = {"Role": (rbac, "roles"), "RoleBinding": (rbac, "rolebindings")}
        for item in items:
            if item["kind"] in paths:
                root, plural = paths[item["kind"]]
                ours = json.loads(json.dumps(item))
                ours["metadata"]["namespace"] = self.namespace
                for subject in ours.get("subjects", ()):
                    subject["namespace"] = self.namespace
                self.server.make(f"{root}/namespaces/{self.namespace}/{plural}", ours)

    def become(self, account):
        """Make an account and let the folder hold a new token of it, as a kubelet projects it."""
        root = f"/api/v1/namespaces/{self.namespace}/serviceaccounts"
        if self.server.ask("GET", f"{root}/{account}").status_code == GONE:
            self.server.make(root, {"metadata": {"name": account}})
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        request["spec"] = {"audiences": [], "expirationSeconds": 600}
        made = self.server.make(f"{root}/{account}/token", request)
        (self.folder / "token").write_text(made["status"]["token"])

    def environment(self, pod):
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.server.port),
            "PERENNIAL_SERVICE_ACCOUNT": str(self.folder),
            "KFP_POD_NAME": pod,
        }

    def close(self):
        """The API server outlives its namespaces."""
