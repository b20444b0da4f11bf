"""One contract, two stores: a local folder and the S3 protocol (a real server of it)."""

import io
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from urllib3 import HTTPResponse

from flushes import recorded_flushes
from perennial.clients import file_tree
from perennial.clients.object_store import (
    ConflictError,
    LocalObjectStore,
    ObjectStore,
    StoredObject,
    copy_tree,
    open_store,
    sha256_of_file,
)
from perennial.clients.s3_store import S3ObjectStore
from perennial.contracts.errors import PerennialError
from perennial.validate_data.suites.document import read_suite_file
from ports import get_free_port


@pytest.fixture(params=["local", "s3"])
def store(request, tmp_path) -> ObjectStore:
    if request.param == "local":
        return open_store(str(tmp_path / "store"))
    return open_store(f"{request.getfixturevalue('bucket')}/some/prefix/")


def test_lists_nothing_where_nothing_was_written(store):
    assert store.list() == []
    assert store.read("a") is None


def test_lists_by_prefix_in_key_order_with_sizes(store):
    for key in ("b/2", "a/1", "b/10", "bc"):
        store.write(key, key.encode())
    assert store.list("b") == [
        StoredObject("b/10", 4),
        StoredObject("b/2", 3),
        StoredObject("bc", 2),
    ]
    assert [item.key for item in store.list()] == ["a/1", "b/10", "b/2", "bc"]


def test_hides_keys_with_a_part_that_starts_with_a_dot(store):
    for key in (".hidden", "a/.partial", ".git/x", "a/shown"):
        store.write(key, b"")
    assert [item.key for item in store.list()] == ["a/shown"]


def test_a_listing_enters_only_folders_that_may_hold_what_is_asked_for(tmp_path, monkeypatch):
    """Beside a run's few files lie those of all others, a lock of each and a disk's lost+found."""
    store, entered = LocalObjectStore(tmp_path), []
    for key in ("scoring/1/a/x", "scoring/10/x", "training/1/x", "lost+found/x"):
        store.write(key, b"")
    scan = os.scandir
    monkeypatch.setattr(file_tree.os, "scandir", lambda path: entered.append(path) or scan(path))
    assert [item.key for item in store.list("scoring/1/")] == ["scoring/1/a/x"]
    places = [str(each.relative_to(tmp_path)) for each in entered]
    assert places == [".", "scoring", "scoring/1", "scoring/1/a"]


def test_the_stores_prefix_is_a_folder_not_a_beginning(bucket):
    open_store(f"{bucket}/run-10").write("x", b"other")
    assert open_store(f"{bucket}/run-1").list() == []


def test_lists_more_objects_than_a_page_of_the_protocol(bucket, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "2")  # 1,000, as the protocol has it, takes 10 s
    assert boto3.client("s3").list_objects_v2(Bucket=bucket.removeprefix("s3://"))["MaxKeys"] == 2
    store = open_store(bucket)
    for index in range(5):
        store.write(f"k{index}", b"")
    assert [found.key for found in store.list()] == [f"k{index}" for index in range(5)]


def test_a_file_that_is_removed_while_a_folder_is_listed_is_not_listed(tmp_path, monkeypatch):
    store = LocalObjectStore(tmp_path)
    for key in ("a", "b"):
        store.write(key, b"x")
    describe = file_tree._describe

    def remove_before_the_look(entry, key, **options):
        if entry.name == "a":
            Path(entry.path).unlink()
        return describe(entry, key, **options)

    monkeypatch.setattr(file_tree, "_describe", remove_before_the_look)
    assert [item.key for item in store.list()] == ["b"]


def test_locks_are_not_listed(tmp_path):
    store = LocalObjectStore(tmp_path)
    store.write("a", b"1")
    assert (tmp_path / ".locks").is_dir()
    assert [entry.key for entry in store.list_everything()] == ["a"]


def test_a_write_replaces_the_content(store):
    store.write("a", b"old")
    store.write("a", b"new")
    assert store.read("a") == b"new"


