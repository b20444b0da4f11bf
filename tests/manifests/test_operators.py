"""An overlay names one operator of training jobs; logs of Kubeflow's own are found behind gone pods."""

import os
import re
import shutil
import subprocess

import pytest
import yaml

from cluster_manifests import K8S, build, needs_kubectl

pytestmark = needs_kubectl
GUIDE = (K8S / "install.md").read_text().replace("\\\n", " ")
OPERATORS = ("training-runtime", "pytorchjobs")
# Of Kubeflow Pipelines' manifests, shortened.
REPOSITORY = """archiveLogs: true
s3:
  endpoint: "seaweedfs.kubeflow.svc:9000"
  bucket: "mlpipeline"
  # It can reference workflow metadata such as `{{workflow.name}}/{{pod.name}}`.
  keyFormat: "private-artifacts/{{workflow.namespace}}/{{workflow.name}}/{{pod.name}}"
  insecure: true
"""
UI = {
    "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "ml-pipeline-ui"},
    "spec": {
        "selector": {"matchLabels": {"app": "ml-pipeline-ui"}},
        "template": {
            "metadata": {"labels": {"app": "ml-pipeline-ui"}},
            "spec": {
                "containers": [
                    {"name": "ml-pipeline-ui", "image": "ui",
                     "env": [{"name": "ARGO_ARCHIVE_LOGS", "value": "true"}]}
                ]
            },
        },
    },
}  # fmt: skip
CONTROLLER = {
    "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "workflow-controller-configmap"},
    "data": {"artifactRepository": REPOSITORY},
}  # fmt: skip


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_command_of_the_guide_chooses_the_operator_in_one_place(tmp_path, operator):
    shutil.copytree(K8S, tmp_path / "k8s")
    (command,) = re.findall(r"^sed -i .+components/\$OPERATOR.+$", GUIDE, re.M)
    for chosen in (operator, *OPERATORS, operator):  # and back again
        subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            check=True,
            env={**os.environ, "OPERATOR": chosen},
        )
    objects = build(tmp_path / "k8s" / "overlays" / "kind")
    kinds = {item["kind"] for item in objects}
    assert ("TrainingRuntime" in kinds) == (operator == "training-runtime")
    (quota,) = [item for item in objects if item["kind"] == "ResourceQuota"]
    counts = {name for name in quota["spec"]["hard"] if "jobs" in name and "train" in name}
    assert bool(counts) == (operator == "training-runtime")


def test_the_guide_installs_each_operator_and_waits_for_it():
    for operator in OPERATORS:
        assert GUIDE.count(f"{operator})") == 2


def test_with_the_component_logs_are_kept_under_a_key_that_the_ui_finds(tmp_path):
    for item in (UI, CONTROLLER):
        (tmp_path / f"{item['kind']}.yaml").write_text(yaml.safe_dump(item))
    component = os.path.relpath(K8S / "components" / "archived-logs", tmp_path)
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization",
        "resources": ["Deployment.yaml", "ConfigMap.yaml"], "components": [component],
    }  # fmt: skip
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    objects = {item["kind"]: item for item in build(tmp_path)}
    assert len(objects) == 2
    kept = yaml.safe_load(objects["ConfigMap"]["data"]["artifactRepository"])
    key = "private-artifacts/{{workflow.namespace}}/{{pod.name}}"
    before = yaml.safe_load(REPOSITORY)
    assert kept == {**before, "s3": {**before["s3"], "keyFormat": key}}
    (container,) = objects["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert {each["name"]: each["value"] for each in container["env"]} == {
        "ARGO_ARCHIVE_LOGS": "true", "ARGO_KEYFORMAT": key,
    }  # fmt: skip


def test_the_bucket_of_kind_is_made_without_a_retry_of_its_job():
    """A Job's retries back off to minutes."""
    job = yaml.safe_load((K8S / "components" / "object-store" / "job.yaml").read_text())
    (container,) = job["spec"]["template"]["spec"]["containers"]
    program = container["command"][-1]
    compile(program, "job", "exec")
    assert "time.sleep(2)" in program
