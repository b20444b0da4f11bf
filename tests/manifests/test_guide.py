"""What the guide for kind does, as far as it can be done without a cluster: data, contract, deployment."""

import os
import re
import shutil
import subprocess
import sys

import boto3
import pytest

from cluster_manifests import K8S, ROOT, build, needs_kubectl
from deployments import DIGEST
from perennial.cli import main
from perennial.contract import load_contract
from perennial.deployment.profile import load_profile
from pipeline_server import pipeline_server

FLIGHTS = ROOT / "examples" / "flights"
CLUSTER_CONTRACT = FLIGHTS / "kind.toml"
GUIDE = (K8S / "install.md").read_text()
BLOCKS = re.findall(r"^```\n(.+?)^```", GUIDE, re.M | re.S)
OPERATORS = ("monitoring.coreos.com", "kueue.x-k8s.io")


def test_the_contract_of_the_cluster_is_the_example_elsewhere_and_smaller():
    first, second = (
        load_contract(path).model_dump(mode="json")
        for path in (FLIGHTS / "contract.toml", CLUSTER_CONTRACT)
    )
    assert {name for name in first if first[name] != second[name]} == {"data", "resources"}
    assert second["data"] == first["data"] | {"uri": "s3://perennial/flights"}
    changed = {"cpus_per_process": 0.5, "memory_gib_per_process": 1.0}
    assert second["resources"] == first["resources"] | {
        "cluster": first["resources"]["cluster"] | changed
    }
    bucket_ = load_profile(K8S / "overlays" / "kind" / "profile.toml").stores.store_uri
    assert bucket_.startswith("s3://perennial/")
    assert str(CLUSTER_CONTRACT.relative_to(ROOT)) in GUIDE


def test_the_contract_is_deployed_with_the_profile_as_the_guide_says(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.path", [*sys.path])
    overlay = tmp_path / "kind"
    shutil.copytree(K8S / "overlays" / "kind", overlay)
    profile = overlay / "profile.toml"
    where = ["deploy", str(CLUSTER_CONTRACT), "--profile", str(profile)]
    with pipeline_server() as (server, url):
        profile.write_text(profile.read_text().replace("http://localhost:8888", url))
        assert main([*where, "--dry-run"]) == 2
        assert "never pinned" in capsys.readouterr().err
        pinned = [
            f"{name}=localhost:5001/{name}@{DIGEST}" for name in ("data", "trainer", "control")
        ]
        subprocess.run(
            [sys.executable, str(K8S / "pin_images.py"), str(overlay), *pinned],
            check=True, capture_output=True,
        )  # fmt: skip
        assert main([*where, "--dry-run", "--diff"]) == 0
        message = capsys.readouterr().out
        assert "would create the schedule 'flights-late monitoring' (0 * * * *)" in message
        assert server.mutations == []
        assert main(where) == 0
        assert len(server.enabled("monitoring")) == 1


def run(*arguments):
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=ROOT, env=os.environ,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_months_are_uploaded_once_and_a_new_one_later(bucket, tmp_path):
    keys = [f"month=2013-0{month}/flights.parquet" for month in (1, 2, 3)]
    for key in keys[:2]:
        (tmp_path / key).parent.mkdir()
        (tmp_path / key).write_bytes(key.encode())
    address = f"{bucket}/flights"
    code, message = run("examples/upload.py", tmp_path, address)
    assert (code, message.splitlines()) == (0, [*keys[:2], f"2 files sent to {address}"])
    (tmp_path / keys[2]).parent.mkdir()
    (tmp_path / keys[2]).write_bytes(b"April")
    code, message = run("examples/upload.py", tmp_path, address)
    assert (code, message.splitlines()) == (0, [keys[2], f"1 files sent to {address}"])
    listed = boto3.client("s3").list_objects_v2(Bucket=bucket.removeprefix("s3://"))["Contents"]
    assert [item["Key"] for item in listed] == [f"flights/{key}" for key in keys]
    code, message = run("examples/upload.py", tmp_path / "nothing", address)
    assert code == 2
    assert "there is no Parquet file" in message


@pytest.fixture
def copy(tmp_path):
    shutil.copytree(K8S, tmp_path / "k8s")
    return tmp_path


@needs_kubectl
@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_names_are_replaced_everywhere_by_the_command_of_the_guide(copy, overlay):
    joined = GUIDE.replace("\\\n", " ")
    (command,) = re.findall(rf"^sed -i .+ k8s/overlays/{overlay}/.+$", joined, re.M)
    placeholders = re.findall(r"YOUR-\w+", command)
    for placeholder in placeholders:
        command = command.replace(placeholder, placeholder.lower())
    subprocess.run(["bash", "-c", command], cwd=copy, check=True)
    folder = copy / "k8s" / "overlays" / overlay
    profiles = [load_profile(folder / name) for name in ("profile.toml", "watcher.toml")]
    text = str(build(folder)) + "".join(each.to_json() for each in profiles)
    assert placeholders
    assert [name for name in placeholders if name.lower() not in text] == []
    for old in ("perennial-staging", "perennial-production", "forecasting", "eu-central-1"):
        assert old not in text
    assert all(each.stores.store_uri == "s3://your-bucket/store" for each in profiles)


@needs_kubectl
@pytest.mark.parametrize("overlay", ["staging", "production"])
def test_an_overlay_is_built_without_the_operators_that_a_cluster_lacks(copy, overlay):
    file = copy / "k8s" / "overlays" / overlay / "kustomization.yaml"
    text = file.read_text()
    for component in ("monitoring", "exporter", "queueing"):
        text = text.replace(f"  - ../../components/{component}\n", "")
    text = re.sub(
        r"  - target: \{ kind: ClusterQueue.+?(?=  #|  - target|\Z)", "", text, flags=re.S
    )
    file.write_text(text)
    assert [item for item in build(file.parent) if item["apiVersion"].startswith(OPERATORS)] == []


@pytest.mark.parametrize("block", BLOCKS, ids=lambda text: text.split("\n")[0][:40])
def test_commands_are_ones_that_a_shell_can_read(block):
    done = subprocess.run(["bash", "-n"], input=block, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_python_files_and_folders_that_the_guide_names_exist():
    named = re.findall(
        r"(?<![\w/.])((?:k8s|examples|images)/[\w/.-]+\.(?:py|toml|hcl|yaml|md))", GUIDE
    )
    assert named
    assert [path for path in set(named) if not (ROOT / path).exists()] == []
    for overlay in re.findall(r"kubectl apply -k (k8s/\S+)", GUIDE):
        assert (ROOT / overlay / "kustomization.yaml").exists()


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"^perennial ([a-z]+)", GUIDE, re.M))))
def test_verbs_of_the_guide_exist(verb, capsys):
    assert main([verb, "--help"]) == 0
