"""Who installs the training operator can spare workers the init container that restricted namespaces refuse."""

import os

import pytest
import yaml

from cluster_manifests import K8S, build, mistakes, needs_kubectl

pytestmark = needs_kubectl
COMPONENT = K8S / "components" / "training-operator"
# Of release 1.9.4, from its sources: where it looks, and the names that a patch must meet.
TEMPLATE = "/etc/config/initContainer.yaml"
OPERATOR = {
    "apiVersion": "apps/v1", "kind": "Deployment",
    "metadata": {"name": "training-operator", "namespace": "kubeflow"},
    "spec": {
        "selector": {"matchLabels": {"control-plane": "kubeflow-training-operator"}},
        "template": {
            "metadata": {"labels": {"control-plane": "kubeflow-training-operator"}},
            "spec": {
                "containers": [
                    {"name": "training-operator", "image": "operator", "command": ["/manager"],
                     "volumeMounts": [{"name": "cert", "mountPath": "/tmp/certs"}]}
                ],
                "volumes": [{"name": "cert", "secret": {"secretName": "cert"}}],
            },
        },
    },
}  # fmt: skip


@pytest.fixture
def built(tmp_path):
    """The operator's Deployment with and without the component, and the component's own object."""

    def make(*components):
        folder = tmp_path / f"with-{len(components)}"
        folder.mkdir()
        (folder / "deployment.yaml").write_text(yaml.safe_dump(OPERATOR))
        kustomization = {
            "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
            "resources": ["deployment.yaml"],
            "components": [os.path.relpath(each, folder) for each in components],
        }  # fmt: skip
        (folder / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        return {item["kind"]: item for item in build(folder)}

    return make


def init_containers(objects):
    """What the operator adds to a worker: the list in its template file, else its built-in one."""
    pod = objects["Deployment"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    sources = {volume["name"]: volume.get("configMap", {}).get("name") for volume in pod["volumes"]}
    for mount in container["volumeMounts"]:
        folder, _, name = TEMPLATE.rpartition("/")
        held = objects.get("ConfigMap", {"metadata": {"name": None}})
        if mount["mountPath"] == folder and sources[mount["name"]] == held["metadata"]["name"]:
            return yaml.safe_load(held["data"][name])
    return [{"name": "init-pytorch", "image": "alpine:3.10"}]


def test_workers_get_the_built_in_init_container_without_the_component(built):
    assert [each["name"] for each in init_containers(built())] == ["init-pytorch"]


def test_with_the_component_they_get_none_and_the_operator_keeps_what_it_had(built):
    objects = built(COMPONENT)
    assert init_containers(objects) == []
    before = OPERATOR["spec"]["template"]["spec"]
    after = objects["Deployment"]["spec"]["template"]["spec"]
    assert before["volumes"][0] in after["volumes"]
    (container,) = after["containers"]
    assert container["command"] == ["/manager"]
    assert before["containers"][0]["volumeMounts"][0] in container["volumeMounts"]
    assert [found for item in objects.values() for found in mistakes(item)] == []


def test_both_are_in_the_operators_namespace(built):
    objects = built(COMPONENT)
    namespaces = {item["metadata"]["namespace"] for item in objects.values()}
    assert namespaces == {"kubeflow"}
