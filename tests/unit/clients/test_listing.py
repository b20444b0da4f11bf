"""A listing of many objects is whole, whatever its folders, and runs over several ranges at once."""

import re
import threading
import time
from functools import partial
from types import SimpleNamespace

import boto3
import pytest

from memory_s3 import Handler, Objects, Server
from perennial.clients import s3_listing
from perennial.clients.object_store import open_store


@pytest.fixture
def objects(monkeypatch):
    """A server with pages of seven keys, on which boto3 is the judge of what a listing is."""
    monkeypatch.setattr("memory_s3.PAGE", 7)
    found = Objects()
    handler = type("Own", (Handler,), {"objects": found})
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{server.server_address[1]}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


SHAPES = {
    "none": [],
    "one page": [f"{n}.parquet" for n in range(5)],
    "flat": [f"{n:03}.parquet" for n in range(40)],
    "folders": [f"day={d:02}/{n}.parquet" for d in range(15) for n in range(5)],
    "one folder above": [f"year=2024/day={d}/{n}.parquet" for d in range(5) for n in range(9)],
    "markers": [f"{d}/{n}" for d in "abcdef" for n in ("", "x.parquet", "y.parquet")],
    "mixed": [*"abcdefgh", *(f"{d}/{n}" for d in "bdf" for n in range(8)), "b-1", "b0", "é/1", "日/2", "zz"],
    "uneven": [f"a/{n:03}" for n in range(50)] + [f"b{n}/x" for n in range(9)],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("prefix", ["", "data"])
def test_every_object_is_listed_once(objects, shape, prefix):
    keys = [f"{prefix}/{key}".lstrip("/") for key in SHAPES[shape]]
    for key in [*keys, "other/1"] if prefix else keys:
        objects.put(key, key.encode())
    found = open_store(f"s3://bucket/{prefix}").list_everything()
    start = len(f"{prefix}/") if prefix else 0
    assert [entry.key for entry in found] == sorted(key[start:] for key in keys)
    assert all(
        entry.version == objects.tags[f"{prefix}/{entry.key}".lstrip("/")] for entry in found
    )


def test_ranges_are_listed_at_once(objects):
    for key in SHAPES["folders"]:
        objects.put(key, b"")
    active, most = set(), []
    listing = objects.listing

    def watched(query):
        active.add(threading.get_ident())
        most.append(len(active))
        time.sleep(0.05)
        active.discard(threading.get_ident())
        return listing(query)

    objects.listing = watched
    assert len(open_store("s3://bucket").list()) == 75
    assert max(most) > 2
    assert objects.counts["list"] <= 2 + 75 // 7 + 1 + s3_listing._RANGES


def test_a_store_that_ignores_where_a_range_begins_is_listed_page_by_page(objects):
    for key in SHAPES["folders"]:
        objects.put(key, b"")
    listing = objects.listing
    objects.listing = lambda query: listing({k: v for k, v in query.items() if k != "start-after"})
    assert len(open_store("s3://bucket").list()) == 75


@pytest.mark.parametrize("shape", ["flat", "folders"])
def test_a_listing_that_is_out_of_time_is_never_taken_for_a_whole_one(objects, monkeypatch, shape):
    """A paused process may wake the thread that lists before the one that waits for it."""
    for key in SHAPES[shape]:
        objects.put(key, b"")
    page = partial(boto3.client("s3").list_objects_v2, Bucket="bucket")

    def list_within(seconds):
        return s3_listing.list_objects(page, "", seconds, lambda works: [each() for each in works])

    assert len(list_within(60.0)) == len(SHAPES[shape])
    clock = map(float, range(100))
    monkeypatch.setattr(s3_listing, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    with pytest.raises(TimeoutError, match="page"):
        list_within(3.5)


def test_the_stand_in_answers_as_boto3_expects(objects):
    client = boto3.client("s3")
    for key in SHAPES["mixed"]:
        client.put_object(Bucket="bucket", Key=key, Body=key.encode())
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="bucket", Delimiter="/")
    found = [each["Prefix"] for page in pages for each in page.get("CommonPrefixes", [])]
    assert found == sorted({re.match(r".*?/", key)[0] for key in SHAPES["mixed"] if "/" in key})
    assert client.get_object(Bucket="bucket", Key="b/1", Range="bytes=1-2")["Body"].read() == b"/1"
    for condition in ({"IfMatch": '"x"'}, {"IfNoneMatch": "*"}):
        with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
            client.put_object(Bucket="bucket", Key="b/1", Body=b"", **condition)
