"""Accounts may do at the API server what the code asks of it, and nothing else."""

import ast

import pytest

from cluster_manifests import (
    BASE,
    COMPONENTS,
    OVERLAYS,
    ROOT,
    build,
    build_component,
    label,
    needs_kubectl,
)
from deployments import contract, profile
from perennial.clients.object_store import open_store
from perennial.contracts.environment import Environment
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.exporter import ModelCollector
from perennial.deployment.operations import TargetCluster
from perennial.deployment.plan import apply
from perennial.deployment.watch import watch
from perennial.registry.model_registry import open_registry
from pipeline_server import pipeline_server

CLUSTER = ROOT / "components" / "perennial" / "clients" / "cluster.py"
JOBS = {("kubeflow.org", "pytorchjobs"), ("trainer.kubeflow.org", "trainjobs")}
# What `Cluster` asks for, method by method; the API's discovery is open to every account.
VERBS = {
    "create": {"create"},
    "get": {"get"},
    "list": {"list"},
    "delete": {"delete"},
    "watch": {"list", "watch"},
    "log_lines": {"get"},
    "own_pod": {"get"},
    "serves": set(),
    "spec_fields": set(),
}
# Whose code asks under which account; the clean-up at a run's end is a step, as the launcher is.
PACKAGE = ROOT / "components" / "perennial"
JOBS_PACKAGE = PACKAGE / "training_jobs"
LAUNCHING = [
    path
    for name in ("train_model", "training_jobs", "clean_up")
    for path in (PACKAGE / name).glob("*.py")
]
REAPING = [ROOT / "pipelines" / "perennial" / "reap.py", JOBS_PACKAGE / "leftovers.py"]
# Expression that names a kind in a call → the kinds; a variable stands for both kinds of job.
RESOURCES = {
    "PODS": {("", "pods")},
    "WORKFLOWS": {("argoproj.io", "workflows")},
    "WORKLOADS": {("kueue.x-k8s.io", "workloads")},
    "resource": JOBS,
    "kind.resource": JOBS,
    "self._kind.resource": JOBS,
}
POD_LOG, OWN_POD = {("", "pods/log")}, {("", "pods")}
# Account → the rights that a step or a CronJob needs; each with the code that asks.
LAUNCHER = {
    ("kubeflow.org", "pytorchjobs", "create"): "a training starts",
    ("kubeflow.org", "pytorchjobs", "get"): "its status; the job that has its name already",
    ("kubeflow.org", "pytorchjobs", "list"): "the clean-up at a run's end, by label",
    ("kubeflow.org", "pytorchjobs", "delete"): "cancelled, timed out, replaced, ended",
    ("", "pods", "get"): "the step's own pod: run, image, owner",
    ("", "pods", "list"): "the job's pods",
    ("", "pods", "watch"): "the job's pods",
    ("", "pods/log", "get"): "every rank's log",
}
LAUNCHER |= {
    ("trainer.kubeflow.org", "trainjobs", verb): why
    for (group, _, verb), why in LAUNCHER.items()
    if group == "kubeflow.org"
}
LAUNCHER |= {("argoproj.io", "workflows", "get"): "whether the run was cancelled"}
LAUNCHER |= {("kueue.x-k8s.io", "workloads", "list"): "why a job is suspended, as Kueue reports it"}
# What the Pipelines server lets an account do is asked of the API server too, in these words (KFP's sources).
OF_PIPELINES = {
    "experiments": "experiments",
    "pipelines": "pipelines",
    "recurringruns": "jobs",
    "runs": "runs",
}
WATCHER = {("pipelines.kubeflow.org", kind, "list") for kind in OF_PIPELINES.values()}
WATCHER |= {("pipelines.kubeflow.org", "runs", "create")}
EXPORTER = {("pipelines.kubeflow.org", kind, "list") for kind in ("jobs", "pipelines", "runs")}
REAPER = {
    **{(*kind, "list"): "the jobs that are ours, by label" for kind in JOBS},
    **{(*kind, "delete"): "those whose run is over" for kind in JOBS},
    ("argoproj.io", "workflows", "list"): "which runs are not over",
}
WANTED = {
    "perennial-launcher": LAUNCHER,
    "perennial-pipelines": WATCHER,
    "perennial-pipelines-exporter": EXPORTER,
    "perennial-reaper": REAPER,
}


