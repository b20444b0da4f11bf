"""Stand-ins for `kubectl`, `docker`, `git`, `pip` and `python3` in the install guide's commands.

A cluster's objects and a registry's digests lie in one JSON file. What a real cluster refuses, the
stand-in refuses: objects of kinds whose operator is not installed, unknown namespaces, fields that
the schemas lack; and what would never be ready: images that nobody pushed, Secrets, ConfigMaps and
accounts that nobody made. Kustomizations are built by the real kubectl.
"""

import base64
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import boto3
import yaml

from cluster_manifests import mistakes, pod_template

TOOLS = ("kubectl", "docker", "git", "pip", "python3", "python", "perennial")
TRAINER = ("TrainJob", "TrainingRuntime", "ClusterTrainingRuntime")
PROMETHEUS = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
CORE = {
    "ConfigMap", "CronJob", "Deployment", "Job", "LimitRange", "Namespace", "NetworkPolicy",
    "PersistentVolumeClaim", "ResourceQuota", "Role", "RoleBinding", "Secret", "Service",
    "ServiceAccount", "StatefulSet", "ClusterRole", "ClusterRoleBinding",
}  # fmt: skip
# Address → namespace, objects and kinds that a foreign installation brings.
PIPELINES = "github.com/kubeflow/pipelines/manifests/kustomize"
OPERATORS = "github.com/kubeflow/trainer.git/manifests/overlays"
PROMETHEUS_OPERATOR = "https://github.com/prometheus-operator/prometheus-operator/releases/download"
FOREIGN = {
    f"{PIPELINES}/cluster-scoped-resources?ref=2.16.1": ("kubeflow", [], ("Application",)),
    f"{PIPELINES}/env/platform-agnostic?ref=2.16.1": (
        "kubeflow",
        ["Deployment/ml-pipeline", "Deployment/ml-pipeline-ui", "Deployment/workflow-controller",
         "Service/ml-pipeline", "Service/ml-pipeline-ui", "ServiceAccount/pipeline-runner",
         "ConfigMap/workflow-controller-configmap"],
        (),
    ),
    f"{OPERATORS}/manager?ref=v2.3.0": ("kubeflow-system", ["Deployment/trainer"], TRAINER),
    f"{OPERATORS}/standalone?ref=v1.9.4": ("kubeflow", ["Deployment/training-operator"], ("PyTorchJob",)),
    f"{PROMETHEUS_OPERATOR}/v0.93.0/bundle.yaml": ("default", [], PROMETHEUS),
}  # fmt: skip


