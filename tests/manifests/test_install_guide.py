"""The install guide's commands, all of them, in order, against stand-ins for cluster and registry."""

import json
import os
import re
import shutil
import subprocess

import boto3
import pytest

from cluster_manifests import K8S, ROOT, needs_kubectl
from pipeline_server import pipeline_server
from standin_cluster import PROMETHEUS, TRAINER, write_tools

GUIDE = (K8S / "install.md").read_text()
KIND = ("The command line", "On kind", "Images", "Secrets", "Perennial", "A model")
COPIED = ("k8s", "examples", "images", "pyproject.toml", "constraints.txt")


def blocks_of(heading):
    """The commands below a heading."""
    (part,) = re.findall(rf"^##+ {heading}[^\n]*\n(.*?)(?=^##|\Z)", GUIDE, re.M | re.S)
    return re.findall(r"^```\n(.+?)^```", part, re.M | re.S)


def test_every_block_of_commands_is_run_by_a_test_here():
    headings = re.findall(r"^##+ (.+)$", GUIDE, re.M)
    with_commands = {each for each in headings if blocks_of(re.escape(each))}
    known = (*KIND, "On a managed cluster", "Without a Prometheus operator", "In a Kubeflow")
    assert [each for each in with_commands if not each.startswith(known)] == []


