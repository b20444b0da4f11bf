"""A snapshot opens only what is new, and is the same with and without its index."""

import threading
from collections import Counter
from dataclasses import replace

import boto3
import polars as pl
import pytest

from hostile_store import Answer, hostile_store
from perennial.clients import file_tree
from perennial.clients.object_store import ConflictError, open_store
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.data.dataset import Dataset, block_start, selected_split
from perennial.data.partition_index import index_key, read_index
from perennial.data.splits import rows_by_block, summarize_partitions
from perennial.snapshot_data import pinning
from perennial.snapshot_data.manifest import list_partitions, take_indexed_snapshot, take_snapshot

SPLIT = SplitSection(test_days=20, train_days=70)


def section(uri, **roles):
    defaults = {"label": "label", "time": "at", "ids": ("id",)}
    return DataSection(uri=str(uri), **(defaults | roles))


@pytest.fixture
def opened(monkeypatch):
    """The keys of the partitions that were opened."""
    keys, pin = [], pinning._pin

    def counted(data, split, cache, store, item):
        keys.append(item.key)
        return pin(data, split, cache, store, item)

    monkeypatch.setattr(pinning, "_pin", counted)
    return keys


@pytest.fixture
def remote(write, months, bucket, tmp_path):
    """Uploads months to a bucket; gives the section and a function that takes a snapshot."""
    name = bucket.removeprefix("s3://")
    folder = write(months)

    def upload(key):
        boto3.client("s3").upload_file(str(folder / key), name, f"data/{key}")

    def take(*stores, split=SPLIT, **roles):
        (store,) = stores or (open_store(f"{bucket}/store"),)
        data = section(f"{bucket}/data", **roles)
        return take_indexed_snapshot(data, split, tmp_path / "cache", index_store=store)

    for key in months:
        upload(key)
    take.upload, take.bucket, take.folder = upload, name, folder
    return take


def test_known_partitions_are_not_opened_again(remote, months, opened, write):
    first = remote()
    assert sorted(opened) == sorted(months)
    opened.clear()
    again = remote()
    assert opened == []
    assert again.opened == 0
    assert again.snapshot == first.snapshot
    assert again.summaries.equals(first.summaries)
    march = months["month=2024-03/rows.parquet"]
    april = march.with_columns(pl.col("at", "known_at").dt.offset_by("1mo"), id="4" + pl.col("id"))
    write({"month=2024-04/rows.parquet": april})
    remote.upload("month=2024-04/rows.parquet")
    grown = remote()
    assert opened == ["month=2024-04/rows.parquet"]
    assert grown.snapshot == remote(None).snapshot  # read as a whole


def test_another_content_under_a_known_key_is_opened(remote, months, opened, write):
    first = remote()
    opened.clear()
    key = "month=2024-02/rows.parquet"
    write({key: months[key].with_columns(pl.col("amount") + 1)})
    remote.upload(key)
    changed = remote()
    assert opened == [key]
    assert changed.snapshot.digest() != first.snapshot.digest()
    assert changed.snapshot == remote(None).snapshot


def test_vanished_partitions_leave_snapshot_and_index(remote, months, opened):
    data = remote().snapshot.data
    gone = "month=2024-02/rows.parquet"
    boto3.client("s3").delete_object(Bucket=remote.bucket, Key=f"data/{gone}")
    store = open_store(f"s3://{remote.bucket}/store")
    assert remote(store).snapshot == remote(None).snapshot
    assert gone not in read_index(store, index_key(data, SPLIT))["key"].to_list()


def test_the_digest_does_not_depend_on_the_order_of_arrival(write, months, tmp_path, monkeypatch):
    monkeypatch.setattr(file_tree, "SETTLED_NS", -1)
    digests = set()
    for number, keys in enumerate(([*months], [*months][::-1])):
        store = open_store(str(tmp_path / f"store{number}"))
        for count in (1, 2, 3):
            some = {key: months[key] for key in keys[:count]}
            data = section(write(some, f"data{number}"))
            taken = take_snapshot(data, SplitSection(), index_store=store)
        digests.add(taken.digest())
    assert digests == {take_snapshot(section(write(months)), SplitSection()).digest()}


