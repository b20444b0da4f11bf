"""Every claim of the split rule and of the reader, on real files."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.clients.object_store import open_store, sha256_of_file
from perennial.clients.s3_store import S3ObjectStore
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.dataset import (
    FILE_COLUMN,
    SPLIT_COLUMN,
    Dataset,
    block_start,
    selected_split,
    split_expression,
)

STATELESS = settings(database=None)
ROW = st.tuples(st.text(max_size=5), st.integers(-5, 5))
ORDER = [split.value for split in Split]
PERIODS = {"week": "1w", "month": "1mo", "quarter": "1q", "year": "1y"}
DATA = DataSection(uri="/data", label="label", time="at", group="user", ids=("a", "b"))


def splits_of(rows: pl.DataFrame, data: DataSection = DATA, **options) -> list[str | None]:
    return rows.select(split_expression(data, SplitSection(**options))).to_series().to_list()


def days_table(first: date, days: int, hours: int = 6) -> pl.DataFrame:
    start = datetime(first.year, first.month, first.day)
    moments = pl.datetime_range(
        start, start + timedelta(days=days), f"{hours}h", closed="left", eager=True
    )
    return pl.DataFrame({"at": moments, "label": [0] * len(moments)})


def written(folder, *tables: pl.DataFrame, **sections) -> Snapshot:
    folder.mkdir(exist_ok=True)
    files = []
    for index, table in enumerate(tables):
        path = folder / f"part-{index}.parquet"
        table.write_parquet(path)
        files.append(
            DataFile(
                uri=str(path),
                size_bytes=path.stat().st_size,
                sha256=sha256_of_file(path),
                rows=table.height,
            )
        )
    newest = max((table["at"].max() for table in tables if "at" in table.columns), default=None)
    if newest is not None and not isinstance(newest, datetime):
        newest = datetime(newest.year, newest.month, newest.day)
    return Snapshot(
        data=sections.get("data", DataSection(uri=str(folder), label="label", time="at")),
        split=sections.get("split", SplitSection()),
        files=tuple(files),
        columns={name: str(dtype) for name, dtype in tables[0].schema.items()},
        rows=sum(table.height for table in tables),
        split_rows={},
        time_max=newest,
    )


class TestTimeSplit:
    @pytest.mark.parametrize("period", PERIODS)
    @STATELESS
    @given(
        first=st.dates(date(1990, 1, 1), date(2060, 1, 1)),
        fractions=st.tuples(st.floats(0.01, 0.44), st.floats(0.01, 0.44)),
    )
    def test_days_are_never_cut_and_keep_their_order_within_each_period(
        self, period, first, fractions
    ):
        rows = days_table(first, 400)
        shares = {"validation_fraction": fractions[0], "test_fraction": fractions[1]}
        table = rows.with_columns(
            split=pl.Series(splits_of(rows, period=period, **shares)),
            day=pl.col("at").dt.date(),
            period=pl.col("at").dt.date().dt.truncate(PERIODS[period]),
        )
        assert table.group_by("day").agg(pl.col("split").n_unique())["split"].max() == 1
        assert table["split"].null_count() == 0
        rank = pl.col("split").replace_strict(ORDER, [0, 1, 2])
        backwards = table.with_columns(rank=rank).select((pl.col("rank").diff() < 0).over("period"))
        assert not backwards.to_series().any()

    @STATELESS
    @given(
        days=st.lists(st.dates(date(2020, 1, 1), date(2030, 1, 1)), min_size=2, max_size=60),
        cut=st.integers(1, 59),
    )
    def test_growing_data_moves_no_row(self, days, cut):
        rows = pl.DataFrame({"at": [datetime(day.year, day.month, day.day, 13) for day in days]})
        assert splits_of(rows)[:cut] == splits_of(rows.head(cut))

    @pytest.mark.parametrize(
        ("day", "split"),
        [
            *((day, "train") for day in (1, 19)),
            *((day, "validation") for day in (20, 24)),
            *((day, "test") for day in (25, 31)),
        ],
    )
    def test_a_month_of_31_days_is_cut_60_15_25(self, day, split):
        rows = pl.DataFrame({"at": [datetime(2024, 1, day), datetime(2024, 1, day, 23, 59, 59)]})
        assert splits_of(rows) == [split, split]

    def test_a_boundary_that_falls_on_a_day_does_not_depend_on_rounding(self):
        # In floating point 1 - 0.2 - 0.1 lies above 21/30, where day 22 of April starts.
        rows = pl.DataFrame({"at": [datetime(2023, 4, 21), datetime(2023, 4, 22)]})
        found = splits_of(rows, validation_fraction=0.1, test_fraction=0.2)
        assert found == ["train", "validation"]

    @pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"])
    def test_days_and_their_splits_are_local_even_where_the_clock_changes(self, zone):
        rows = days_table(date(2024, 1, 1), 366, hours=1)
        local = rows.with_columns(
            pl.col("at").dt.replace_time_zone(zone, ambiguous="earliest", non_existent="null")
        ).filter(pl.col("at").is_not_null())
        naive = local.with_columns(pl.col("at").dt.replace_time_zone(None))
        assert splits_of(local) == splits_of(naive)

    def test_dates_split_like_the_times_of_their_days(self):
        rows = days_table(date(2024, 2, 1), 29)
        dates = rows.with_columns(pl.col("at").dt.date())
        assert splits_of(dates) == splits_of(rows)

    def test_a_row_without_a_time_is_in_no_split(self):
        rows = pl.DataFrame({"at": [datetime(2024, 1, 1), None]})
        assert splits_of(rows) == ["train", None]


class TestHashSplits:
    def test_rows_of_one_group_share_their_split_whatever_else_they_hold(self):
        rows = pl.DataFrame({"user": [f"u{i % 50}" for i in range(500)], "x": range(500)})
        table = rows.with_columns(split=pl.Series(splits_of(rows, method="group")))
        assert table.group_by("user").agg(pl.col("split").n_unique())["split"].max() == 1

    def test_a_group_is_hashed_as_an_id_is(self):
        """Groups are hashed once each, ids row by row."""
        rows = pl.DataFrame({"user": [None, *(f"user {n % 7}" for n in range(50))]})
        by_id = DATA.model_copy(update={"ids": ("user",)})
        group, single = (
            rows.select(split_expression(data, SplitSection(method=method))).to_series()
            for data, method in ((DATA, "group"), (by_id, "hash"))
        )
        assert group.equals(single)
        assert group.null_count() == 1
        assert group.n_unique() > 2

    @pytest.mark.parametrize("method", ["group", "hash"])
    def test_shares_are_the_fractions(self, method):
        rows = pl.DataFrame({"user": range(20_000), "a": range(20_000), "b": ["x"] * 20_000})
        found = pl.Series(splits_of(rows, method=method)).value_counts(normalize=True)
        shares = dict(found.iter_rows())
        expected = {"train": 0.6, "validation": 0.15, "test": 0.25}
        assert shares == pytest.approx(expected, abs=0.015)  # four standard errors

    @STATELESS
    @given(rows=st.lists(ROW, min_size=2, max_size=50), seed=st.randoms())
    def test_neither_order_nor_company_moves_a_row(self, rows, seed):
        def assigned(some):
            frame = pl.DataFrame(some, schema={"a": pl.String, "b": pl.Int64}, orient="row")
            return dict(zip(some, splits_of(frame, method="hash"), strict=True))

        shuffled = [*rows]
        seed.shuffle(shuffled)
        whole = assigned(shuffled)
        assert all(whole[row] == split for row, split in assigned(rows[: len(rows) // 2]).items())

    def test_assignments_are_the_same_in_every_version(self):
        rows = pl.DataFrame({"a": ["x", "y", "z", "w", "v", "u"], "b": [1, 2, 3, 4, 5, 6]})
        expected = ["validation", "test", "test", "train", "train", "train"]
        assert splits_of(rows, method="hash", salt="pinned") == expected

    def test_the_type_of_a_whole_number_does_not_matter(self):
        wide = pl.DataFrame({"user": range(200)}, schema={"user": pl.Int64})
        narrow = wide.cast(pl.UInt8)
        assert splits_of(wide, method="group") == splits_of(narrow, method="group")

    def test_ids_are_kept_apart(self):
        left = pl.DataFrame({"a": ["1"] * 300, "b": [f"1{i}" for i in range(300)]})
        right = pl.DataFrame({"a": ["11"] * 300, "b": [f"{i}" for i in range(300)]})
        assert splits_of(left, method="hash") != splits_of(right, method="hash")

    def test_salt_changes_assignments(self):
        rows = pl.DataFrame({"user": range(200)})
        assert splits_of(rows, method="group") != splits_of(rows, method="group", salt="2")

    def test_a_row_without_a_key_is_in_no_split(self):
        rows = pl.DataFrame({"user": ["u", None], "a": ["x", None], "b": [1, 2]})
        assert splits_of(rows, method="group")[1] is None
        assert splits_of(rows, method="hash")[1] is None

    @pytest.mark.parametrize(
        ("method", "role"), [("hash", "data.ids"), ("group", "data.group"), ("time", "data.time")]
    )
    def test_a_method_without_its_column_is_refused(self, method, role):
        data = DataSection(uri="/data", label="label")
        with pytest.raises(BadDataError, match=f"split.method = '{method}' needs {role}"):
            split_expression(data, SplitSection(method=method))


class TestSelection:
    ROWS = days_table(date(2024, 1, 1), 90)

    def test_splits_are_disjoint_and_together_all(self, tmp_path):
        snapshot = written(tmp_path, self.ROWS)
        chosen = self.ROWS.select(
            (selected_split(snapshot) == split.value).alias(split.value) for split in Split
        )
        assert chosen.select(pl.sum_horizontal(pl.all())).to_series().unique().to_list() == [1]

    @pytest.mark.parametrize("kind", [None, "UTC", "Europe/Berlin", "date"])
    def test_windows_select_whole_newest_days(self, tmp_path, kind):
        rows = self.ROWS.filter(pl.col("at") < datetime(2024, 3, 30, 13))
        if kind == "date":
            rows = rows.with_columns(pl.col("at").dt.date())
        elif kind:
            rows = rows.with_columns(pl.col("at").dt.replace_time_zone(kind))
        split = SplitSection(train_days=40, test_days=3)
        snapshot = Snapshot.from_json(written(tmp_path, rows, split=split).to_json())
        chosen = rows.with_columns(split=selected_split(snapshot), day=pl.col("at").dt.date())
        oldest = chosen.drop_nulls("split").group_by("split").agg(pl.col("day").min())
        assert dict(oldest.iter_rows()) == {
            "test": date(2024, 3, 28),  # the third day, counted back from 30 March
            "validation": date(2024, 2, 20),  # the fortieth; February trains only up to the 18th
            "train": date(2024, 3, 1),
        }
        whole = chosen.group_by("day").agg(pl.col("split").is_null().n_unique())
        assert whole["split"].max() == 1

    def test_the_newest_day_is_that_of_the_columns_zone(self, tmp_path):
        # 23:30 UTC on the 30th is the 31st in Berlin: one day of test rows is that of the 31st.
        at = pl.Series([datetime(2024, 3, 30, hour, 30, tzinfo=UTC) for hour in (12, 23)])
        rows = pl.DataFrame({"at": at.dt.convert_time_zone("Europe/Berlin"), "label": [0, 0]})
        snapshot = written(tmp_path, rows, split=SplitSection(test_days=1))
        snapshot = snapshot.model_copy(
            update={"time_max": datetime(2024, 3, 30, 23, 30, tzinfo=UTC)}
        )
        assert rows.select(selected_split(snapshot)).to_series().to_list() == [None, "test"]

    @pytest.mark.parametrize("missing", [None, float("nan")])
    def test_rows_without_a_label_are_in_no_split(self, tmp_path, missing):
        rows = self.ROWS.with_columns(label=pl.Series([missing, 1.0] * (self.ROWS.height // 2)))
        snapshot = written(tmp_path, rows)
        used = Dataset(snapshot).scan(Split.TRAIN).collect()
        assert used["label"].unique().to_list() == [1.0]
        assert Dataset(snapshot).scan().collect().height == rows.height


class TestReading:
    def test_all_partitions_are_read_in_order_whatever_their_column_order(self, tmp_path):
        first, second = days_table(date(2024, 1, 1), 3), days_table(date(2024, 1, 4), 3)
        snapshot = written(tmp_path, first, second.select("label", "at"))
        assert Dataset(snapshot).scan().collect().equals(pl.concat([first, second]))

    def test_folder_names_add_no_columns(self, tmp_path):
        snapshot = written(tmp_path / "month=1", days_table(date(2024, 1, 1), 3))
        assert Dataset(snapshot).scan().collect().columns == ["at", "label"]

    @pytest.mark.parametrize("size", [1, 7, 1000])
    def test_batches_are_the_split_in_order_and_never_too_long(self, tmp_path, size):
        tables = [days_table(date(2024, month, 1), 28) for month in (1, 2, 3)]
        dataset = Dataset(written(tmp_path, *tables))
        batches = list(dataset.batches(Split.TRAIN, size))
        assert max(batch.height for batch in batches) <= size
        assert pl.concat(batches).equals(dataset.scan(Split.TRAIN).collect())

    def test_labelled_batches_hold_every_row_with_its_split(self, tmp_path):
        table = days_table(date(2024, 1, 1), 60)
        dataset = Dataset(written(tmp_path, table))
        rows = pl.concat(dataset.labelled_batches(50))
        assert rows.drop(SPLIT_COLUMN).equals(table)
        for split in Split:
            expected = dataset.scan(split).collect()
            assert (
                rows.filter(pl.col(SPLIT_COLUMN) == split.value).drop(SPLIT_COLUMN).equals(expected)
            )

    def test_rows_know_their_file_whatever_its_name(self, tmp_path):
        tables = [days_table(date(2024, 1, start), 3 * start) for start in (1, 2, 3)]
        snapshot = written(tmp_path / "a=[*] ü", *tables)
        rows = Dataset(snapshot).scan(with_file=True).collect()
        for position, table in enumerate(tables):
            own = rows.filter(pl.col(FILE_COLUMN) == position).drop(FILE_COLUMN)
            assert own.equals(table)
        batches = Dataset(snapshot).labelled_batches(50, with_file=True)
        assert pl.concat(batches)[FILE_COLUMN].equals(rows[FILE_COLUMN])

    def test_rows_of_remote_files_of_equal_bytes_know_their_file(self, tmp_path, bucket):
        table = days_table(date(2024, 1, 1), 3)
        snapshot, store = written(tmp_path, table, table), open_store(bucket)
        for file in snapshot.files:
            store.write(Path(file.uri).name, Path(file.uri).read_bytes())
        remote = snapshot.model_copy(
            update={
                "data": snapshot.data.model_copy(update={"uri": bucket}),
                "files": tuple(
                    file.model_copy(update={"uri": f"{bucket}/{Path(file.uri).name}"})
                    for file in snapshot.files
                ),
            }
        )
        rows = Dataset(remote, tmp_path / "cache").scan(with_file=True).collect()
        assert rows[FILE_COLUMN].to_list() == [0] * table.height + [1] * table.height

    def test_the_rows_of_a_split_are_counted_file_by_file(self, tmp_path):
        tables = [days_table(date(2024, 1, 1), 28), days_table(date(2024, 2, 1), 3)]
        dataset = Dataset(written(tmp_path, *tables))
        for split in Split:
            alone = [
                Dataset(written(tmp_path / f"{split.value}{number}", table)).count(split)
                for number, table in enumerate(tables)
            ]
            assert dataset.count_by_file(split) == alone

    def test_nothing_is_opened_before_rows_are_read_and_nothing_is_read_twice(
        self, tmp_path, bucket, monkeypatch
    ):
        snapshot = written(tmp_path, *(days_table(date(2024, 1, day), 1) for day in range(1, 7)))
        store = open_store(bucket)
        for file in snapshot.files:
            store.upload(Path(file.uri).name, Path(file.uri))
        remote = snapshot.model_copy(
            update={
                "data": snapshot.data.model_copy(update={"uri": bucket}),
                "files": tuple(
                    file.model_copy(update={"uri": f"{bucket}/{Path(file.uri).name}"})
                    for file in snapshot.files
                ),
            }
        )
        fetched, read = [], S3ObjectStore.fetch_pinned

        def counted(self, item, *rest):
            fetched.append(item.key)
            return read(self, item, *rest)

        monkeypatch.setattr(S3ObjectStore, "fetch_pinned", counted)
        dataset = Dataset(remote, tmp_path / "cache")
        assert fetched == []
        assert dataset.scan().collect().height == 24
        assert sorted(fetched) == [f"part-{number}.parquet" for number in range(6)]
        hashed = []
        monkeypatch.setattr("perennial.data.dataset.sha256_of_file", hashed.append)
        store.delete("part-0.parquet")
        again = Dataset(remote, tmp_path / "cache")  # as in another process: copies are verified
        assert again.scan().collect().height == 24
        assert (len(fetched), hashed) == (6, [])

    def test_a_file_that_changed_after_the_snapshot_is_refused(self, tmp_path):
        snapshot = written(tmp_path, days_table(date(2024, 1, 1), 3))
        days_table(date(2024, 1, 1), 4).write_parquet(tmp_path / "part-0.parquet")
        with pytest.raises(BadDataError, match=r"part-0\.parquet changed after the snapshot"):
            Dataset(snapshot).scan()

    def test_a_file_of_equal_size_with_other_bytes_is_refused(self, tmp_path):
        snapshot = written(tmp_path, days_table(date(2024, 1, 1), 3))
        path = tmp_path / "part-0.parquet"
        content = bytearray(path.read_bytes())
        content[20] ^= 1
        path.write_bytes(content)
        with pytest.raises(BadDataError, match="changed after the snapshot"):
            Dataset(snapshot).scan()

    def test_a_damaged_copy_of_a_remote_file_is_fetched_again(self, tmp_path, bucket):
        snapshot = written(tmp_path, days_table(date(2024, 1, 1), 3))
        store = open_store(bucket)
        store.write("part-0.parquet", (tmp_path / "part-0.parquet").read_bytes())
        (local,) = snapshot.files
        remote = snapshot.model_copy(
            update={
                "data": snapshot.data.model_copy(update={"uri": bucket}),
                "files": (local.model_copy(update={"uri": f"{bucket}/part-0.parquet"}),),
            }
        )
        cache = tmp_path / "cache"
        Dataset(remote, cache).fetch(remote.files[0]).write_bytes(b"damaged")
        assert Dataset(remote, cache).scan().collect().height == 12

    def test_a_file_that_is_missing_is_named(self, tmp_path):
        snapshot = written(tmp_path, days_table(date(2024, 1, 1), 3))
        (tmp_path / "part-0.parquet").unlink()
        with pytest.raises(PerennialError, match=r"part-0\.parquet does not exist any more"):
            Dataset(snapshot).scan()

    def test_pages_that_cannot_be_decoded_name_their_partition(self, tmp_path):
        tables = [days_table(date(2024, 1, 1), 60), days_table(date(2024, 3, 1), 60)]
        snapshot = written(tmp_path, *tables)
        path = tmp_path / "part-1.parquet"
        content = bytearray(path.read_bytes())
        content[4:60] = bytes(56)
        path.write_bytes(content)
        # Damaged before the snapshot was taken: its footer is whole, so its pins agree.
        damaged = snapshot.files[1].model_copy(update={"sha256": sha256_of_file(path)})
        snapshot = snapshot.model_copy(update={"files": (snapshot.files[0], damaged)})
        with pytest.raises(BadDataError, match=r"part-1\.parquet cannot be decoded"):
            list(Dataset(snapshot).labelled_batches(100))


class TestBlocks:
    @pytest.mark.parametrize("days", [1, 7, 30])
    def test_the_grid_depends_on_the_block_length_alone(self, days):
        data = DataSection(uri="/data", label="label", time="at", block_days=days)
        rows = days_table(date(1969, 12, 1), 90).select(
            day=pl.col("at").dt.date(), block=block_start(data)
        )
        assert rows["block"].dtype == pl.Date
        inside = rows.select((pl.col("day") - pl.col("block")).dt.total_days()).to_series()
        assert inside.min() == 0
        assert inside.max() == days - 1
        since_1970 = (rows["block"] - date(1970, 1, 1)).dt.total_days()
        assert (since_1970 % days).unique().to_list() == [0]


@pytest.mark.parametrize(
    ("type_", "together", "expected"),
    [("Int64", 1, 5000), ("Int64", 64, 4992), ("List(UInt8)", 1, 2048), ("List(UInt8)", 48, 2016),
     ("Binary", 3000, 3000)],
)  # fmt: skip
def test_a_batch_holds_whole_groups_and_few_wide_rows(tmp_path, type_, together, expected):
    snapshot = written(tmp_path, days_table(date(2026, 1, 1), 30))
    columns = {**snapshot.columns, "x": type_}
    dataset = Dataset(snapshot.model_copy(update={"columns": columns}))
    assert dataset.batch_rows(5000, together) == expected


def test_a_part_of_a_split_is_read_alone(tmp_path):
    halves = (days_table(date(2026, 1, 1), 30), days_table(date(2026, 2, 1), 28))
    dataset = Dataset(written(tmp_path, *halves))
    whole = pl.concat(dataset.batches(Split.TRAIN, 1000))
    assert dataset.count(Split.TRAIN) == whole.height
    parts = [slice(0, 50), slice(50, 50), slice(50, whole.height)]
    read = [list(dataset.batches(Split.TRAIN, 16, part=part)) for part in parts]
    assert [batch.height for batch in read[0]] == [16, 16, 16, 2]
    assert read[1] == []
    assert pl.concat([*read[0], *read[2]]).equals(whole)