class State:
    """What the cluster and the registry hold; loaded and stored by each command."""

    def __init__(self, path):
        self.path = Path(path)
        found = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.objects = found.get("objects", {"Namespace//default": {}})
        self.kinds = set(found.get("kinds", ())) | CORE
        self.images = found.get("images", [])

    def save(self):
        kept = {"objects": self.objects, "kinds": sorted(self.kinds), "images": self.images}
        self.path.write_text(json.dumps(kept))

    def get(self, kind, namespace, name):
        key = f"{kind}/{namespace}/{name}"
        if key not in self.objects:
            sys.exit(f"Error from server (NotFound): {kind} {name!r} not found in {namespace!r}")
        return self.objects[key]

    def put(self, kind, namespace, name, item):
        if namespace and f"Namespace//{namespace}" not in self.objects:
            sys.exit(f"Error from server (NotFound): namespaces {namespace!r} not found")
        self.objects[f"{kind}/{namespace}/{name}"] = item
        print(f"{kind.lower()}/{name} configured")

    def install(self, address):
        namespace, objects, kinds = FOREIGN[address]
        self.objects[f"Namespace//{namespace}"] = {}
        if objects and "pipelines" in address and "Application" not in self.kinds:
            sys.exit('error: no matches for kind "Application" in version "app.k8s.io/v1beta1"')
        for each in objects:
            kind, name = each.split("/")
            self.put(kind, namespace, name, {"data": {"keyFormat": ""}})
        self.kinds |= set(kinds)

    def apply(self, items):
        for item in sorted(items, key=lambda each: each["kind"] != "Namespace"):
            kind, metadata = item["kind"], item["metadata"]
            if kind not in self.kinds:
                sys.exit(f'error: no matches for kind "{kind}" in version "{item["apiVersion"]}"')
            if wrong := [] if "keyFormat" in str(item) else mistakes(item):
                sys.exit(f"error: {wrong}")
            self.put(kind, metadata.get("namespace", ""), metadata["name"], item)

    def require_ready(self, kind, namespace, name):
        """End with an error for an object whose pods would never start."""
        item = self.get(kind, namespace, name)
        template = pod_template(item) if item.get("spec") else None
        for missing in self.missing_of(template["spec"], namespace) if template else ():
            sys.exit(f"error: timed out waiting for {kind} {name}: {missing}")

    def missing_of(self, pod, namespace):
        account = pod.get("serviceAccountName", "default")
        if account != "default" and f"ServiceAccount/{namespace}/{account}" not in self.objects:
            yield f"serviceaccount {account!r} not found"
        for container in [*pod.get("initContainers", ()), *pod["containers"]]:
            if container["image"] not in self.images:
                yield f"ErrImagePull: {container['image']}"
            for each in container.get("env", ()):
                if (found := each.get("valueFrom", {}).get("secretKeyRef")) and not found.get(
                    "optional"
                ):
                    secret = self.objects.get(f"Secret/{namespace}/{found['name']}", {})
                    if found["key"] not in secret.get("data", {}):
                        yield f"secret {found['name']} has no key {found['key']!r}"
        for volume in pod.get("volumes", ()):
            for kind, key in (("Secret", "secretName"), ("ConfigMap", "name")):
                source = volume.get(kind[0].lower() + kind[1:], {})
                if key in source and f"{kind}/{namespace}/{source[key]}" not in self.objects:
                    yield f"{kind} {source[key]!r} not found"

    def digest(self, image):
        found = f"sha256:{hashlib.sha256(image.encode()).hexdigest()}"
        repository = re.sub(r":[^:/]*$", "", image)
        self.images = sorted({*self.images, f"{repository}@{found}"})
        return found


