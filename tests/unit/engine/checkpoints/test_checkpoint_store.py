"""One behaviour, two shelves: a folder, and an object store with a folder before it."""

import logging
import shutil
from pathlib import Path
from urllib.parse import urlparse

import boto3
import pytest
from botocore.awsrequest import AWSResponse

from checkpoint_files import FILES, flip_a_bit, manifest, put, upload
from perennial.contracts.errors import PerennialError
from perennial.engine.checkpoints.checkpoint_store import (
    CheckpointStore,
    RemoteCheckpointStore,
    fetch_checkpoint,
    measured,
    newest_intact,
    open_checkpoint_store,
    quarantine_checkpoint,
)
from perennial.engine.checkpoints.folder import (
    MARKER,
    DamagedCheckpointError,
    checkpoint_path,
    partial_path,
)
from perennial.engine.handover import folder_for


@pytest.fixture(params=["folder", "store"])
def store(request, tmp_path, cache):
    if request.param == "folder":
        return open_checkpoint_store(str(tmp_path / "checkpoints"))
    return open_checkpoint_store(f"{request.getfixturevalue('bucket')}/training/checkpoints")


@pytest.fixture
def remote(bucket, cache) -> RemoteCheckpointStore:
    return RemoteCheckpointStore(f"{bucket}/training/checkpoints")


def objects(bucket: str) -> dict[str, bytes]:
    client, name = boto3.client("s3"), urlparse(bucket).netloc
    listed = client.list_objects_v2(Bucket=name).get("Contents", [])
    return {
        item["Key"].removeprefix("training/checkpoints/"): client.get_object(
            Bucket=name, Key=item["Key"]
        )["Body"].read()
        for item in listed
    }


def write_object(bucket: str, key: str, content: bytes) -> None:
    boto3.client("s3").put_object(
        Bucket=urlparse(bucket).netloc, Key=f"training/checkpoints/{key}", Body=content
    )


def test_what_was_committed_is_found_and_obtained(store):
    for step in (20, 10):
        put(store, step)
    assert store.steps() == [10, 20]
    assert store.fetch_verified(20).files.keys() == FILES.keys()
    found = fetch_checkpoint(store.uri_of(20))
    assert {name: (found / name).read_bytes() for name in FILES} == FILES


def test_what_was_handed_in_is_invisible_until_it_is_committed(store):
    upload(store, 10)
    assert store.steps() == []
    assert newest_intact(store, "f", {}) is None
    store.discard_uncommitted()
    assert list(store.folder.iterdir()) == []


def test_a_quarantined_checkpoint_of_a_record_is_not_found(store):
    for step in (10, 20):
        put(store, step)
    quarantine_checkpoint(store.uri_of(10))
    assert store.steps() == [20]
    # What `train_model` looks at before it takes a training for finished.
    with pytest.raises(DamagedCheckpointError, match="never committed"):
        store.manifest(10)


def test_a_second_quarantine_keeps_what_the_first_one_moved(tmp_path):
    store = CheckpointStore(tmp_path)
    put(store, 10)
    aside = Path(quarantine_checkpoint(store.uri_of(10)))
    with pytest.raises(FileNotFoundError):
        quarantine_checkpoint(store.uri_of(10))
    assert aside.is_dir()


def test_a_deleted_checkpoint_is_not_found(store):
    put(store, 10)
    put(store, 20)
    store.delete(10)
    assert store.steps() == [20]
    assert not checkpoint_path(store.folder, 10).exists()


def test_there_may_be_nothing_to_resume_from(store):
    store.discard_uncommitted()
    assert newest_intact(store, "f", {}) is None


def test_another_trainings_checkpoint_is_an_error_that_names_the_settings(store):
    put(store, 10, fingerprint="other", contract={"training": {"seed": 3}})
    with pytest.raises(PerennialError, match=r"training\.seed: 3 in the checkpoint, 4 now"):
        newest_intact(store, "f", {"training": {"seed": 4}})


