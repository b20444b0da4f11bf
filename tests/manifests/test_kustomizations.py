"""Kustomizations build, without deprecated fields, from small files that say what they hold."""

import re
from ipaddress import ip_network

import pytest
import yaml
from sqlalchemy import make_url

from cluster_manifests import (
    BASE,
    COMPONENTS,
    K8S,
    OVERLAYS,
    build,
    build_component,
    label,
    mistakes,
    needs_kubectl,
)

DEPRECATED = {
    "bases", "commonLabels", "helmChartInflationGenerator", "imageTags", "patchesJson6902",
    "patchesStrategicMerge", "vars",
}  # fmt: skip
# Not objects of a cluster.
KUSTOMIZE = {"kustomization.yaml", "name-reference.yaml", "namespace.yaml"}
MANIFESTS = sorted(
    path for path in [*BASE.glob("*.yaml"), *(K8S / "components").glob("*/*.yaml")]
    if path.name not in KUSTOMIZE
)  # fmt: skip
KUSTOMIZATIONS = sorted(K8S.rglob("kustomization.yaml"))
LABELS = {f"app.kubernetes.io/{name}" for name in ("name", "component", "part-of")}


def name_of(path):
    return path.relative_to(K8S).as_posix()


def kebab(kind):
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind).lower()


def namespaced(objects):
    return [
        item
        for item in objects
        if item["kind"] not in ("Namespace", "ClusterQueue", "ResourceFlavor")
    ]


@needs_kubectl
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=name_of)
def test_a_kustomization_builds_and_every_object_fits_its_schema(folder):
    objects = build(folder)
    assert objects
    assert [f"{label(item)}: {found}" for item in objects for found in mistakes(item)] == []


@needs_kubectl
@pytest.mark.parametrize("component", COMPONENTS, ids=name_of)
def test_a_component_can_be_added_to_the_base_by_itself(component, tmp_path):
    objects = build_component(component, tmp_path)
    assert len(objects) >= len(build(BASE))
    assert [f"{label(item)}: {found}" for item in objects for found in mistakes(item)] == []


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda o: o["spec"].update(sucessfulJobsHistoryLimit=1), "no field 'sucessfulJobsHistoryLimit'"),
        (lambda o: o["spec"].pop("schedule"), "`schedule`"),
        (lambda o: o["spec"].update(startingDeadlineSeconds="10"), "'10' is no int"),
        (lambda o: o["spec"]["jobTemplate"]["spec"]["template"]["spec"].pop("containers"), "`containers`"),
    ],
    ids=["unknown", "missing", "of another type", "missing deep inside"],
)  # fmt: skip
def test_a_damaged_object_is_noticed(damage, message):
    item = yaml.safe_load((K8S / "components" / "watcher" / "cron-job.yaml").read_text())
    assert mistakes(item) == []
    damage(item)
    assert message in " ".join(mistakes(item))


@pytest.mark.parametrize(
    ("path", "damage", "message"),
    [
        ("queueing/cluster-queue", lambda o: o["spec"].update(queueingStrategy="Lifo"), "Lifo"),
        ("queueing/cluster-queue", lambda o: o["spec"].update(cohort="a"), "cohort"),
        ("monitoring/prometheus-rule", lambda o: o["spec"]["groups"][0].pop("name"), "name"),
        ("training-runtime/training-runtime", lambda o: o["spec"].update(podSpecOverrides=[]), "podSpecOverrides"),
    ],
)  # fmt: skip
def test_a_damaged_custom_object_is_noticed(path, damage, message):
    item = yaml.safe_load((K8S / "components" / f"{path}.yaml").read_text())
    assert mistakes(item) == []
    damage(item)
    assert message in " ".join(mistakes(item))


@pytest.mark.parametrize("path", KUSTOMIZATIONS, ids=name_of)
def test_no_field_of_a_kustomization_is_deprecated(path):
    kustomization = yaml.safe_load(path.read_text())
    assert not DEPRECATED & set(kustomization)


