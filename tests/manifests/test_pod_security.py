"""Every pod of k8s/ meets the restricted standard, is bounded, and holds no token that it does not need."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cluster_manifests import (
    BASE,
    COMPONENTS,
    K8S,
    OVERLAYS,
    build,
    build_component,
    label,
    needs_kubectl,
    pod_template,
)

pytestmark = needs_kubectl
# The only one of those here that speaks to the API server.
WITH_TOKEN = {"perennial-reaper"}
VOLUMES = {"configMap", "emptyDir", "persistentVolumeClaim", "projected", "secret"}


def templates():
    with TemporaryDirectory() as folder:  # in no overlay
        dask = build_component(K8S / "components" / "dask", Path(folder))
    for name, objects in (*((each.name, build(each)) for each in OVERLAYS), ("dask", dask)):
        for item in objects:
            template = pod_template(item)
            if template is not None:
                yield pytest.param(template, id=f"{name}: {label(item)}")


PODS = list(templates()) if not needs_kubectl.args[0] else []


def containers_of(template):
    return [*template["spec"].get("initContainers", ()), *template["spec"]["containers"]]


def test_there_are_pods_to_look_at():
    assert len(PODS) >= 3 * 3


@pytest.mark.parametrize("template", PODS)
def test_a_pod_is_restricted(template):
    pod = template["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    for volume in pod.get("volumes", ()):
        assert set(volume) - {"name"} <= VOLUMES
    for container in containers_of(template):
        context = container["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["readOnlyRootFilesystem"] is True
        assert not {"privileged", "procMount", "runAsUser", "seccompProfile"} & set(context)
        assert not any("hostPort" in port for port in container.get("ports", ()))


@pytest.mark.parametrize("template", PODS)
def test_a_pod_requests_its_resources(template):
    for container in containers_of(template):
        resources = container["resources"]
        assert {"cpu", "memory"} <= set(resources["requests"])
        assert "memory" in resources["limits"]
        assert "cpu" not in resources["limits"], "a limit would only slow bursts down"


@pytest.mark.parametrize("template", PODS)
def test_a_pod_without_business_at_the_api_server_has_no_token(template):
    pod = template["spec"]
    assert pod["serviceAccountName"] != "default"
    assert pod["automountServiceAccountToken"] is (pod["serviceAccountName"] in WITH_TOKEN)


@pytest.mark.parametrize("template", PODS)
def test_a_pod_has_a_place_for_temporary_files_and_no_sidecar_outlives_it(template):
    mounts = {mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
    assert "/tmp" in mounts
    if template["spec"].get("restartPolicy") == "Never" and "pipeline" not in str(template):
        annotations = template["metadata"].get("annotations", {})
        is_in_own_namespace = template["spec"]["serviceAccountName"] == "object-store"
        assert is_in_own_namespace or annotations["sidecar.istio.io/inject"] == "false"


def test_the_namespace_that_is_ours_enforces_the_restricted_standard():
    for overlay in OVERLAYS:
        (found,) = [item for item in build(overlay) if item["kind"] == "Namespace"]
        assert found["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_no_account_gets_a_token_unasked():
    accounts = [item for o in OVERLAYS for item in build(o) if item["kind"] == "ServiceAccount"]
    assert accounts
    assert all(account["automountServiceAccountToken"] is False for account in accounts)


def test_the_pipelines_token_is_made_by_the_kubelet_for_that_audience_alone():
    (found,) = [
        template.values[0]["spec"] for template in PODS if template.id == "production: CronJob forecasting/perennial-watcher"
    ]  # fmt: skip
    (volume,) = [each for each in found["volumes"] if "projected" in each]
    (source,) = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "pipelines.kubeflow.org"
    assert source["serviceAccountToken"]["expirationSeconds"] <= 3600


def matches(selector, labels):
    wanted = selector.get("matchLabels", {})
    if any(labels.get(name) != value for name, value in wanted.items()):
        return False
    for each in selector.get("matchExpressions", ()):
        is_there = each["key"] in labels
        if each["operator"] == "Exists" and not is_there:
            return False
        if each["operator"] == "In" and labels.get(each["key"]) not in each["values"]:
            return False
    return True


STEP_LABELS = {"app.kubernetes.io/part-of": "perennial", "pipeline/runid": "1"}
TRAINING_LABELS = {"app.kubernetes.io/managed-by": "perennial"}


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_every_pod_of_ours_is_behind_a_policy_both_ways_and_no_other_pod_is(overlay):
    objects = build(overlay)
    policies = [item for item in objects if item["kind"] == "NetworkPolicy"]
    runs = next(i["metadata"]["namespace"] for i in objects if i["kind"] == "ResourceQuota")
    pods = [(runs, STEP_LABELS), (runs, TRAINING_LABELS)]
    for item in objects:
        template = pod_template(item)
        if template is not None:
            pods.append((item["metadata"]["namespace"], template["metadata"]["labels"]))
    for namespace, labels in pods:
        there = [p for p in policies if p["metadata"]["namespace"] == namespace]
        selecting = [p for p in there if matches(p["spec"]["podSelector"], labels)]
        denied = {kind for p in selecting for kind in p["spec"]["policyTypes"]}
        assert denied == {"Ingress", "Egress"}, (namespace, labels)
    # Kubeflow Pipelines' own pods in a namespace that is shared.
    shared = [p for p in policies if p["metadata"]["namespace"] == runs]
    assert not any(matches(p["spec"]["podSelector"], {"app": "ml-pipeline"}) for p in shared)


def test_training_pods_reach_neither_the_api_server_nor_pipelines():
    (policy,) = [
        item for item in build(BASE)
        if item["kind"] == "NetworkPolicy" and item["metadata"]["name"] == "perennial-training"
    ]  # fmt: skip
    ports = {port["port"] for rule in policy["spec"]["egress"] for port in rule.get("ports", ())}
    assert ports == {53, 443, 5000, 8333}
    assert len(COMPONENTS) >= 9
