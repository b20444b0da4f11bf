"""Kustomizations build, without deprecated fields, from small files that say what they hold."""

import re

import pytest
import yaml

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
    ("damage", "said"),
    [
        (lambda o: o["spec"].update(sucessfulJobsHistoryLimit=1), "no field 'sucessfulJobsHistoryLimit'"),
        (lambda o: o["spec"].pop("schedule"), "`schedule`"),
        (lambda o: o["spec"].update(startingDeadlineSeconds="10"), "'10' is no int"),
        (lambda o: o["spec"]["jobTemplate"]["spec"]["template"]["spec"].pop("containers"), "`containers`"),
    ],
    ids=["unknown", "missing", "of another type", "missing deep inside"],
)  # fmt: skip
def test_a_damaged_object_is_noticed(damage, said):
    item = yaml.safe_load((K8S / "components" / "watcher" / "cron-job.yaml").read_text())
    assert mistakes(item) == []
    damage(item)
    assert said in " ".join(mistakes(item))


@pytest.mark.parametrize(
    ("path", "damage", "said"),
    [
        ("queueing/cluster-queue", lambda o: o["spec"].update(queueingStrategy="Lifo"), "Lifo"),
        ("queueing/cluster-queue", lambda o: o["spec"].update(cohort="a"), "cohort"),
        ("monitoring/prometheus-rule", lambda o: o["spec"]["groups"][0].pop("name"), "name"),
        ("training-runtime/training-runtime", lambda o: o["spec"].update(podSpecOverrides=[]), "podSpecOverrides"),
    ],
)  # fmt: skip
def test_a_damaged_custom_object_is_noticed(path, damage, said):
    item = yaml.safe_load((K8S / "components" / f"{path}.yaml").read_text())
    assert mistakes(item) == []
    damage(item)
    assert said in " ".join(mistakes(item))


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


@needs_kubectl
@pytest.mark.parametrize("folder", [BASE, *OVERLAYS], ids=name_of)
def test_secrets_are_named_and_never_held(folder):
    objects = build(folder)
    assert [label(item) for item in objects if item["kind"] == "Secret"] == []
    variables = re.findall(
        r"'name': '(\w*(?:PASSWORD|SECRET|TOKEN|KEY|_URI)\w*)', 'value': '([^']*)'", str(objects)
    )
    assert [(name, value) for name, value in variables if "ARTIFACT_ROOT" not in name] == []
