"""The manifests in k8s/ as a cluster would get them, and the schemas that it would hold them to."""

import functools
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes.client import models

ROOT = Path(__file__).resolve().parents[2]
K8S = ROOT / "k8s"
BASE = K8S / "base"
COMPONENTS = sorted(path.parent for path in (K8S / "components").glob("*/kustomization.yaml"))
OVERLAYS = sorted(path.parent for path in (K8S / "overlays").glob("*/kustomization.yaml"))
WATCHED = [K8S / "components" / name for name in ("exporter", "monitoring")]
"""Components with alerts and a dashboard."""
SCHEMAS = ROOT / "tests" / "manifests" / "schemas"
# What a component patches must be there.
NEEDS = {"multi-user": ("watcher",), "token": ("watcher",)}
POD_TEMPLATES = {
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
    "Deployment": ("spec", "template"),
    "Job": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
}
Object = dict[str, Any]

needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kustomizations are built by kubectl, which is not here"
)


def rule_groups() -> list[Object]:
    """Of the alerts, as Prometheus itself would read them."""
    texts = [(folder / "prometheus-rule.yaml").read_text() for folder in WATCHED]
    return [group for text in texts for group in yaml.safe_load(text)["spec"]["groups"]]


@functools.cache
def build(folder: Path) -> list[Object]:
    """What `kubectl apply -k` would send."""
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # Deprecated fields and the like: reported, but not a failure to kubectl.
    assert done.stderr == "", done.stderr
    return [item for item in yaml.load_all(done.stdout, Loader=yaml.CSafeLoader) if item]


def build_component(component: Path, folder: Path) -> list[Object]:
    """A component on the base, beside those that it needs."""
    names = [*NEEDS.get(component.name, ()), component.name]
    at = {name: os.path.relpath(K8S / "components" / name, folder) for name in names}
    (folder / "kustomization.yaml").write_text(
        yaml.safe_dump(
            {
                "apiVersion": "kustomize.config.k8s.io/v1beta1",
                "kind": "Kustomization",
                "resources": [os.path.relpath(BASE, folder)],
                "components": list(at.values()),
            }
        )
    )
    return build(folder)


def label(item: Object) -> str:
    """An object, for people."""
    metadata = item["metadata"]
    return f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


def pod_template(item: Object) -> Object | None:
    """The pods that an object makes."""
    if item["kind"] == "TrainingRuntime":
        (job,) = item["spec"]["template"]["spec"]["replicatedJobs"]
        return job["template"]["spec"]["template"]  # type: ignore[no-any-return]
    found = item
    for step in POD_TEMPLATES.get(item["kind"], ()):
        found = found[step]
    return found if item["kind"] in POD_TEMPLATES else None


def mistakes(item: Object) -> list[str]:
    """The errors of an API server with strict validation about an object."""
    vendored = sorted(SCHEMAS.glob(f"{item['kind'].lower()}-*.json"))
    if vendored:
        return [found for path in vendored for found in _against_crd(item, path)]
    return _against_model(item, _model_of(item), item["kind"])


def _model_of(item: Object) -> str:
    group, _, version = item["apiVersion"].rpartition("/")
    assert not group or group in ("apps", "batch") or group.endswith(".k8s.io"), (
        f"no schema of {item['apiVersion']} {item['kind']} is vendored"
    )
    return f"{version.capitalize()}{item['kind']}"


def _against_crd(item: Object, path: Path) -> list[str]:
    validator = jsonschema.Draft202012Validator(_closed(json.loads(path.read_text())))
    return [
        f"{path.stem} {error.json_path}: {error.message}" for error in validator.iter_errors(item)
    ]


def _closed(schema: Any) -> Any:
    """The same schema, where a field that it does not know is a mistake."""
    if isinstance(schema, list):
        return [_closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and "type" in schema and not is_open:
        closed["additionalProperties"] = False
    return closed


def _against_model(value: Any, kind: str, path: str) -> list[str]:
    """Against the types that Kubernetes' OpenAPI generated: unknown, missing and wrong fields."""
    listed, mapped = re.fullmatch(r"list\[(.+)\]", kind), re.fullmatch(r"dict\(str, (.+)\)", kind)
    plain = {"str": str, "int": int, "bool": bool, "float": (int, float)}
    if kind in ("object", "datetime"):
        return []
    if kind in plain:
        fits = isinstance(value, plain[kind]) and (kind == "bool" or not isinstance(value, bool))
        return [] if fits else [f"{path}: {value!r} is no {kind}"]
    if not isinstance(value, list if listed else dict):
        return [f"{path}: {value!r} is no {kind}"]
    if listed:
        parts = [(each, listed[1], f"{path}[{at}]") for at, each in enumerate(value)]
    elif mapped:
        parts = [(each, mapped[1], f"{path}.{key}") for key, each in value.items()]
    else:
        return _against_fields(value, kind, path)
    return [found for part in parts for found in _against_model(*part)]


def _against_fields(value: Object, kind: str, path: str) -> list[str]:
    model = getattr(models, kind)
    names = {json_name: name for name, json_name in model.attribute_map.items()}
    wrong = [f"{path}: no field {name!r} in {kind}" for name in value if name not in names]
    known = {name: each for name, each in value.items() if name in names}
    try:
        model(**{names[name]: each for name, each in known.items()})
    except ValueError as error:  # a required field is missing
        wrong.append(f"{path}: {error}")
    for name, each in known.items():
        wrong += _against_model(each, model.openapi_types[names[name]], f"{path}.{name}")
    return wrong