@pytest.fixture
def shell(tmp_path, s3_endpoint, monkeypatch):
    """Runs commands as the guide's reader does; returns their output, and what they left."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_endpoint)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    clone = tmp_path / "clone"
    for name in COPIED:
        source = ROOT / name
        copy = shutil.copytree if source.is_dir() else shutil.copy
        clone.mkdir(exist_ok=True)
        copy(source, clone / name)
    shutil.rmtree(clone / "examples" / "flights" / "data", ignore_errors=True)
    write_tools(tmp_path / "bin")
    state = tmp_path / "state.json"
    environment = os.environ | {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "REAL_KUBECTL": shutil.which("kubectl"),
        "STANDIN_STATE": str(state),
        "CLONE": str(clone),
        "KUBECONFIG": str(tmp_path / "none"),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("PERENNIAL_PROFILE", None)
    with pipeline_server() as (server, url):

        def end_runs(number, call):
            if re.match(r"GET /apis/v2beta1/runs/", call):
                for each in server.runs.values():
                    each["state"] = "SUCCEEDED"

        server.before = end_runs

        def run(blocks, **replaced):
            for profile in clone.rglob("profile.toml"):
                text = profile.read_text().replace("http://localhost:8888", url)
                profile.write_text(text.replace("https://kubeflow.example/pipeline", url))
            text = "\n".join(blocks).replace("http://localhost:8333", s3_endpoint)
            for old, new in replaced.items():
                text = text.replace(old.replace("_", "-"), new)
            script = tmp_path / "commands.sh"
            script.write_text(f"set -euxo pipefail\n{text}\nwait\n")
            done = subprocess.run(
                ["bash", str(script)], cwd=tmp_path, env=environment, capture_output=True,
                text=True, check=False, timeout=280,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr[-3000:]
            return done.stdout, json.loads(state.read_text()), server

        run.state = state
        yield run
    client = boto3.client("s3")
    for name in ("perennial", "acme-models"):
        for item in (
            client.list_objects_v2(Bucket=name).get("Contents", ()) if exists(client, name) else ()
        ):
            client.delete_object(Bucket=name, Key=item["Key"])
        if exists(client, name):
            client.delete_bucket(Bucket=name)


def exists(client, bucket):
    return bucket in [each["Name"] for each in client.list_buckets()["Buckets"]]


@needs_kubectl
@pytest.mark.full
@pytest.mark.parametrize("operator", ["training-runtime", "pytorchjobs"])
def test_from_a_clone_to_a_monitored_model_on_kind(shell, operator):
    blocks = [block for heading in KIND for block in blocks_of(heading)]
    printed, state, server = shell(blocks, **{"OPERATOR=training-runtime": f"OPERATOR={operator}"})
    kinds = {key.partition("/")[0] for key in state["objects"]}
    assert ("TrainingRuntime" in kinds) == (operator == "training-runtime")
    assert ("PyTorchJob" in state["kinds"]) == (operator == "pytorchjobs")
    key = state["objects"]["ConfigMap/kubeflow/workflow-controller-configmap"]["data"]["keyFormat"]
    assert key == "private-artifacts/{{workflow.namespace}}/{{pod.name}}"
    assert state["objects"]["Deployment/kubeflow/ml-pipeline-ui"]["env"] == f"ARGO_KEYFORMAT={key}"
    assert len(server.enabled("monitoring")) == 1
    assert [run["state"] for run in server.runs.values()] == ["SUCCEEDED"]
    assert "would create the schedule 'flights-late monitoring'" in printed
    assert "month=2013-04" in printed
    assert printed.rstrip().splitlines()[-1].startswith("    ") or "succeeded" in printed


@needs_kubectl
def test_the_wrong_operator_ends_at_once_with_the_kind_that_is_missing(shell, tmp_path):
    shell.state.write_text(
        json.dumps({"objects": {"Namespace//default": {}, "Namespace//kubeflow": {}}})
    )
    with pytest.raises(AssertionError, match='no matches for kind "TrainingRuntime"'):
        shell(["cd clone", "kubectl apply -k k8s/overlays/kind"])


@needs_kubectl
@pytest.mark.full
def test_without_its_secrets_the_object_store_is_never_ready(shell):
    blocks = [block for heading in KIND if heading != "Secrets" for block in blocks_of(heading)]
    with pytest.raises(AssertionError, match="secret perennial-object-store has no key"):
        shell(
            ['kubectl() { command kubectl "$@"; }', *blocks],
            **{
                "kubectl apply -k k8s": "kubectl apply -f k8s/components/own-namespace/namespace.yaml\nkubectl apply -k k8s"
            },
        )


@needs_kubectl
@pytest.mark.full
def test_on_a_managed_cluster_with_a_bucket_of_the_cloud(shell):
    boto3.client("s3").create_bucket(Bucket="acme-models")
    kubeflow, operator, _ = blocks_of("On kind")
    prepare = "python examples/flights/prepare.py examples/flights/data --months 1"
    asked, installed = blocks_of("Without a Prometheus operator")
    blocks = [
        *blocks_of("The command line"), kubeflow, operator, *blocks_of("Images"), prepare,
        f"if {asked.strip()}; then exit 9; fi", installed, asked,
        *blocks_of("On a managed cluster"),
    ]  # fmt: skip
    _, state, server = shell(blocks, YOUR_BUCKET="acme-models", YOUR_REGION="eu-west-1")
    assert {"PodMonitor", "ServiceMonitor", "PrometheusRule"} <= {
        key.partition("/")[0] for key in state["objects"]
    }
    assert len(server.enabled("monitoring")) == 1
    assert (
        boto3.client("s3").list_objects_v2(Bucket="acme-models", Prefix="flights/")["KeyCount"] == 1
    )


@needs_kubectl
@pytest.mark.full
def test_in_a_kubeflow_distribution_with_a_token(shell):
    boto3.client("s3").create_bucket(Bucket="acme-models")
    there = [
        "Namespace//default",
        "Namespace//team-a",
        "Profile//team-a",
        "ServiceAccount/team-a/default-editor",
    ]
    kinds = [*TRAINER, *PROMETHEUS, "ResourceFlavor", "ClusterQueue", "LocalQueue"]
    shell.state.write_text(json.dumps({"objects": {each: {} for each in there}, "kinds": kinds}))
    prepare = "python examples/flights/prepare.py examples/flights/data --months 1"
    blocks = [
        *blocks_of("The command line"),
        *blocks_of("Images"),
        prepare,
        *blocks_of("In a Kubeflow"),
    ]
    names = {
        "YOUR_TEAM": "team-a",
        "YOUR_BUCKET": "acme-models",
        "YOUR_REGION": "eu-west-1",
        "YOUR_GATEWAY": "gateway.acme",
    }
    _, state, server = shell(blocks, **names)
    assert server.headers[-1]["Authorization"].startswith("Bearer ")
    assert "Secret/team-a/registry" in state["objects"]
    assert len(server.enabled("monitoring")) == 1
