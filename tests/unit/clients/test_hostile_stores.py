"""A store that breaks the protocol ends in one clear error, in a stated time; never in less data."""

import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from hostile_store import HTML, Answer, hostile_store, page
from perennial.clients.s3_checksums import ArrivingDigests
from perennial.clients.s3_store import Patience, S3ObjectStore
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.data.partitions import find_partitions

pytestmark = pytest.mark.hostile

BODY = bytes(range(256)) * 20
HURRIED = Patience(connect_s=1, silence_s=1, call_s=1, bytes_per_s=1e9, log_every_s=0.2)


@pytest.fixture
def server(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    with hostile_store() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        server.objects = {"data/a.parquet": BODY, "data/b.parquet": BODY[::-1]}
        yield server


@pytest.fixture
def store(server) -> Iterator[S3ObjectStore]:
    store = S3ObjectStore("bucket", "data")
    yield store
    store._client.close()


def without(name):
    return lambda answer: replace(answer, headers={**answer.headers, name: ""})


def on(operation, change, calls=range(100)):
    """Changes the answers to one operation, in some of its calls."""

    def spoil(found, key, call, answer):
        return change(answer) if found == operation and call in calls else answer

    return spoil


def with_body(body, **headers):
    return lambda answer: replace(answer, body=body, headers={**answer.headers, **headers})


def flipped(answer):
    return (
        replace(answer, body=bytes([answer.body[0] ^ 1]) + answer.body[1:])
        if answer.body
        else answer
    )


def html(answer):
    return Answer(200, {"Content-Type": "text/html"}, HTML)


def test_healthy(store, tmp_path):
    assert [item.key for item in store.list()] == ["a.parquet", "b.parquet"]
    assert store.fetch("a.parquet", tmp_path).read_bytes() == BODY
    assert store.read("b.parquet") == BODY[::-1]
    assert store.first_bytes("a.parquet", 4) == BODY[:4]
    assert store.read("none") is None


def more(token):
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return f"<IsTruncated>true</IsTruncated>{more}"


LISTINGS = {
    "a page of HTML": (html, "answered with a page of HTML"),
    "HTML called XML": (with_body(HTML, **{"Content-Type": "text/xml"}), "lacks IsTruncated"),
    "HTML that is no XML": (with_body(b"<html><br></html>", **{"Content-Type": "text/xml"}), ""),
    "JSON": (with_body(b"{}", **{"Content-Type": "application/json"}), ""),
    "nothing": (with_body(b""), "lacks IsTruncated"),
    "half of it": (lambda answer: replace(answer, body=answer.body[:90]), ""),
    "a body cut on the way": (lambda answer: with_body(answer.body[:90], **{"Content-Length": "9999"})(answer), ""),
    "pages without end": (lambda _: page({}, more("again")), "leads back to"),
    "a page that leads nowhere": (lambda _: page({"data/a.parquet": 1}, more("")), "leads nowhere"),
    "another folder's keys": (lambda _: page({"other/a.parquet": 1}), "is listed under the prefix"),
    "a redirect without end": (lambda _: Answer(307, {"Location": "/bucket/"}), ""),
    "a refusal": (lambda _: Answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>"), "AccessDenied"),
    "an error in HTML": (lambda _: Answer(502, {"Content-Type": "text/html"}, HTML), "502"),
    "an unknown status": (lambda _: Answer(299, {}, b""), ""),
    "a size that is not a number": (lambda _: page({"data/a.parquet": "many"}), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTINGS)
def test_a_listing_that_is_not_whole_is_an_error(server, store, case):
    change, evidence = LISTINGS[case]
    server.spoil = on("list", change)
    with pytest.raises(PerennialError) as caught:
        store.list()
    assert evidence in caught.value.evidence
    assert caught.value.action


def test_pages_that_turn_in_a_circle_are_noticed(server, store):
    server.spoil = lambda operation, key, call, answer: page({"data/a": 1}, more(f"t{call % 2}"))
    with pytest.raises(PerennialError, match="repeats keys, such as 'data/a'"):
        store.list()
    server.spoil = lambda operation, key, call, answer: page({}, more(f"t{call % 2}"))
    with pytest.raises(PerennialError, match="back to an earlier one"):
        store.list()


def test_pages_that_repeat_under_new_tokens_are_noticed(server, store):
    server.spoil = lambda operation, key, call, answer: page({"data/a": 1}, more(f"t{call}"))
    with pytest.raises(PerennialError, match="repeats keys"):
        store.list()


@pytest.mark.parametrize(
    "key", ["../x.parquet", "/x.parquet", "a//x.parquet", "a/../../x.parquet", "./x.parquet"]
)
def test_a_key_that_leaves_its_folder_is_named(server, key):
    server.objects = {key: BODY, f"data/{key}": BODY}
    for store in (S3ObjectStore("bucket"), S3ObjectStore("bucket", "data")):
        with pytest.raises(BadDataError, match=r"below data\.uri") as caught:
            find_partitions(store)
        assert "is not a path" in caught.value.evidence


PASSING = {
    "no ETag": on("get", without("ETag")),
    "no ETag at all": lambda op, key, call, answer: without("ETag")(answer),
    "an ETag in capitals, without quotes": lambda op, key, call, answer: replace(
        answer, headers={k: v.upper().strip('"') if k == "ETag" else v for k, v in answer.headers.items()}
    ),
    "one flipped byte at first": on("get", flipped, [1]),
    "a short body at first": on("get", lambda a: with_body(a.body[:9])(a), [1]),
    "a connection cut at first": on("get", lambda a: with_body(a.body[:9], **{"Content-Length": str(len(a.body))})(a), [1]),
    "one error of the server": on("get", lambda _: Answer(503, {}, b"<Error><Code>SlowDown</Code></Error>"), [1]),
}  # fmt: skip


@pytest.mark.parametrize("case", PASSING)
def test_what_can_be_had_is_had_whole(server, store, tmp_path, case):
    server.spoil = PASSING[case]
    assert store.fetch("a.parquet", tmp_path / "cache").read_bytes() == BODY
    server.spoil = None
    assert store.fetch("a.parquet", tmp_path / "cache").read_bytes() == BODY
    store.download("a.parquet", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == BODY


DOWNLOADS = {
    "one flipped byte": (on("get", flipped), "ETag contradicts"),
    "a shorter body": (on("get", lambda a: with_body(a.body[:9])(a)), "9 of 5,120 bytes arrived"),
    "a longer body": (on("get", lambda a: with_body(a.body + b"x")(a)), "bytes arrived"),
    "a connection that is cut": (
        on("get", lambda a: with_body(a.body[:9], **{"Content-Length": "5120"})(a)), ""),
    "a page of HTML": (on("get", html), "page of HTML"),
    "a page of HTML about it": (on("head", html), "page of HTML"),
    "a wrong SHA-256": (
        on("head", lambda a: replace(a, headers={**a.headers, "x-amz-checksum-sha256": "A" * 43 + "="})),
        "contradicts"),
    "another size than its head": (on("head", with_body(b"x" * 10)), "bytes arrived"),
    "other bytes each time and no ETag": (
        lambda op, key, call, a: without("ETag")(with_body(bytes([call]) * len(a.body))(a)),
        "no two downloads were equal"),
    "a redirect without end": (lambda *_: Answer(307, {"Location": "/bucket/x"}), ""),
    "errors of all kinds": (
        lambda op, key, call, _: Answer((500, 503, 403, 404)[call % 4] if op == "get" else 500), ""),
    "a date that is none": (
        on("head", lambda a: replace(a, headers={**a.headers, "Last-Modified": "yesterday"})), ""),
}  # fmt: skip


@pytest.mark.parametrize("case", DOWNLOADS)
def test_what_arrives_damaged_is_neither_given_nor_kept(server, store, tmp_path, case):
    server.spoil, evidence = DOWNLOADS[case]
    with pytest.raises(PerennialError) as caught:
        store.fetch("a.parquet", tmp_path / "cache")
    assert evidence in caught.value.evidence
    assert caught.value.action
    assert not [*(tmp_path / "cache").rglob("*")]
    server.spoil = None
    assert store.fetch("a.parquet", tmp_path / "cache").read_bytes() == BODY


READS = {
    "a page of HTML": html,
    "a page of HTML with status 404": lambda _: Answer(404, {"Content-Type": "text/html"}, HTML),
    "one flipped byte": flipped,
    "a refusal": lambda _: Answer(403, {}, b""),
}


@pytest.mark.parametrize("case", READS)
def test_a_record_is_not_taken_for_missing_or_for_another(server, store, case):
    server.spoil = on("get", READS[case])
    with pytest.raises(PerennialError):
        store.read("a.parquet")


def test_a_write_that_a_login_page_answers_has_not_happened(server, store):
    server.objects["data/new"] = b""
    server.spoil = on("put", html)
    with pytest.raises(PerennialError, match="page of HTML"):
        store.write("new", b"x")


def test_conditional_writes_need_etags(server, store):
    server.spoil = lambda op, key, call, answer: without("ETag")(answer)
    with pytest.raises(PerennialError, match="gives no ETag"):
        store.replace("a.parquet", b"new", previous=BODY)


@pytest.mark.parametrize("operation", ["list", "read", "fetch"])
def test_one_byte_at_a_time_ends_in_the_stated_time_and_is_logged(
    server, tmp_path, caplog, operation
):
    def drip(write, body):
        for byte in body:
            if server.released.wait(0.4):
                return
            write(bytes([byte]))

    server.send = drip
    store = S3ObjectStore("bucket", "data", HURRIED)
    calls = {
        "list": store.list,
        "read": lambda: store.read("a.parquet"),
        "fetch": lambda: store.fetch("a.parquet", tmp_path),
    }
    with caplog.at_level(logging.WARNING), pytest.raises(PerennialError, match="timed out after 1"):
        calls[operation]()
    assert "still waiting to" in caplog.text
    assert "of at most 1 s" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_never_answers_is_named_in_the_stated_time(server, caplog):
    def hang(op, key, call, answer):
        server.released.wait(30)
        return answer

    server.spoil = hang
    with caplog.at_level(logging.WARNING), pytest.raises(PerennialError, match="cannot list"):
        S3ObjectStore("bucket", "data", HURRIED).list()
    assert "still waiting to list s3://bucket/data" in caplog.text


def test_a_part_that_arrives_while_the_one_before_is_read_is_read_as_it_arrived(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(b"first\0\0\0\0\0\0")
    digests = ArrivingDigests(file, {"ContentLength": 11})
    second = threading.Thread(target=digests.add, args=(5, 11))

    class Slow:
        content = b""

        def update(self, chunk):
            self.content += chunk
            if self.content == b"first":
                file.write_bytes(b"firstsecond")
                second.start()
                while 5 not in digests._arrived:
                    time.sleep(0.001)

    digests._digests = {"sha256": Slow()}
    digests.add(0, 5)
    second.join()
    assert digests._digests["sha256"].content == b"firstsecond"


def test_parts_of_a_large_object_are_each_verified(server, store, tmp_path, monkeypatch):
    monkeypatch.setattr("perennial.clients.s3_store._PART_BYTES", 1000)
    assert store.fetch("a.parquet", tmp_path / "one").read_bytes() == BODY
    assert server.calls["get"] == 6
    server.spoil = on("get", lambda a: with_body(a.body[:9])(a), [9])
    assert store.fetch("a.parquet", tmp_path / "two").read_bytes() == BODY
    server.spoil = on("get", lambda a: replace(a, body=BODY, status=200))
    with pytest.raises(BadDataError, match="arrives damaged"):
        store.fetch("a.parquet", tmp_path / "three")


@pytest.mark.parametrize(
    "address", ["not an address", "http://", "ftp://x", "http://127.0.0.1:99999"]
)
def test_an_invalid_address_is_an_error(monkeypatch, server, address):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address)
    with pytest.raises(PerennialError, match=r"cannot (open|list)"):
        S3ObjectStore("bucket").list()
