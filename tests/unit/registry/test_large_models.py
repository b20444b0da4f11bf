"""Weights go to S3 once, whole, and the version refers to them there."""

from urllib.parse import urlparse

import boto3
import pytest

from adapter_versions import write_adapter
from perennial.clients.tracking import open_mlflow, open_tracking
from perennial.contracts.environment import Environment
from perennial.contracts.errors import DamagedModelError
from perennial.contracts.training import Challenger
from perennial.engine.export import load_model
from perennial.register_model.step import register_model_step
from perennial.registry.model_registry import CHAMPION, open_registry
from registration_inputs import NAME, step_arguments, write_inputs
from small_models import GOOD, stream, write_snapshot

UPLOADS = ("PutObject", "CopyObject", "CreateMultipartUpload", "UploadPart")


@pytest.fixture
def on_s3(environment, bucket, monkeypatch):
    """A home whose object store is a bucket."""
    monkeypatch.setenv("PERENNIAL_STORE_URI", f"{bucket}/home")
    return Environment.read()


@pytest.fixture
def sent(monkeypatch):
    """The requests that wrote to S3: each with its key."""
    requests, make = [], boto3.session.Session.client

    def client(*arguments, **options):
        made = make(*arguments, **options)

        def record(params, model, **_):
            if model.name in UPLOADS:
                requests.append(f"{model.name} {params['url_path'].lstrip('/')}")

        if made.meta.service_model.service_name == "s3":
            made.meta.events.register("before-call.s3", record)
        return made

    monkeypatch.setattr(boto3.session.Session, "client", client)
    return requests


def register(folder, monkeypatch, run_id="run-1"):
    monkeypatch.setenv("PERENNIAL_RUN_ID", run_id)
    register_model_step(**step_arguments(folder))


def weights(sent):
    return [request for request in sent if request.endswith("model.safetensors")]


def test_weights_are_sent_once_and_the_version_refers_to_them(
    on_s3, tmp_path, monkeypatch, sent, bucket
):
    challenger = write_inputs(tmp_path)
    register(tmp_path, monkeypatch)
    register(tmp_path, monkeypatch, run_id="run-2")
    assert len(weights(sent)) == 1, sent
    registry = open_registry(on_s3)
    version = registry.version_by_alias(NAME, CHAMPION)
    assert version.source.startswith(f"{bucket}/home/")
    assert f"{bucket}/{weights(sent)[0].split()[1]}" == f"{version.source}/model.safetensors"
    folder = registry.download(version, tmp_path / "downloads")
    assert Challenger.read(folder).weights_sha256 == challenger.weights_sha256
    load_model(folder)


@pytest.mark.parametrize("name", ["model.safetensors", "snapshot.json"])
def test_a_bit_that_flips_in_the_bucket_is_found(on_s3, tmp_path, monkeypatch, name):
    write_inputs(tmp_path)
    register(tmp_path, monkeypatch)
    registry = open_registry(on_s3)
    version = registry.version_by_alias(NAME, CHAMPION)
    place = urlparse(f"{version.source}/{name}")
    client = boto3.client("s3")
    content = bytearray(client.get_object(Bucket=place.netloc, Key=place.path[1:])["Body"].read())
    content[-2] ^= 1
    client.put_object(Bucket=place.netloc, Key=place.path[1:], Body=bytes(content))
    with pytest.raises(DamagedModelError, match=f"version 1 is damaged: {name}"):
        registry.download(version, tmp_path / "downloads")
    client.delete_object(Bucket=place.netloc, Key=place.path[1:])
    with pytest.raises(DamagedModelError, match=f"version 1 is damaged: {name}"):
        registry.download(version, tmp_path / "downloads")


def test_the_base_of_an_adapter_is_fetched_from_the_bucket_by_digest(environment, tmp_path, bucket):
    folder = tmp_path / "adapter"
    made = write_adapter(folder, write_snapshot(tmp_path / "data", stream(days=30)), GOOD)
    (digest,) = made.base.origin.files.values()
    (file,) = (tmp_path / "store" / "initial").iterdir()
    initial = made.initial.model_copy(update={"store_uri": f"{bucket}/home"})
    made.model_copy(update={"initial": initial}).write(folder)
    content, place = file.read_bytes(), {"Bucket": bucket[5:], "Key": f"home/initial/{file.name}"}
    file.unlink()
    client = boto3.client("s3")
    with pytest.raises(DamagedModelError, match=f"gone from the store: initial/{digest}"):
        load_model(folder)
    client.put_object(**place, Body=content[:-1] + b"x")
    with pytest.raises(DamagedModelError, match="is not the file that was pinned"):
        load_model(folder)
    client.put_object(**place, Body=content)
    load_model(folder)


def test_an_attempt_that_died_after_the_weights_does_not_send_them_again(
    on_s3, tmp_path, monkeypatch, sent
):
    write_inputs(tmp_path)
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"w" * 1000)
    (folder / "notes.json").write_text("1")
    tracking = open_tracking(on_s3, NAME)
    for notes in ("1", "2"):
        (folder / "notes.json").write_text(notes)
        tracking.log_artifacts(folder, "model-1", settled=("model.safetensors",))
    assert len(weights(sent)) == 1
    assert len([request for request in sent if request.endswith("notes.json")]) == 2
    (folder / "model.safetensors").write_bytes(b"w" * 1001)  # nobody's whole file
    tracking.log_artifacts(folder, "model-1", settled=("model.safetensors",))
    assert len(weights(sent)) == 2


def test_a_server_that_passes_files_on_is_bypassed(on_s3, tmp_path, monkeypatch, sent, bucket):
    """Such a server's experiment places its files behind itself."""
    client = open_mlflow(on_s3)
    client.create_experiment(NAME, "mlflow-artifacts:/1")
    write_inputs(tmp_path)
    register(tmp_path, monkeypatch)
    version = open_registry(on_s3).version_by_alias(NAME, CHAMPION)
    assert version.source.startswith(f"{bucket}/home/mlflow-artifacts/{NAME}/")
    load_model(open_registry(on_s3).download(version, tmp_path / "downloads"))
    assert len(weights(sent)) == 1