def test_local_files_are_known_by_what_no_write_can_keep(
    write, months, opened, tmp_path, monkeypatch
):
    store, data = open_store(str(tmp_path / "store")), section(write(months))
    take_snapshot(data, SPLIT, index_store=store)
    take_snapshot(data, SPLIT, index_store=store)
    assert len(opened) == 6  # just written: another write within the clock's tick would not show
    monkeypatch.setattr(file_tree, "SETTLED_NS", -1)
    take_snapshot(data, SPLIT, index_store=store)
    opened.clear()
    take_snapshot(data, SPLIT, index_store=store)
    assert opened == []
    write({"month=2024-02/rows.parquet": months["month=2024-02/rows.parquet"]})
    take_snapshot(data, SPLIT, index_store=store)
    assert opened == ["month=2024-02/rows.parquet"]


@pytest.mark.parametrize("damage", ["truncated", "one bit", "another table", "empty"])
def test_a_damaged_index_is_made_again_with_a_warning(remote, opened, months, damage, caplog):
    first = remote()
    store = open_store(f"s3://{remote.bucket}/store")
    key = index_key(first.snapshot.data, SPLIT)
    content = bytearray(store.read(key))
    if damage == "truncated":
        content = content[: len(content) // 2]
    elif damage == "one bit":
        content[len(content) // 2] ^= 1
    elif damage == "another table":
        content = b"x" * 100
    else:
        content = b""
    store.write(key, bytes(content))
    opened.clear()
    assert remote().snapshot == first.snapshot
    assert "is damaged and is made again" in caplog.text
    assert len(opened) == len(months)
    opened.clear()
    assert remote().opened == 0


def test_writers_at_once_keep_what_each_of_them_found(write, months, tmp_path, monkeypatch):
    monkeypatch.setattr(file_tree, "SETTLED_NS", -1)
    store, folder = str(tmp_path / "store"), write(months)
    data = section(folder)
    failures = []

    def take():
        try:
            take_snapshot(data, SPLIT, index_store=open_store(store))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    taken = take_indexed_snapshot(data, SPLIT, index_store=open_store(store))
    assert taken.opened == 0
    assert taken.snapshot == take_snapshot(data, SPLIT)


def test_another_split_or_role_has_an_index_of_its_own(remote, opened):
    remote()
    opened.clear()
    assert remote(split=SplitSection(test_days=3, train_days=60)).opened == 0  # a window is merged
    assert remote(split=SplitSection(test_fraction=0.3)).opened == 3
    assert remote(ids=(), meta=("id",)).opened == 3


def test_a_failed_snapshot_keeps_what_it_read(remote, opened, months, write):
    bad = "month=2024-04/rows.parquet"
    write({bad: months["month=2024-02/rows.parquet"].drop("city")})
    remote.upload(bad)
    with pytest.raises(BadDataError, match="do not have the columns"):
        remote()
    opened.clear()
    boto3.client("s3").delete_object(Bucket=remote.bucket, Key=f"data/{bad}")
    assert remote().opened == 0


@pytest.mark.parametrize("split", [SplitSection(), SPLIT, SplitSection(method="hash", test_days=9)])
def test_counts_are_those_of_reading_every_row(write, months, split):
    holes = {
        key: table.with_columns(
            label=pl.when(pl.int_range(pl.len()) % 7 != 0).then("label"),
            at=pl.when(pl.int_range(pl.len()) % 11 != 0).then("at"),
        )
        for key, table in months.items()
    }
    snapshot = take_snapshot(section(write(holes)), split)
    dataset = Dataset(snapshot)
    assert snapshot.split_rows == {each: dataset.count(each) for each in Split}
    rows = dataset.scan().select(split=selected_split(snapshot), day=block_start(snapshot.data))
    found = Counter(rows.drop_nulls().collect().iter_rows())
    blocks = rows_by_block(snapshot)
    assert {(name, day): n for name, days in blocks.items() for day, n in days if n} == dict(found)
    assert summarize_partitions(snapshot).height == 3


def test_many_partitions_are_read_by_processes_with_the_same_result(write, months, monkeypatch):
    data = section(write(months))
    alone = take_snapshot(data, SPLIT)
    monkeypatch.setattr(pinning, "_BATCH_FILES", 1)
    monkeypatch.setenv("PERENNIAL_CORES", "2")
    assert take_snapshot(data, SPLIT) == alone


def test_in_a_pod_no_copy_is_left(remote, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    remote()
    assert [path for path in (tmp_path / "cache").iterdir() if path.is_file()] == []


def test_a_partition_that_is_rewritten_between_listing_and_reading_is_named(remote, months):
    data = section(f"s3://{remote.bucket}/data")
    listing = list_partitions(open_store(data.uri))
    key = "month=2024-02/rows.parquet"
    client = boto3.client("s3")
    client.put_object(Bucket=remote.bucket, Key=f"data/{key}", Body=b"PAR1 another PAR1")
    with pytest.raises(BadDataError, match=f"{key} changed while it was read") as caught:
        take_snapshot(data, SPLIT, remote.folder.parent / "cache", listing)
    assert "when listed; 17 bytes, version" in caught.value.evidence
    client.delete_object(Bucket=remote.bucket, Key=f"data/{key}")
    with pytest.raises(BadDataError, match=f"{key} does not exist any more"):
        take_snapshot(data, SPLIT, remote.folder.parent / "cache", listing)


def test_a_local_file_that_is_rewritten_between_listing_and_reading_is_named(write, months):
    folder = write(months)
    listing = list_partitions(open_store(str(folder)))
    key = "month=2024-02/rows.parquet"
    write({key: months[key].with_columns(pl.col("amount") + 1)})  # of equal size
    with pytest.raises(BadDataError, match=f"{key} changed while it was read"):
        take_snapshot(section(folder), SPLIT, listing=listing)
    (folder / key).unlink()
    with pytest.raises(BadDataError, match=f"{key} does not exist any more"):
        take_snapshot(section(folder), SPLIT, listing=listing)


FAULTS = {
    "403": lambda _: Answer(403, {}, b"<Error><Code>AccessDenied</Code></Error>"),
    "404": lambda _: Answer(404, {}, b"<Error><Code>NoSuchKey</Code></Error>"),
    "500": lambda _: Answer(500, {}, b"<Error><Code>InternalError</Code></Error>"),
    "half a body": lambda answer: replace(answer, body=answer.body[: len(answer.body) // 2]),
    "another ETag": lambda answer: replace(answer, headers={**answer.headers, "ETag": f'"{"0" * 32}"'}),
    "other bytes": lambda answer: replace(answer, body=bytes(len(answer.body))),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("is_lasting", [True, False])
def test_a_bad_store_gives_a_named_error_or_the_right_snapshot(
    write, months, monkeypatch, fault, is_lasting
):
    folder = write(months)
    expected = take_snapshot(section(folder), SPLIT)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.setenv(name, "us-east-1")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    bad, calls = "data/month=2024-02/rows.parquet", []

    def spoil(operation, key, call, answer):
        if operation != "get" or key != bad or (calls and not is_lasting):
            return answer
        calls.append(key)
        return FAULTS[fault](answer)

    with hostile_store() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", server.url)
        server.objects = {f"data/{key}": (folder / key).read_bytes() for key in months}
        server.spoil = spoil
        if is_lasting or fault in ("403", "404", "another ETag"):  # which do not pass
            with pytest.raises(PerennialError) as caught:
                take_snapshot(section("s3://bucket/data"), SPLIT, folder.parent / "cache")
            assert "s3://bucket/data/month=2024-02/rows.parquet" in str(caught.value)
            assert caught.value.action
            assert len(calls) <= 12
        else:
            taken = take_snapshot(section("s3://bucket/data"), SPLIT, folder.parent / "cache")
            assert taken.digest() == expected.digest()


def test_an_index_that_cannot_be_written_is_no_reason_to_fail(
    write, months, tmp_path, monkeypatch, caplog
):
    monkeypatch.setattr(file_tree, "SETTLED_NS", -1)
    store = open_store(str(tmp_path / "store"))

    def lose(key, content, *, previous):
        raise ConflictError(key)

    monkeypatch.setattr(store, "replace", lose)
    data = section(write(months))
    assert take_snapshot(data, SPLIT, index_store=store) == take_snapshot(data, SPLIT)
    assert "was not updated" in caplog.text