def test_falls_back_over_several_damaged_checkpoints(tmp_path, caplog):
    store = CheckpointStore(tmp_path)
    for step in (10, 20, 30):
        put(store, step)
    for step, name in ((20, "__0_0.distcp"), (30, "__1_0.distcp")):
        flip_a_bit(checkpoint_path(tmp_path, step) / name)
    with caplog.at_level(logging.WARNING):
        assert newest_intact(store, "f", {}).step == 10
    assert caplog.text.count("falling back to the previous checkpoint") == 2
    assert (tmp_path / "step-00000030.damaged").is_dir()
    put(store, 20)
    assert newest_intact(store, "f", {}).step == 20


@pytest.mark.parametrize("name", ["__1_0.distcp", ".metadata", "checkpoint.json", MARKER])
def test_falls_back_over_an_object_that_was_changed(remote, bucket, cache, name, caplog):
    for step in (10, 20):
        put(remote, step)
    shutil.rmtree(cache)
    write_object(bucket, f"step-00000020/{name}", b"something else")
    with caplog.at_level(logging.WARNING):
        assert newest_intact(remote, "f", {}).step == 10
    assert "step-00000020 is damaged" in caplog.text
    assert remote.steps() == [10]
    remote.discard_uncommitted()
    assert "step-00000020/DAMAGED" in objects(bucket), "people may look at it"
    put(remote, 20)
    assert newest_intact(remote, "f", {}).step == 20


def test_an_older_checkpoint_that_cannot_be_read_is_no_candidate(tmp_path, caplog):
    store = CheckpointStore(tmp_path)
    for step in (10, 20):
        put(store, step, loss=float(step))
    flip_a_bit(checkpoint_path(tmp_path, 10) / "checkpoint.json")
    assert measured(store) == {20: {"loss": 20.0}}
    assert "step-00000010 is damaged" in caplog.text


def test_uploads_end_with_the_marker_and_deletions_begin_with_it(remote, bucket):
    calls = []
    for name in ("PutObject", "DeleteObject"):
        remote._store._client.meta.events.register(
            f"provide-client-params.s3.{name}",
            lambda params, model, **rest: calls.append((model.name, params["Key"])),
        )
    put(remote, 10)
    puts = [Path(key).name for operation, key in calls if operation == "PutObject"]
    assert puts[-2:] == ["checkpoint.json", MARKER]
    assert set(puts[:-2]) == FILES.keys()
    calls.clear()
    remote.delete(10)
    assert Path(calls[0][1]).name == MARKER
    assert objects(bucket) == {}


@pytest.mark.parametrize("left", [tuple(FILES), ("__1_0.distcp",), ("checkpoint.json",)])
def test_half_an_upload_is_cleaned_up(remote, bucket, left, caplog):
    put(remote, 10)
    for name in left:
        write_object(bucket, f"step-00000020/{name}", b"half")
    client, name = boto3.client("s3"), urlparse(bucket).netloc
    key = "training/checkpoints/step-00000020/__1_0.distcp"
    client.create_multipart_upload(Bucket=name, Key=key)
    remote.discard_uncommitted()
    assert "Uploads" not in client.list_multipart_uploads(Bucket=name)
    assert all(key.startswith("step-00000010/") for key in objects(bucket))
    assert remote.steps() == [10]
    assert "never" in caplog.text


def test_nothing_is_downloaded_that_this_machine_has_intact(remote, bucket):
    put(remote, 10)
    downloads = []
    remote._store._client.meta.events.register(
        "provide-client-params.s3.GetObject",
        lambda params, **rest: downloads.append(Path(params["Key"]).name),
    )
    remote.fetch_verified(10)
    assert set(downloads) == {"checkpoint.json", MARKER}
    flip_a_bit(checkpoint_path(remote.folder, 10) / "__1_0.distcp")
    downloads.clear()
    remote.fetch_verified(10)
    assert set(downloads) - {"checkpoint.json", MARKER} == {"__1_0.distcp"}
    local = checkpoint_path(remote.folder, 10)
    assert {name: (local / name).read_bytes() for name in FILES} == FILES


def test_another_machine_downloads_what_it_needs(remote, cache):
    put(remote, 10)
    shutil.rmtree(cache)
    remote.fetch_verified(10)
    local = checkpoint_path(remote.folder, 10)
    assert {name: (local / name).read_bytes() for name in FILES} == FILES
    assert not partial_path(remote.folder, 10).exists()


