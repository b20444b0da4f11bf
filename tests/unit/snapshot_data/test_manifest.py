"""Every way in which a dataset can be unfit to pin ends with a message that names the cause."""

import io
import re
from datetime import UTC, datetime, timedelta

import boto3
import polars as pl
import pytest
from moto.server import ThreadedMotoServer

from perennial.clients.object_store import LocalObjectStore, open_store
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.snapshot import Snapshot
from perennial.data.splits import rows_by_block
from perennial.snapshot_data.manifest import list_partitions, store_snapshot, take_snapshot

JANUARY, FEBRUARY, MARCH = (f"month=2024-{month:02}/rows.parquet" for month in (1, 2, 3))


def section(folder, **options) -> DataSection:
    defaults = {"label": "label", "time": "at", "ids": ("id",)}
    return DataSection(uri=str(folder), **(defaults | options))


@pytest.fixture
def bucket(monkeypatch):
    """The name of a bucket on a server that speaks the S3 protocol."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://{host}:{port}")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "nobody")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    boto3.client("s3").create_bucket(Bucket="flights")
    yield "flights"
    server.stop()


class TestHealthyData:
    def test_pins_bytes_rows_columns_and_span(self, write, months):
        snapshot = take_snapshot(section(write(months)), SplitSection())
        assert [file.rows for file in snapshot.files] == [112, 112, 112]
        assert snapshot.rows == sum(snapshot.split_rows.values()) == 336
        assert list(snapshot.columns) == sorted(months[JANUARY].columns)
        assert snapshot.time_min == datetime(2024, 1, 1)
        assert snapshot.time_max == datetime(2024, 3, 28, 18)
        assert all(rows > 0 for rows in snapshot.split_rows.values())
        again = Snapshot.from_json(snapshot.to_json())
        assert list(again.task_columns.features) == list(snapshot.task_columns.features)

    def test_ignores_temporary_files_markers_and_other_formats(self, write, months):
        folder = write(months)
        for name in ("_temporary/x.parquet", ".x.parquet", "_x.parquet", "notes.txt", "_SUCCESS"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"no parquet")
        listing = list_partitions(open_store(str(folder)))
        assert len(listing.partitions) == 3
        assert listing.num_ignored == 5

    def test_equal_data_has_an_equal_digest_wherever_and_whenever(self, write, months):
        here = take_snapshot(section(write(months, "here")), SplitSection())
        reversed_order = dict(reversed(months.items()))
        there = take_snapshot(section(write(reversed_order, "there")), SplitSection())
        assert here.digest() == there.digest()

    def test_a_bucket_gives_the_same_snapshot_as_a_folder(self, write, months, bucket, tmp_path):
        folder = write(months)
        for key in months:
            boto3.client("s3").upload_file(str(folder / key), bucket, f"data/{key}")
        remote = section(f"s3://{bucket}/data")
        snapshot = take_snapshot(remote, SplitSection(), cache=tmp_path / "cache")
        assert snapshot.files[0].uri == f"s3://{bucket}/data/{JANUARY}"
        assert snapshot.digest() == take_snapshot(section(folder), SplitSection()).digest()

    @pytest.mark.parametrize("change", ["value", "name", "role", "split", "partition"])
    def test_any_difference_changes_the_digest(self, write, months, change):
        before = take_snapshot(section(write(months)), SplitSection())
        data, split = section(write({}, "changed")), SplitSection()
        other = dict(months)
        if change == "value":
            other[MARCH] = other[MARCH].with_columns(pl.col("amount") + 1)
        elif change == "name":
            other["month=2024-03/other.parquet"] = other.pop(MARCH)
        elif change == "role":
            data = section(data.uri, meta=("city",))
        elif change == "split":
            split = SplitSection(test_fraction=0.3)
        else:
            del other[MARCH]
        write(other, "changed")
        assert take_snapshot(data, split).digest() != before.digest()

    def test_the_same_rows_keep_their_splits_when_a_month_is_added(self, write, months):
        first = take_snapshot(section(write({JANUARY: months[JANUARY]})), SplitSection())
        both = take_snapshot(section(write(months)), SplitSection())
        grown = rows_by_block(both)
        for split, counts in rows_by_block(first).items():
            # The last block of January also holds days of February.
            assert grown[split][: len(counts) - 1] == counts[:-1]
            assert len(grown[split]) == len(grown["train"])

    @pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
    def test_moments_with_a_zone_survive_as_utc(self, write, months, zone):
        zoned = {
            key: table.with_columns(pl.col("at").dt.replace_time_zone(zone))
            for key, table in months.items()
        }
        data = section(write(zoned), ids=("id",), meta=("known_at",))
        snapshot = take_snapshot(data, SplitSection(test_days=30))
        again = type(snapshot).from_json(snapshot.to_json())
        assert again.time_max == snapshot.time_max
        assert again.time_max.utcoffset() == timedelta(0)
        assert again.digest() == snapshot.digest()
        local = zoned[MARCH]["at"].max()
        assert again.time_max == local.astimezone(UTC)

    def test_a_date_column_serves_as_time(self, write, months):
        dated = {key: table.with_columns(pl.col("at").dt.date()) for key, table in months.items()}
        snapshot = take_snapshot(section(write(dated), meta=("known_at",)), SplitSection())
        assert snapshot.time_max == datetime(2024, 3, 28)
        assert all(snapshot.split_rows.values())

    @pytest.mark.parametrize(("method", "role"), [("group", {"group": "user"}), ("hash", {})])
    def test_data_without_a_time_splits_by_group_or_hash(self, write, months, method, role):
        data = section(write(months), time=None, meta=("at", "known_at"), **role)
        snapshot = take_snapshot(data, SplitSection())
        assert snapshot.split.resolved_method(data) == method
        assert snapshot.time_max is None
        assert rows_by_block(snapshot) == {}

    def test_columns_may_have_another_order(self, write, months):
        months[MARCH] = months[MARCH].select(reversed(months[MARCH].columns))
        snapshot = take_snapshot(section(write(months)), SplitSection())
        assert list(snapshot.columns) == sorted(months[JANUARY].columns)


def renamed(table):
    return table.rename({"amount": "amounts"})


BAD_PARTITIONS = {
    "a missing column": (
        lambda table: table.drop("city"),
        r"month=2024-02/rows\.parquet lacks column 'city' \(String\)",
    ),
    "a renamed column": (
        renamed,
        r"2024-02/rows\.parquet lacks column 'amount' \(Float64\), it has 'amounts'",
    ),
    "a retyped column": (
        lambda table: table.with_columns(pl.col("amount").cast(pl.String)),
        r"2024-02/rows\.parquet has 'amount' as String, expected Float64",
    ),
    "a column of nulls only": (
        lambda table: table.with_columns(amount=pl.lit(None)),
        r"2024-02/rows\.parquet has 'amount' as Null, expected Float64",
    ),
    "an extra column": (
        lambda table: table.with_columns(new=1),
        r"2024-02/rows\.parquet has the unexpected column 'new'",
    ),
    "another time zone": (
        lambda table: table.with_columns(pl.col("at").dt.replace_time_zone("UTC")),
        r"has 'at' as Datetime\(time_unit='us', time_zone='UTC'\)",
    ),
    "no rows": (lambda table: table.clear(), r"2024-02/rows\.parquet holds no rows"),
}


class TestBadPartitions:
    @pytest.mark.parametrize("case", BAD_PARTITIONS)
    def test_one_bad_partition_is_named_with_what_was_expected(self, write, months, case):
        spoil, message = BAD_PARTITIONS[case]
        months[FEBRUARY] = spoil(months[FEBRUARY])
        with pytest.raises(BadDataError, match=message):
            take_snapshot(section(write(months)), SplitSection())

    def test_the_odd_one_out_is_blamed_even_when_it_comes_first(self, write, months):
        months[JANUARY] = renamed(months[JANUARY])
        with pytest.raises(BadDataError, match="1 of 3 partitions") as caught:
            take_snapshot(section(write(months)), SplitSection())
        assert "2024-01/rows.parquet lacks" in caught.value.evidence
        assert "2024-02" not in caught.value.evidence

    def test_the_smaller_of_two_is_blamed(self, write, months):
        two = {JANUARY: renamed(months[JANUARY]).head(5), FEBRUARY: months[FEBRUARY]}
        with pytest.raises(BadDataError, match="1 of 2 partitions") as caught:
            take_snapshot(section(write(two)), SplitSection())
        assert "2024-01/rows.parquet lacks" in caught.value.evidence

    @pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
    def test_a_file_that_is_no_whole_parquet_is_named(self, write, months, damage):
        path = write(months) / FEBRUARY
        content = path.read_bytes()
        path.write_bytes({"truncated": content[:-100], "text": b"<html>", "empty": b""}[damage])
        with pytest.raises(
            BadDataError, match=r"2024-02/rows\.parquet is not a complete Parquet file"
        ):
            take_snapshot(section(path.parents[1]), SplitSection())

    def test_damaged_pages_under_a_whole_footer_are_found(self, write, months):
        path = write(months) / FEBRUARY
        content = bytearray(path.read_bytes())
        content[4:2_000] = bytes(1_996)
        path.write_bytes(content)
        with pytest.raises(BadDataError, match=r"2024-02/rows\.parquet cannot be decoded"):
            take_snapshot(section(path.parents[1]), SplitSection())


class TestNames:
    def test_a_name_with_brackets_is_itself_and_no_pattern(self, write, months):
        """`a[1].parquet` as a pattern matches `a1.parquet`, whose columns are others."""
        bad = renamed(months[FEBRUARY])
        tables = {"a[1].parquet": months[JANUARY], "a1.parquet": bad, "b.parquet": months[MARCH]}
        with pytest.raises(BadDataError, match="1 of 3 partitions") as caught:
            take_snapshot(section(write(tables)), SplitSection())
        assert "a1.parquet lacks column 'amount'" in caught.value.evidence

    def test_damaged_pages_are_not_blamed_on_the_file_that_a_pattern_matches(self, write, months):
        folder = write({"a[1].parquet": months[JANUARY], "a1.parquet": months[FEBRUARY]})
        content = bytearray((folder / "a[1].parquet").read_bytes())
        content[4:2_000] = bytes(1_996)
        (folder / "a[1].parquet").write_bytes(content)
        with pytest.raises(BadDataError, match=r"a\[1\]\.parquet cannot be decoded"):
            take_snapshot(section(folder), SplitSection())

    @pytest.mark.parametrize(
        "name",
        ["a*?{b}.parquet", "a %20+#.parquet", "a\nb.parquet", "-a.parquet", "k=v=w/a%2F.parquet",
         "s3:/a.parquet", "~$HOME.parquet", "ä.parquet", "a\u0308.parquet", "x" * 240 + ".parquet"],
    )  # fmt: skip
    def test_a_partition_is_read_under_any_name(self, write, months, name):
        folder = write({name: months[JANUARY], "a.parquet": months[FEBRUARY]})
        assert take_snapshot(section(folder), SplitSection()).rows == 224

    def test_a_bucket_gives_partitions_under_any_name(self, write, months, bucket, tmp_path):
        names = [
            "a[1].parquet",
            "a b%20+#?*.parquet",
            "ä=1/x.PARQUET",
            "d#e?f/" + "x" * 300 + ".parquet",
        ]
        for name, table in zip(names, [*months.values(), months[JANUARY].head(50)], strict=True):
            stream = io.BytesIO()
            table.write_parquet(stream)
            boto3.client("s3").put_object(
                Bucket=bucket, Key=f"names/{name}", Body=stream.getvalue()
            )
        remote = section(f"s3://{bucket}/names", ids=())
        assert take_snapshot(remote, SplitSection(), cache=tmp_path / "cache").rows == 386


class TestCopies:
    def test_two_partitions_of_equal_bytes_are_named(self, write, months):
        folder = write({**months, "rows (1).parquet": months[MARCH]})
        with pytest.raises(BadDataError, match="hold the same bytes") as caught:
            take_snapshot(section(folder), SplitSection())
        assert "rows (1).parquet" in caught.value.evidence
        assert MARCH in caught.value.evidence


class TestBadFolders:
    def test_a_folder_that_does_not_exist(self, tmp_path):
        with pytest.raises(BadDataError, match="nowhere holds no partitions") as caught:
            take_snapshot(section(tmp_path / "nowhere"), SplitSection())
        assert "does not exist" in caught.value.evidence

    def test_a_folder_without_parquet(self, tmp_path):
        (tmp_path / "rows.csv").write_text("a,b")
        with pytest.raises(BadDataError, match=r"no \*\.parquet among 1 files there.*rows\.csv"):
            take_snapshot(section(tmp_path), SplitSection())

    def test_an_unsupported_address(self):
        with pytest.raises(PerennialError, match="unsupported scheme 'gs'"):
            take_snapshot(section("gs://bucket/data"), SplitSection())


ROLES = {
    "label": ({"label": "lable"}, r"data\.label names 'lable', did you mean 'label'"),
    "time": ({"time": "att"}, r"data\.time names 'att', did you mean 'at'"),
    "ids": ({"ids": ("idd",)}, r"data\.ids names 'idd', did you mean 'id'"),
    "group": ({"group": "usr"}, r"data\.group names 'usr', did you mean 'user'"),
    "meta": ({"meta": ("citi",)}, r"data\.meta names 'citi', did you mean 'city'"),
    "features": ({"features": ("amout",)}, r"data\.features names 'amout', did you mean 'amount'"),
    "available_at": ({"available_at": {"amount": "know_at"}}, "'know_at', did you mean 'known_at'"),
    "available feature": (
        {"available_at": {"amont": "known_at"}},
        "'amont', did you mean 'amount'",
    ),
    "time of text": ({"time": "city"}, "data.time 'city' is String, expected Datetime or Date"),
    "no comparable time": (
        {"available_at": {"amount": "city"}},
        "data.available_at.amount 'city' is String but data.time is Datetime",
    ),
    "no feature": (
        {"meta": ("user", "amount", "city", "known_at")},
        "no column is left as a feature",
    ),
}


class TestRoles:
    @pytest.mark.parametrize("case", ROLES)
    def test_a_role_that_does_not_fit_is_explained(self, write, months, case):
        options, message = ROLES[case]
        with pytest.raises(BadDataError, match=message):
            take_snapshot(section(write(months), **options), SplitSection())

    def test_windows_need_a_time(self, write, months):
        data = section(write(months), time=None, meta=("at", "known_at"))
        with pytest.raises(BadDataError, match=r"split\.test_days is set but data\.time is not"):
            take_snapshot(data, SplitSection(test_days=3))

    def test_a_hash_needs_ids(self, write, months):
        data = section(write(months), time=None, ids=(), meta=("at", "known_at"))
        with pytest.raises(BadDataError, match=r"split\.method is 'hash' but data\.ids is not set"):
            take_snapshot(data, SplitSection())


class TestEmptySplits:
    def test_a_history_too_short_for_the_period(self, write, months):
        days = {JANUARY: months[JANUARY].filter(pl.col("at") < datetime(2024, 1, 11))}
        with pytest.raises(BadDataError, match="the splits validation and test") as caught:
            take_snapshot(section(write(days)), SplitSection())
        assert "every month is cut in order into 60% train" in caught.value.evidence
        assert "from 2024-01-01 to 2024-01-10" in caught.value.evidence
        assert "shorter split.period" in caught.value.action

    def test_rows_too_far_apart_for_the_period(self, write, months):
        first = pl.col("at").dt.day() == 1
        firsts = {name: rows.filter(first) for name, rows in months.items()}
        with pytest.raises(BadDataError, match="the splits validation and test") as caught:
            take_snapshot(section(write(firsts)), SplitSection())
        assert "longer split.period" in caught.value.action

    def test_a_window_without_labelled_rows(self, write, months):
        late = pl.col("at") > datetime(2024, 3, 10)
        months[MARCH] = months[MARCH].with_columns(
            label=pl.when(late).then(None).otherwise(pl.col("label"))
        )
        with pytest.raises(BadDataError, match="the split test") as caught:
            take_snapshot(section(write(months)), SplitSection(test_days=5))
        assert "rows without a label are in no split" in caught.value.action
        assert "raise split.test_days" in caught.value.action

    def test_one_group_for_all(self, write, months):
        same = {key: table.with_columns(user=pl.lit("u")) for key, table in months.items()}
        with pytest.raises(BadDataError, match="the hash of user decides"):
            take_snapshot(section(write(same), group="user"), SplitSection(method="group"))


class TestStoring:
    def test_storing_again_changes_nothing(self, write, months, tmp_path):
        store = LocalObjectStore(tmp_path / "store")
        snapshot = take_snapshot(section(write(months)), SplitSection())
        key = store_snapshot(snapshot, store)
        assert key == f"snapshots/{snapshot.digest()}/snapshot.json"
        stored = store.read(key)
        copied = take_snapshot(section(write(months, "copy")), SplitSection())
        assert store_snapshot(copied, store) == key
        assert store.read(key) == stored

    def test_another_value_under_the_digest_is_refused(self, write, months, tmp_path):
        store = LocalObjectStore(tmp_path / "store")
        snapshot = take_snapshot(section(write(months)), SplitSection())
        other = snapshot.model_copy(update={"rows": 1})
        store.write(f"snapshots/{snapshot.digest()}/snapshot.json", other.to_json().encode())
        with pytest.raises(BadDataError, match="does not match its name"):
            store_snapshot(snapshot, store)


def test_a_salt_is_proposed_where_the_hash_of_few_groups_leaves_a_split_empty(tmp_path):
    """Fourteen people of a hundred rows each: the hash itself gives none to validation."""
    people = pl.DataFrame(
        {"row": range(1400), "label": [0, 1] * 700, "x": range(1400)}
    ).with_columns(person=pl.format("s{}", pl.col("row") % 14))
    people.write_parquet(tmp_path / "rows.parquet")
    data = DataSection(uri=str(tmp_path), label="label", ids=("row",), group="person")
    with pytest.raises(BadDataError, match="no row falls into the split validation") as raised:
        take_snapshot(data, SplitSection())
    salt = re.search(r'set split.salt = "(\w+)"', raised.value.action)[1]
    rows = take_snapshot(data, SplitSection(salt=salt)).split_rows
    assert all(f"{split.value} {count:,}" in raised.value.action for split, count in rows.items())
    wanted = {Split.TRAIN: 0.6, Split.VALIDATION: 0.15, Split.TEST: 0.25}
    assert all(abs(rows[split] / 1400 / share - 1) < 0.5 for split, share in wanted.items())
