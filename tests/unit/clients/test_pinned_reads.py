"""Reads are pinned to the listed version: its bytes, a named error, or bounded attempts."""

import hashlib
from dataclasses import replace

import pytest

from hostile_store import Answer, hostile_store
from perennial.clients.object_store import StoredObject, open_store
from perennial.clients.s3_store import Patience, S3ObjectStore
from perennial.contracts.errors import BadDataError, PerennialError

BODY = bytes(range(256)) * 20
SHA256 = hashlib.sha256(BODY).hexdigest()
HURRIED = Patience(connect_s=1, silence_s=1, call_s=3, bytes_per_s=1e9, log_every_s=0.2)


@pytest.fixture
def server(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    with hostile_store() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        server.objects = {"data/a.parquet": BODY}
        yield server


@pytest.fixture
def store(server):
    store = S3ObjectStore("bucket", "data")
    yield store
    store._client.close()


@pytest.fixture
def item(store):
    (found,) = store.list()
    return found


READS = {
    "whole": lambda store, item, cache: store.fetch_pinned(item, cache)[0].read_bytes(),
    "whole, expected": lambda store, item, cache: store.fetch_pinned(item, cache, SHA256)[0].read_bytes(),
    "unlisted": lambda store, item, cache: store.fetch_pinned(StoredObject(item.key, len(BODY)), cache, SHA256)[0].read_bytes(),
    "a range": lambda store, item, cache: store.read_range(item, 100, 900),
}  # fmt: skip
CONTENT = {"a range": BODY[100:900]}


@pytest.fixture(params=READS)
def read(request, store, item, tmp_path):
    return lambda: READS[request.param](store, item, tmp_path / "cache"), CONTENT.get(
        request.param, BODY
    )


def on_get(change, calls=range(100)):
    return lambda op, key, call, answer: change(answer) if op == "get" and call in calls else answer


def short(answer):
    return replace(answer, body=answer.body[: len(answer.body) // 2])


def cut(answer):
    headers = {**answer.headers, "Content-Length": str(len(answer.body))}
    return Answer(answer.status, headers, answer.body[: len(answer.body) // 2])


def flipped(answer):
    return replace(answer, body=bytes([answer.body[0] ^ 1]) + answer.body[1:])


def without_length(extra):
    """A body of unstated length, with `extra` more at its end."""
    return lambda answer: replace(
        answer, headers={**answer.headers, "Content-Length": ""}, body=answer.body + extra
    )


def refused(status, code):
    return lambda _: Answer(status, {}, f"<Error><Code>{code}</Code></Error>".encode())


def test_a_healthy_store(server, read):
    call, content = read
    assert call() == content
    server.spoil = on_get(without_length(b""))
    assert call() == content


@pytest.mark.parametrize(
    "change", [short, cut, refused(500, "InternalError"), refused(503, "SlowDown")]
)
def test_what_passes_is_asked_for_again(server, read, change):
    call, content = read
    server.spoil = on_get(change, [1])
    assert call() == content


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (refused(403, "AccessDenied"), "AccessDenied"),
        (refused(404, "NoSuchKey"), "does not exist any more"),
        (refused(500, "InternalError"), "InternalError"),
        (refused(503, "SlowDown"), "SlowDown"),
        (short, "bytes arrived"),
        (cut, "arrives damaged"),
        (lambda answer: replace(answer, body=answer.body + b"x"), "bytes arrived"),
        (without_length(b"x" * 100_000), "bytes arrived"),
    ],
    ids=[
        "403",
        "404",
        "500",
        "503",
        "half a body",
        "a connection that is cut",
        "too much",
        "too much of unstated length",
    ],
)
def test_what_does_not_pass_is_a_named_error_after_bounded_attempts(
    server, read, tmp_path, change, message
):
    server.spoil = on_get(change)
    with pytest.raises(PerennialError) as caught:
        read[0]()
    assert message in str(caught.value)
    assert caught.value.action
    assert server.calls["get"] <= 12
    assert not list((tmp_path / "cache").glob("*"))


def test_a_flipped_bit_is_noticed_by_the_digest(server, store, item, tmp_path):
    for number, sha256 in enumerate((None, SHA256)):
        cache = tmp_path / str(number)
        server.spoil = on_get(flipped)
        with pytest.raises(BadDataError, match="arrives damaged"):
            store.fetch_pinned(item, cache, sha256)
        server.calls.clear()
        server.spoil = on_get(flipped, [1])
        assert store.fetch_pinned(item, cache, sha256)[1] == SHA256


@pytest.mark.parametrize("read", READS)
def test_a_slow_store_ends_in_the_stated_time(server, item, tmp_path, read):
    def drip(write, body):
        for byte in body:
            if server.released.wait(0.4):
                return
            write(bytes([byte]))

    server.send = drip
    hurried = S3ObjectStore("bucket", "data", HURRIED)
    try:
        with pytest.raises(PerennialError, match="timed out after 3"):
            READS[read](hurried, item, tmp_path / "cache")
    finally:
        hurried._client.close()


@pytest.mark.parametrize("honours_conditions", [True, False])
def test_an_object_that_was_replaced_is_never_read(
    server, store, item, tmp_path, honours_conditions
):
    """Also where a store ignores If-Match: the answer's ETag is another one."""
    other = bytes(len(BODY))
    server.objects["data/a.parquet"] = other
    if honours_conditions:
        server.spoil = on_get(refused(412, "PreconditionFailed"))
    for name in ("whole", "a range"):
        with pytest.raises(BadDataError, match=r"a\.parquet changed while it was read") as caught:
            READS[name](store, item, tmp_path / "cache")
        now = hashlib.md5(other, usedforsecurity=False).hexdigest()
        assert f"{len(BODY):,} bytes, version {item.version} when listed" in caught.value.evidence
        assert f'version "{now}" now' in caught.value.evidence
        assert "rename them when complete" in caught.value.action


def test_a_large_object_is_hashed_while_its_parts_arrive(
    server, store, item, tmp_path, monkeypatch
):
    monkeypatch.setattr("perennial.clients.s3_store._PART_BYTES", 1000)
    path, sha256 = store.fetch_pinned(item, tmp_path / "cache")
    assert (path.read_bytes(), sha256) == (BODY, SHA256)
    assert server.calls["get"] == 6
    server.objects["data/a.parquet"] = BODY[:-1]
    with pytest.raises(BadDataError, match="changed while it was read"):
        store.fetch_pinned(item, tmp_path / "cache")


def test_a_local_file_that_changes_is_named(tmp_path):
    store = open_store(str(tmp_path / "store"))
    store.write("a", b"old")
    item = store.find("a")
    assert store.read_range(item, 1, 3) == b"ld"
    store.write("a", b"new")
    for read in (lambda: store.fetch_pinned(item, tmp_path), lambda: store.read_range(item, 0, 3)):
        with pytest.raises(BadDataError, match="a changed while it was read"):
            read()