def test_files_of_two_machines_make_one_checkpoint(bucket, tmp_path):
    first, second = (
        RemoteCheckpointStore(f"{bucket}/training/checkpoints", tmp_path / name)
        for name in ("a", "b")
    )
    for store, name in ((first, "__0_0.distcp"), (second, "__1_0.distcp")):
        partial_path(store.folder, 10).mkdir(parents=True)
        (partial_path(store.folder, 10) / name).write_bytes(FILES[name])
        store.upload(10, [name])
    digests = dict.fromkeys(["__1_0.distcp"], "digest of the other machine")
    first.commit(manifest(10).model_copy(update={"files": digests}))
    assert first.manifest(10).files.keys() == {"__0_0.distcp", "__1_0.distcp"}
    with pytest.raises(DamagedCheckpointError, match="its SHA-256 is not digest of th"):
        second.fetch_verified(10)


def test_a_missing_object_is_damage(remote, bucket, cache):
    put(remote, 10)
    shutil.rmtree(cache)
    boto3.client("s3").delete_object(
        Bucket=urlparse(bucket).netloc, Key="training/checkpoints/step-00000010/__0_0.distcp"
    )
    with pytest.raises(DamagedCheckpointError, match=r"__0_0\.distcp is missing"):
        remote.fetch_verified(10)


def test_a_file_that_only_another_machine_sees_is_an_error(tmp_path):
    store = CheckpointStore(tmp_path)
    upload(store, 10)
    listed = dict.fromkeys(["__0_0.distcp", "__2_0.distcp"], "digest of its rank")
    with pytest.raises(PerennialError, match=r"other ranks wrote __2_0\.distcp, which are not in"):
        store.commit(manifest(10).model_copy(update={"files": listed}))
    assert store.steps() == []


def test_every_machine_forgets_copies_of_what_is_missing(bucket, tmp_path):
    first, second = (
        RemoteCheckpointStore(f"{bucket}/training/checkpoints", tmp_path / name)
        for name in ("a", "b")
    )
    for step in (10, 20):
        put(first, step)
        second.fetch_verified(step)
    partial_path(second.folder, 30).mkdir()
    first.delete(10)
    second.prune_copies(first.steps())
    assert [path.name for path in second.folder.iterdir()] == ["step-00000020"]


def test_without_the_right_to_list_uploads_training_goes_on(remote, caplog):
    denied = {"Error": {"Code": "AccessDenied", "Message": "not authorized"}}
    remote._store._client.meta.events.register(
        "before-call.s3.ListMultipartUploads",
        lambda **rest: (AWSResponse("", 403, {}, None), denied | {"ResponseMetadata": {}}),
    )
    upload(remote, 10)
    remote.discard_uncommitted()
    assert "cannot delete unfinished uploads" in caplog.text
    assert "AccessDenied" in caplog.text
    assert remote._store.list() == []


def test_addresses_have_folders_of_their_own(cache):
    first, second = (folder_for(f"s3://bucket/{name}/checkpoints") for name in ("a", "b"))
    assert first != second
    assert first.is_relative_to(cache)


def test_a_checkpoint_that_cannot_be_deleted_from_a_folder_reports_it(tmp_path):
    put(CheckpointStore(tmp_path), 10)
    shutil.rmtree(checkpoint_path(tmp_path, 10))
    with pytest.raises(OSError, match="No such file"):
        CheckpointStore(tmp_path).delete(10)


@pytest.mark.parametrize("name", ["exp#1", "what?", "a;b", "file: x", "plain"])
def test_a_folder_keeps_its_checkpoints_whatever_its_name(name, tmp_path):
    store = open_checkpoint_store(str(tmp_path / name / "checkpoints"))
    put(store, 10)
    assert {path.name for path in tmp_path.iterdir()} == {name}
    assert fetch_checkpoint(store.uri_of(10)) == tmp_path / name / "checkpoints/step-00000010"


def test_copies_of_two_stores_are_apart_whatever_their_names(cache):
    places = [f"s3://bucket/{key}/checkpoints" for key in ("a#1", "a#2", "a?1", "a", "a;1")]
    assert len({folder_for(place) for place in places}) == len(places)
    assert folder_for("s3://bucket/a/b/").parts[-3:] == ("bucket", "a", "b")