def granted(role):
    return {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def asked_by(paths):
    """Every (group, resource, verb) in calls of a cluster's methods."""
    found = set()
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            owner, method = ast.unparse(node.func.value), node.func.attr
            if owner.split("_")[-1] not in ("cluster", "direct") or method not in VERBS:
                continue
            first = ast.unparse(node.args[0]) if node.args else ""
            special = {"log_lines": POD_LOG, "own_pod": OWN_POD}.get(method)
            kinds = special or (RESOURCES[first] if VERBS[method] else set())
            found |= {(*kind, verb) for kind in kinds for verb in VERBS[method]}
    return found


def roles():
    return {
        item["metadata"]["name"]: item
        for overlay in OVERLAYS for item in build(overlay) if item["kind"] == "Role"
    }  # fmt: skip


@needs_kubectl
def test_a_role_grants_what_is_needed_and_nothing_else():
    found = roles()
    assert set(found) == set(WANTED)
    for name, wanted in WANTED.items():
        assert granted(found[name]) == set(wanted), name


@pytest.mark.parametrize(
    ("paths", "table"), [(LAUNCHING, LAUNCHER), (REAPING, REAPER)], ids=["launcher", "reaper"]
)
def test_the_table_names_what_the_code_asks_and_nothing_else(paths, table):
    assert asked_by(paths) == set(table)


def test_a_watcher_that_starts_a_run_asks_the_pipelines_server_for_these_and_nothing_else(bucket):
    with pipeline_server() as (server, url):
        where = profile(url, stores={"store_uri": f"{bucket}/store"})
        target = TargetCluster(where, connect(where))
        list(apply(target.api, desire(contract(name="flights", uri=f"{bucket}/data"), where)))
        open_store(f"{bucket}/data").write("a.parquet", b"rows")
        server.calls.clear()
        results = [watch(target, "flights") for _ in range(2)]
        requests = {as_right(call) for call in server.calls}
    assert "started" in results[1]
    assert requests == WATCHER


def test_an_exporter_asks_the_pipelines_server_for_these_and_nothing_else(bucket, tmp_path):
    with pipeline_server() as (server, url):
        where = profile(url, stores={"store_uri": f"{bucket}/store"})
        target = TargetCluster(where, connect(where))
        list(apply(target.api, desire(contract(name="flights"), where)))
        server.calls.clear()
        mlflow = Environment(f"{bucket}/store", f"sqlite:///{tmp_path}/m.db", "t")
        store = open_store(f"{bucket}/store")
        found = list(ModelCollector(target, open_registry(mlflow), store).collect())
        asked = {as_right(call) for call in server.calls}
    assert any(family.samples for family in found)
    assert asked == EXPORTER


def as_right(call):
    method, path = call.split()[:2]
    parts = path.partition("?")[0].partition("/apis/v2beta1/")[2].split("/")
    # Below a pipeline are its versions, which have no right of their own.
    assert parts[0] in OF_PIPELINES, call
    assert len(parts) == 1 or parts[2:] == ["versions"], call
    return (
        "pipelines.kubeflow.org",
        OF_PIPELINES[parts[0]],
        {"GET": "list", "POST": "create"}[method],
    )


def test_every_method_of_the_cluster_that_asks_is_in_the_table():
    # Methods that build paths and speak to the server, or call one that does.
    (cluster,) = [
        node for node in ast.parse(CLUSTER.read_text()).body
        if isinstance(node, ast.ClassDef) and node.name == "Cluster"
    ]  # fmt: skip
    asking = {
        method.name
        for method in cluster.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith("_")
        and any(
            isinstance(node, ast.Attribute)
            and node.attr in ("_answer", "_find", "_send", "_listed", "_events", "get")
            and ast.unparse(node.value) == "self"
            for node in ast.walk(method)
        )
    }  # fmt: skip
    assert asking == set(VERBS)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_rights_are_of_one_namespace_without_wildcards_and_bound_to_accounts_there(overlay):
    objects = build(overlay)
    assert not [label(item) for item in objects if item["kind"].startswith("ClusterRole")]
    bound = [item for item in objects if item["kind"] == "RoleBinding"]
    assert {item["roleRef"]["name"] for item in bound} == {
        item["metadata"]["name"] for item in objects if item["kind"] == "Role"
    }
    for item in bound:
        (subject,) = item["subjects"]
        assert subject["kind"] == "ServiceAccount"
        assert subject["namespace"] == item["metadata"]["namespace"]
    for item in objects:
        if item["kind"] == "Role":
            assert "*" not in {part for right in granted(item) for part in right}


@needs_kubectl
def test_in_a_distribution_the_teams_own_account_runs_the_steps(tmp_path):
    (component,) = [path for path in COMPONENTS if path.name == "multi-user"]
    for folder, account in ((BASE, "pipeline-runner"), (None, "default-editor")):
        objects = build(folder) if folder else build_component(component, tmp_path)
        (binding,) = [
            item for item in objects
            if item["kind"] == "RoleBinding" and item["metadata"]["name"] == "perennial-launcher"
        ]  # fmt: skip
        assert binding["subjects"][0]["name"] == account