def kubectl(state, arguments, given):
    namespace = ""
    if arguments[0] == "-n":
        namespace, arguments = arguments[1], arguments[2:]
    verb, *rest = [each for each in arguments if each not in ("--server-side", "--all")]
    if verb == "apply" and rest[-1] in FOREIGN:
        state.install(rest[-1])
    elif verb == "apply" and rest[0] == "-k":
        built = subprocess.run(
            [os.environ["REAL_KUBECTL"], "kustomize", rest[1]], capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if built.returncode:
            sys.exit(built.stderr)
        state.apply([item for item in yaml.safe_load_all(built.stdout) if item])
    elif verb == "apply" and rest[0] == "-f":
        text = given if rest[1] == "-" else Path(rest[1]).read_text()
        state.apply([item for item in yaml.safe_load_all(text) if item])
    elif verb == "create" and rest[0] == "secret":
        data = dict(
            each.removeprefix("--from-literal=").split("=", 1)
            for each in rest[3:]
            if "literal" in each
        )
        state.put("Secret", namespace, rest[2], {"data": data})
    elif verb == "create" and rest[0] == "token":
        state.get("ServiceAccount", namespace, rest[1])
        print(base64.b64encode(f"{namespace}/{rest[1]}".encode()).decode())
    elif verb == "get":
        get(state, namespace, *rest)
    elif verb == "set" and rest[0] == "env":
        state.get("Deployment", namespace, rest[1].removeprefix("deployment/"))["env"] = rest[2]
    elif verb in ("rollout", "wait", "port-forward"):
        look_at(state, verb, namespace, rest)
    else:
        sys.exit(f"error: the stand-in knows no {arguments}")


def get(state, namespace, kind, *names):
    if kind == "crd":
        look_at(state, "wait", "", [f"crd/{each}" for each in names])
    elif kind == "profile":
        state.get("Profile", "", names[0])
    else:
        data = state.get("ConfigMap", namespace, names[0])["data"]
        metadata = {"name": names[0], "namespace": namespace}
        item = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        print(yaml.safe_dump(item))


def look_at(state, verb, namespace, rest):
    places = [each for each in rest if "/" in each]
    if "deployment" in rest:  # all of a namespace
        places = [
            key.replace(f"/{namespace}", "")
            for key in state.objects
            if key.startswith(f"Deployment/{namespace}/")
        ]
        if not places:
            sys.exit("error: no matching resources found")
    for place in places:
        kind, name = place.split("/")
        if kind == "crd":
            if name.partition(".")[0] not in {f"{each.lower()}s" for each in state.kinds}:
                sys.exit(f"Error from server (NotFound): {name} not found")
        elif kind == "svc":
            item = state.get("Service", namespace, name)
            port = int(rest[-1].rpartition(":")[2])
            known = [each["port"] for each in item.get("spec", {}).get("ports", ())]
            if known and port not in known:
                sys.exit(f"error: Service {name} does not have a service port {port}")
        else:
            state.require_ready(kind.title(), namespace, name)
            if kind == "job":  # what its pod does
                boto3.client("s3").create_bucket(Bucket="perennial")


def docker(state, arguments, given):
    match arguments[:2]:
        case ["buildx", "create"]:
            print("builder")
        case ["buildx", "imagetools"]:
            print(
                f"Name:      {arguments[-1]}\nMediaType: index\nDigest:    {state.digest(arguments[-1])}"
            )
        case ["buildx", "bake"]:
            read = os.environ
            if (
                not re.search(r"@sha256:[0-9a-f]{64}$", read["BASE"])
                or not Path(read["PIP_CONFIG"]).exists()
            ):
                sys.exit("ERROR: BASE must name the Python image by digest")
            if not re.fullmatch("[0-9a-f]{40}", read["COMMIT"]):
                sys.exit("ERROR: COMMIT is no commit")
            names = {
                each: f"{read['REGISTRY']}/perennial-{each}:{read['VERSION']}"
                for each in ("data", "trainer", "control")
            }
            built = {
                name: {"image.name": image, "containerimage.digest": state.digest(image)}
                for name, image in names.items()
            }
            Path(arguments[arguments.index("--metadata-file") + 1]).write_text(json.dumps(built))
        case ["buildx", "build"]:
            tag = arguments[arguments.index("-t") + 1]
            if not given.startswith("FROM "):
                sys.exit("ERROR: no Dockerfile")
            built = {"image.name": tag, "containerimage.digest": state.digest(tag)}
            Path(arguments[arguments.index("--metadata-file") + 1]).write_text(json.dumps(built))
        case _:
            sys.exit(f"ERROR: the stand-in knows no {arguments}")


def others(tool, arguments):
    """Tools whose effect is here already: a clone, a virtual environment, installed packages."""
    if tool == "git" and arguments[0] == "clone":
        Path(Path(arguments[1]).name).symlink_to(os.environ["CLONE"])
    elif tool == "git":
        print(hashlib.sha1(b"a commit").hexdigest())
    elif tool == "python3" and arguments[:2] == ["-m", "venv"]:
        Path(arguments[2], "bin").mkdir(parents=True)
        Path(arguments[2], "bin", "activate").touch()
    elif tool == "pip":
        extras = re.search(r"\[(.*)\]", " ".join(arguments))[1].split(",")
        text = Path("pyproject.toml").read_text()
        if any(f"\n{each} = [" not in text for each in extras) or not Path(arguments[-1]).exists():
            sys.exit(f"ERROR: no such extra or file: {arguments}")
    else:
        module = ["-m", "perennial.cli"] if tool == "perennial" else []
        os.execv(sys.executable, [sys.executable, *module, *arguments])


def write_tools(folder):
    """Write the stand-ins as programs into a folder for the PATH."""
    folder.mkdir()
    for tool in TOOLS:
        program = folder / tool
        paths = f"PYTHONPATH={Path(__file__).parent} " if tool in ("kubectl", "docker") else ""
        program.write_text(f'#!/bin/sh\nexec env {paths}{sys.executable} {__file__} {tool} "$@"\n')
        program.chmod(0o755)


def main(tool, arguments):
    if tool not in ("kubectl", "docker"):
        others(tool, arguments)
        return
    # Before the lock: in a pipe, the other end may be waiting for it.
    given = sys.stdin.read() if arguments[-1] == "-" else ""
    path = os.environ["STANDIN_STATE"]
    with Path(f"{path}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = State(path)
        (kubectl if tool == "kubectl" else docker)(state, arguments, given)
        state.save()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