def test_delete_forgives_a_missing_object(store):
    store.write("a", b"x")
    store.delete("a")
    store.delete("a")
    assert store.read("a") is None


@pytest.mark.parametrize("stored", [None, b"old"])
def test_replace_writes_over_what_the_writer_had_read(store, stored):
    if stored is not None:
        store.write("a", stored)
    store.replace("a", b"new", previous=stored)
    assert store.read("a") == b"new"


@pytest.mark.parametrize(
    ("stored", "previous"), [(b"theirs", b"old"), (b"theirs", None), (None, b"old")]
)
def test_replace_refuses_when_someone_wrote_in_between(store, stored, previous):
    if stored is not None:
        store.write("a", stored)
    with pytest.raises(ConflictError):
        store.replace("a", b"mine", previous=previous)
    assert store.read("a") == stored


def test_of_many_concurrent_creators_one_wins(store):
    outcomes = []

    def create(name: bytes) -> None:
        try:
            store.replace("lock", name, previous=None)
            outcomes.append(name)
        except ConflictError:
            pass

    threads = [threading.Thread(target=create, args=(b"%d" % index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [store.read("lock")]


def test_s3_refuses_a_write_that_lost_between_reading_and_writing(bucket):
    store = S3ObjectStore(bucket.removeprefix("s3://"))
    store.write("a", b"old")

    class Interrupted(S3ObjectStore):
        def _read_tagged(self, key: str) -> tuple[bytes | None, str | None]:
            found = super()._read_tagged(key)
            store.write(key, b"theirs")
            return found

    with pytest.raises(ConflictError):
        Interrupted(store.bucket).replace("a", b"mine", previous=b"old")
    assert store.read("a") == b"theirs"


def test_fetch_gives_a_file_with_the_content(store, tmp_path):
    store.write("month=1/x.parquet", b"content")
    path = store.fetch("month=1/x.parquet", tmp_path / "cache")
    assert path.read_bytes() == b"content"
    assert path.name.endswith("x.parquet")


def test_fetch_sees_new_content_in_spite_of_the_cache(store, tmp_path):
    store.write("x", b"old")
    assert store.fetch("x", tmp_path / "cache").read_bytes() == b"old"
    store.write("x", b"new")
    assert store.fetch("x", tmp_path / "cache").read_bytes() == b"new"


def test_fetch_does_not_download_twice(bucket, tmp_path):
    store, downloads = open_store(bucket), []
    store.write("x", b"content")
    store._client.meta.events.register(
        "before-call.s3.GetObject", lambda **call: downloads.append(call)
    )
    assert store.fetch("x", tmp_path) == store.fetch("x", tmp_path)
    assert len(downloads) == 1


def test_a_damaged_copy_is_downloaded_again(bucket, tmp_path):
    store = open_store(bucket)
    store.write("x", b"content")
    store.fetch("x", tmp_path).write_bytes(b"c0ntent")
    assert store.fetch("x", tmp_path).read_bytes() == b"content"


def test_concurrent_fetches_of_one_object_all_get_it_whole(bucket, tmp_path):
    content = bytes(range(256)) * 4096
    open_store(bucket).write("x", content)
    found: list[bytes] = []

    # A store each, as every worker process of a machine has one; they share the cache.
    def fetch() -> None:
        found.append(open_store(bucket).fetch("x", tmp_path).read_bytes())

    threads = [threading.Thread(target=fetch) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [content] * 4
    assert len(list(tmp_path.iterdir())) == 1


def test_fetch_of_a_missing_object_names_it(store, tmp_path):
    with pytest.raises(PerennialError, match=r"gone\.parquet does not exist any more"):
        store.fetch("gone.parquet", tmp_path)


def test_a_bucket_that_does_not_exist_is_named_with_what_to_check(bucket):
    with pytest.raises(PerennialError, match="AWS_ENDPOINT_URL_S3") as caught:
        open_store("s3://no-such-bucket/data").list()
    assert "s3://no-such-bucket/data" in caught.value.problem


def test_a_server_that_does_not_answer_is_explained(bucket, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{get_free_port()}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(PerennialError, match="cannot read from s3://"):
        open_store(bucket).read("x")


def test_an_unreadable_folder_is_an_error_not_an_empty_store(tmp_path, as_nobody):
    folder = tmp_path / "closed" / "data"
    folder.mkdir(parents=True)
    (folder / "x.parquet").write_bytes(b"")
    folder.parent.chmod(0o700)
    with as_nobody, pytest.raises(PerennialError, match="cannot read the folder"):
        LocalObjectStore(folder).list()


def test_a_folder_that_was_moved_to_another_disk_and_linked_is_listed(tmp_path):
    store = LocalObjectStore(tmp_path / "store")
    keys = ["training/a/result.json", "training/a/steps/1", "trials/1"]
    for key in [*keys, ".hidden/x", "training/.part"]:
        store.write(key, b"x")
    (tmp_path / "store" / "training").rename(tmp_path / "moved")
    (tmp_path / "store" / "training").symlink_to(tmp_path / "moved")
    (tmp_path / "moved" / "a" / "loop").symlink_to(tmp_path / "moved")
    (tmp_path / "moved" / "broken").symlink_to(tmp_path / "nowhere")
    assert [item.key for item in store.list()] == keys
    assert [item.key for item in store.list("training/a/s")] == keys[1:2]
    for item in store.list("training/"):
        store.delete(item.key)
    assert [item.key for item in store.list()] == ["trials/1"]


@pytest.mark.hostile
@pytest.mark.parametrize("kind", ["pipe", "endless device"])
def test_a_record_that_never_ends_is_refused_instead_of_read(tmp_path, kind):
    path = tmp_path / "record.json"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    store = LocalObjectStore(tmp_path)
    for read in (
        store.read,
        lambda key: store.first_bytes(key, 4),
        lambda _: read_suite_file(path),
    ):
        with pytest.raises(PerennialError, match="is not a regular file") as caught:
            read(path.name)
        assert caught.value.action


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_opens_local_folders(tmp_path, form):
    store = open_store(form.format(tmp_path))
    store.write("a/b", b"x")
    assert (tmp_path / "a" / "b").read_bytes() == b"x"
    assert store.uri == str(tmp_path)


def test_refuses_other_schemes():
    with pytest.raises(PerennialError, match=r"'gs'\n.*s3://bucket/prefix"):
        open_store("gs://bucket")


def test_copy_tree_replaces_what_was_there(tmp_path):
    source, target = tmp_path / "source", tmp_path / "deep" / "target"
    (source / "below").mkdir(parents=True)
    (source / "below" / "x").write_text("new")
    target.mkdir(parents=True)
    (target / "stale").write_text("old")
    copy_tree(source, target)
    files = [path for path in target.rglob("*") if path.is_file()]
    assert files == [target / "below" / "x"]
    copy_tree(source / "below" / "x", target)
    assert target.read_text() == "new"


def test_sha256_of_file_is_that_of_its_bytes(tmp_path):
    path = Path(tmp_path / "x")
    path.write_bytes(b"abc")
    assert sha256_of_file(path).startswith("ba7816bf8f01cfea")


def test_a_file_goes_up_and_comes_down_in_parts(store, tmp_path, monkeypatch):
    content = os.urandom(33 * 1024 * 1024)
    (tmp_path / "file").write_bytes(content)
    store.upload("a/big", tmp_path / "file")
    store.download("a/big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    assert store.list() == [StoredObject("a/big", len(content))]
    (tmp_path / "file").write_bytes(b"small")
    store.upload("a/big", tmp_path / "file")
    assert store.read("a/big") == b"small"


def test_a_large_file_goes_up_with_little_memory(bucket, tmp_path):
    parts = []
    store = open_store(bucket)
    store._client.meta.events.register(
        "before-call.s3.UploadPart", lambda params, **rest: parts.append(params["body"])
    )
    (tmp_path / "file").write_bytes(bytes(40 * 1024 * 1024))
    store.upload("a", tmp_path / "file")
    assert len(parts) == 3
    assert not any(isinstance(part, bytes) for part in parts), "streams, not content in memory"


def test_a_part_that_fails_is_sent_again(bucket, tmp_path):
    store = open_store(bucket)
    failed = []

    def fail_once(request, **rest):
        if not failed and "partNumber=2" in request.url:
            failed.append(request.url)
            return AWSResponse(
                request.url, 503, {}, HTTPResponse(io.BytesIO(), preload_content=False)
            )
        return None

    store._client.meta.events.register("before-send.s3.UploadPart", fail_once)
    (tmp_path / "file").write_bytes(os.urandom(20 * 1024 * 1024))
    store.upload("a", tmp_path / "file")
    assert len(failed) == 1
    assert store.read("a") == (tmp_path / "file").read_bytes()


def test_a_store_that_refuses_an_upload_is_explained(bucket, tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with pytest.raises(PerennialError, match="cannot write to s3://nobodys-bucket"):
        open_store("s3://nobodys-bucket").upload("a", tmp_path / "file")


def test_downloading_what_is_not_there_is_an_error(store, tmp_path):
    with pytest.raises(PerennialError, match="does not exist any more"):
        store.download("none", tmp_path / "copy")


def test_uploads_that_never_ended_are_unseen_and_forgotten(bucket):
    store, client = open_store(f"{bucket}/mine"), boto3.client("s3")
    name = bucket.removeprefix("s3://")
    for key in ("mine/step-1/shard", "others/step-1/shard"):
        begun = client.create_multipart_upload(Bucket=name, Key=key)
        client.upload_part(
            Bucket=name, Key=key, UploadId=begun["UploadId"], PartNumber=1, Body=b"half"
        )
    assert store.list() == []
    assert store.discard_uploads("step-") == 1
    left = client.list_multipart_uploads(Bucket=name)["Uploads"]
    assert [upload["Key"] for upload in left] == ["others/step-1/shard"]


@pytest.fixture
def made_clients(monkeypatch):
    """The clients that are made, each slowly."""
    make, made = boto3.client, []

    def client(*args, **options):
        time.sleep(0.01)
        made.append(make(*args, **options))
        return made[-1]

    monkeypatch.setattr(boto3, "client", client)
    return made


def test_stores_that_threads_open_at_once_share_a_client(bucket, made_clients):
    """boto3 documents its default session, which makes clients, as one for a single thread."""
    with ThreadPoolExecutor(8) as threads:
        stores = list(threads.map(lambda number: open_store(f"{bucket}/{number}"), range(8)))
    assert (len(stores), len(made_clients)) == (8, 1)


def test_a_fork_and_other_variables_get_a_client_of_their_own(bucket, made_clients, monkeypatch):
    open_store(bucket).write("a", b"mine")

    def read() -> None:
        assert open_store(bucket).read("a") == b"mine"
        assert len(made_clients) == 2

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join()
    assert child.exitcode == 0
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://elsewhere")
    open_store(bucket)
    assert [one.meta.endpoint_url for one in made_clients][1:] == ["http://elsewhere"]


def test_an_upload_into_a_folder_is_on_disk_before_a_marker_is(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"content")
    store, flushed = open_store(str(tmp_path / "store")), recorded_flushes(monkeypatch)
    store.upload("step-1/shard", tmp_path / "file")
    uploaded = tmp_path / "store" / "step-1"
    assert [path.stat().st_ino for path in (uploaded / "shard", uploaded)] == flushed


def test_a_copy_into_a_folder_that_was_cut_short_is_forgotten(tmp_path):
    store = open_store(str(tmp_path))
    for key in ("step-1/.shard.uploading", "other/.shard.uploading"):
        store.write(key, b"half")
    assert store.discard_uploads("step-") == 1
    assert store.read("other/.shard.uploading") == b"half"