@pytest.mark.parametrize("path", MANIFESTS, ids=name_of)
def test_a_file_holds_one_object_and_is_named_by_its_kind(path):
    (item,) = yaml.safe_load_all(path.read_text())
    assert path.stem == kebab(item["kind"]) or path.stem.startswith(f"{kebab(item['kind'])}-")
    assert set(item["metadata"]["labels"]) >= LABELS
    assert item["metadata"]["labels"]["app.kubernetes.io/part-of"] == "perennial"


def test_every_file_is_used():
    for path in MANIFESTS:
        kustomization = yaml.safe_load((path.parent / "kustomization.yaml").read_text())
        assert path.name in kustomization["resources"], name_of(path)


@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_an_overlay_is_small(overlay):
    files = sorted(path.name for path in overlay.iterdir())
    assert files == ["kustomization.yaml", "namespace.yaml", "profile.toml", "watcher.toml"]


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_an_overlay_leaves_no_object_without_a_namespace_and_no_image_without_a_digest(overlay):
    objects = build(overlay)
    assert [
        label(item) for item in namespaced(objects) if "namespace" not in item["metadata"]
    ] == []
    images = re.findall(r"'image': '([^']+)'", str(objects))
    assert images
    assert [image for image in images if not re.search(r"@sha256:[0-9a-f]{64}$", image)] == []


def wrong_ranges(policies):
    """What the API server refuses: an exception that does not lie inside its range."""
    return [
        label(item)
        for item in policies
        for rule in (*item["spec"].get("egress", ()), *item["spec"].get("ingress", ()))
        for peer in (*rule.get("to", ()), *rule.get("from", ()))
        for left_out in peer.get("ipBlock", {}).get("except", ())
        if ip_network(left_out) == ip_network(peer["ipBlock"]["cidr"])
        or not ip_network(left_out).subnet_of(ip_network(peer["ipBlock"]["cidr"]))
    ]


@needs_kubectl
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=name_of)
def test_what_a_network_policy_leaves_out_lies_inside_its_range(folder):
    policies = [item for item in build(folder) if item["kind"] == "NetworkPolicy"]
    assert policies
    assert wrong_ranges(policies) == []


def test_an_exception_outside_its_range_is_noticed():
    item = yaml.safe_load((BASE / "network-policy-steps.yaml").read_text())
    assert wrong_ranges([item]) == []
    item["spec"]["egress"][0]["to"][0]["ipBlock"]["cidr"] = "10.0.0.0/8"
    assert wrong_ranges([item]) == ["NetworkPolicy /perennial-steps"]


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_a_job_goes_by_itself_since_another_image_cannot_be_applied_to_it(overlay):
    jobs = [item for item in build(overlay) if item["kind"] == "Job"]
    assert [label(item) for item in jobs if "ttlSecondsAfterFinished" not in item["spec"]] == []
    assert bool(jobs) is (overlay.name == "kind")


def test_mlflows_database_is_reached_with_the_driver_that_its_image_gets():
    text = (K8S / "install.md").read_text()
    addresses = re.findall(r"--from-literal=database-uri=(\S+)", text)
    assert len(addresses) == len(OVERLAYS)
    for address in addresses:
        # Without a name, another version of SQLAlchemy takes another driver.
        driver = make_url(address.replace("$", "")).get_dialect().driver
        assert f"+{driver}:" in address
        assert f"{driver}-binary" in text


@needs_kubectl
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=name_of)
def test_secrets_are_named_and_never_held(folder):
    objects = build(folder)
    assert [label(item) for item in objects if item["kind"] == "Secret"] == []
    variables = re.findall(
        r"'name': '(\w*(?:PASSWORD|SECRET|TOKEN|KEY|_URI)\w*)', 'value': '([^']*)'", str(objects)
    )
    assert [(name, value) for name, value in variables if "ARTIFACT_ROOT" not in name] == []
