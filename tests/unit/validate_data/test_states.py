"""States of partitions merge in any order, are computed once, and are believed only when intact."""

import json
import logging
import zipfile
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perennial.clients.object_store import open_store
from perennial.contracts.data import DataSection, Split, SplitSection
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import SPLIT_COLUMN, selected_split
from perennial.validate_data import distributions, duplicates, labels, samples, state_store
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.facts import gather_facts
from perennial.validate_data.partition_facts import Measuring, facts_measurement
from perennial.validate_data.state import FactsState, merge

NOW = datetime(2025, 1, 1, tzinfo=UTC)
START = datetime(2024, 1, 1)
ODD_NUMBERS = (0.0, -0.0, 0.1, -1e308, 5e-324, float("nan"), float("inf"), float("-inf"), 1e22)


@contextmanager
def small_capacities():
    """Every table is cut in some of the examples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distributions, "MAX_BINS", 16)
        patch.setattr(distributions, "MAX_TEXT_COUNTS", 24)
        patch.setattr(duplicates, "MAX_ENTRIES", 40)
        patch.setattr(duplicates, "MIN_KEYS", 25)
        patch.setattr(labels, "MAX_VALUES", 20)
        patch.setattr(samples, "SAMPLE_ROWS", 25)
        patch.setattr(samples, "STRATUM_ROWS", 6)
        yield


@st.composite
def tables(draw):
    """Rows of every type, with missing, repeated, odd and equal values, and their snapshot."""
    rows, seed = draw(st.integers(0, 120)), draw(st.integers(0, 2**32))
    few, share_missing = draw(st.integers(1, 60)), draw(st.sampled_from([0.0, 0.1, 1.0]))
    label = draw(st.sampled_from(["whole", "flag", "amount", "text"]))
    has_time, windowed = draw(st.booleans()), draw(st.booleans())
    make = np.random.default_rng(seed)

    def holed(values):
        return [None if make.random() < share_missing else value for value in values]

    scales = 10.0 ** make.integers(-3, 4, rows)
    amounts = [
        ODD_NUMBERS[int(place)] if place < len(ODD_NUMBERS) and make.random() < 0.5 else value
        for place, value in zip(make.integers(0, 40, rows), make.normal(size=rows) * scales, strict=True)
    ]  # fmt: skip
    table = pl.DataFrame(
        {
            "at": holed([START + timedelta(hours=int(hour)) for hour in make.integers(0, 900, rows)]),
            "amount": holed(amounts),
            "whole": holed(make.integers(0, few, rows).tolist()),
            "flag": holed((make.random(rows) < 0.5).tolist()),
            "text": holed([f"t{value}" for value in make.integers(0, few, rows)]),
            "id": [f"r{value}" for value in make.integers(0, 2 * rows + 1, rows)],
        },
        schema={"at": pl.Datetime("us"), "amount": pl.Float64, "whole": pl.Int64,
                "flag": pl.Boolean, "text": pl.String, "id": pl.String},
    )  # fmt: skip
    data = DataSection(
        uri="data", label=label, ids=("id",), time="at" if has_time else None,
        meta=() if has_time else ("at",),
    )  # fmt: skip
    split = SplitSection(test_days=9 if has_time and windowed else None)
    snapshot = Snapshot(
        data=data, split=split, files=(), rows=rows, split_rows={},
        columns={name: str(dtype) for name, dtype in table.schema.items()},
    )  # fmt: skip
    return table.with_columns(selected_split(snapshot).alias(SPLIT_COLUMN)), snapshot


def assert_equal(one: FactsState, other: FactsState) -> None:
    for name, table in one.tables.items():
        assert table.equals(other[name]), f"{name}: {table} {other[name]}"


@settings(max_examples=30, deadline=None)
@given(tables(), st.randoms(use_true_random=False))
def test_the_order_grouping_and_partitioning_of_the_rows_do_not_matter(made, chance):
    with small_capacities():
        check_order_does_not_matter(*made, chance)


@pytest.mark.full
@settings(max_examples=500, deadline=None)
@given(tables(), st.randoms(use_true_random=False))
def test_nor_do_they_in_hundreds_of_tables(made, chance):
    with small_capacities():
        check_order_does_not_matter(*made, chance)


def check_order_does_not_matter(rows: pl.DataFrame, snapshot: Snapshot, chance: Random) -> None:
    limits = {"amount": {"min": -1.0}, "text": {"matches": "t1+"}}
    measuring = Measuring(snapshot, rows.schema, ExpectationsSection(columns=limits))
    whole = merge([measuring.state_of(rows)])

    order = list(range(rows.height))
    chance.shuffle(order)
    cuts = sorted(chance.randint(0, rows.height) for _ in range(chance.randint(0, 4)))
    parts = [rows[order[start:end]] for start, end in pairwise([0, *cuts, rows.height])]
    states = [merge([measuring.state_of(part)]) for part in parts]
    while len(states) > 1:  # a tree of any shape
        chance.shuffle(states)
        count = chance.randint(2, len(states))
        states = [merge(states[:count]), *states[count:]]
    assert_equal(states[0], whole)


def test_distributions_are_within_what_they_state():
    make = np.random.default_rng(4)
    numbers = {
        "normal": make.normal(size=50_000),
        "offset": 1000 + make.normal(size=50_000),
        "heavy tails": make.lognormal(3, 2, 50_000),
        "whole": make.integers(0, 300, 50_000).astype(float),
        "seconds": 1.7e9 + make.random(50_000) * 6e5,
    }
    levels = np.linspace(0, 1, 129)
    for name, values in numbers.items():
        rows = pl.DataFrame({"x": values, "__block__": ["b"] * len(values)})
        bins = distributions.merge_numbers(distributions.count_numbers(rows, {"x": pl.Float64()}))
        assert bins.height <= distributions.MAX_BINS
        found, ordered = distributions.quantiles_of(bins, levels)[0], np.sort(values)
        low = np.searchsorted(ordered, found * (1 - 1e-7), side="left") / len(values)
        high = np.searchsorted(ordered, found * (1 + 1e-7), side="right") / len(values)
        off = np.maximum(low - levels, levels - high).max()
        assert off < 0.002, f"{name}: a quantile's rank is off by {off}"


# --- what is stored ---------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


@pytest.fixture
def months(healthy) -> list[pl.DataFrame]:
    return [healthy.slice(start, 1_000) for start in (0, 1_000, 2_000)]


def gather(snapshot, store, now=NOW, **options):
    return gather_facts(snapshot, ExpectationsSection(**options), now, store)


def stored_states(store) -> list[str]:
    return [key for item in store.list("facts/") if (key := item.key) != merged_state(store)]


def merged_state(store) -> str:
    return store.list("facts/merged/")[0].key


class TestOncePerPartition:
    def test_a_partition_whose_facts_are_stored_is_not_opened_again(
        self, snapshot_of, months, store
    ):
        snapshot = snapshot_of(*months)
        first = gather(snapshot, store)
        for file in snapshot.files:
            Path(file.uri).unlink()
        assert gather(snapshot, store) == first

    def test_only_the_new_partition_is_measured(self, snapshot_of, months, store, caplog):
        before = snapshot_of(*months[:2])
        gather(before, store)
        after = snapshot_of(*months)
        with caplog.at_level(logging.INFO):
            found = gather(after, store)
        assert "partitions=3 measured=1" in caplog.text
        assert found == gather(after, open_store(f"{store.uri}-2"))

    def test_copies_of_one_partition_count_twice(self, snapshot_of, months, store):
        facts = gather(snapshot_of(months[0], months[0]), store)
        assert facts.values["rows"] == 2_000
        assert facts.values["duplicate_row_share"] == 0.5
        assert len(stored_states(store)) == 1

    def test_processes_store_the_same_bytes_as_this_one(
        self, snapshot_of, months, store, monkeypatch
    ):
        snapshot = snapshot_of(*months)
        facts = gather(snapshot, store)
        monkeypatch.setattr(state_store, "MIN_ROWS_OF_PROCESS", 1_000)
        monkeypatch.setenv("PERENNIAL_CORES", "2")
        other = open_store(f"{store.uri}-2")
        assert gather(snapshot, other) == facts
        assert stored_states(other) == stored_states(store)
        assert all(other.read(key) == store.read(key) for key in stored_states(store))

    def test_what_the_newest_time_and_the_clock_decide_is_not_stored(
        self, snapshot_of, healthy, store, caplog
    ):
        """Windows end at the newest row, wherever the partitions are cut."""
        parts = [healthy.head(1_000), healthy.tail(2_000)]
        early = snapshot_of(parts[0], split={"test_days": 10})
        late = snapshot_of(*parts, split={"test_days": 10})
        gather(early, store)
        with caplog.at_level(logging.INFO):
            facts = gather(late, store)
        assert "measured=1" in caplog.text
        rows = {split: sum(each[split] for each in facts.label.classes.values()) for split in Split}
        assert rows == late.split_rows
        newest = healthy["at"].max().replace(tzinfo=UTC)
        assert gather(late, store, now=newest - timedelta(days=9)).values["future_rows"] > 0
        assert facts.values["future_rows"] == 0


KEEP = {
    "a limit on the table": ({"min_rows": 7}, {}, {}),
    "a limit on shares": ({"max_missing_share": 0.5}, {}, {}),
    "a severity": ({"columns": {"amount": {"min": 0.0, "severity": "warning"}}}, {}, {}),
    "a share of bad values": ({"columns": {"amount": {"min": 0.0, "max_bad_share": 0.1}}}, {}, {}),
    "the kind of the label": ({"label_kind": "number"}, {}, {}),
    "another window": ({}, {}, {"test_days": 40}),
    "the place of the data": ({}, {"uri": "elsewhere"}, {}),
}
RECOMPUTE = {
    "a limit on values": ({"columns": {"amount": {"min": 1.0}}}, {}, {}),
    "allowed values": (
        {"columns": {"amount": {"min": 0.0}, "city": {"allowed": ("Ulm",)}}},
        {},
        {},
    ),
    "a pattern": ({"columns": {"amount": {"min": 0.0}, "city": {"matches": "U.*"}}}, {}, {}),
    "ids": ({}, {"ids": ()}, {}),
    "a role": ({}, {"meta": ("visits",)}, {}),
    "free text": ({}, {"text": ("city",)}, {}),
    "the length of blocks": ({}, {"block_days": 3}, {}),
    "the label": ({}, {"label": "visits"}, {}),
    "the split's shares": ({}, {}, {"test_fraction": 0.3}),
    "the split's period": ({}, {}, {"period": "week"}),
    "no window": ({}, {}, {"test_days": None}),
}


def digest_after(snapshot, limits, data, split) -> str:
    usual = {"columns": {"amount": {"min": 0.0}}}
    changed = snapshot.model_copy(
        update={
            "data": snapshot.data.model_copy(update=data),
            "split": snapshot.split.model_copy(update=split),
        }
    )
    return facts_measurement(changed, ExpectationsSection(**(usual | limits))).digest


class TestSettings:
    @pytest.mark.parametrize("change", KEEP)
    def test_what_a_state_does_not_depend_on_keeps_it(self, snapshot_of, healthy, change):
        snapshot = snapshot_of(healthy, split={"test_days": 30})
        assert digest_after(snapshot, *KEEP[change]) == digest_after(snapshot, {}, {}, {})

    @pytest.mark.parametrize("change", RECOMPUTE)
    def test_what_it_depends_on_measures_again(self, snapshot_of, healthy, change):
        snapshot = snapshot_of(healthy, split={"test_days": 30})
        assert digest_after(snapshot, *RECOMPUTE[change]) != digest_after(snapshot, {}, {}, {})

    def test_another_type_of_a_column_measures_again(self, snapshot_of, healthy):
        one = snapshot_of(healthy)
        other = snapshot_of(healthy.with_columns(pl.col("visits").cast(pl.Int32)))
        assert digest_after(one, {}, {}, {}) != digest_after(other, {}, {}, {})


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def of_another_partition(content: bytes) -> bytes:
    with zipfile.ZipFile(BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    title = json.loads(members["state.json"]) | {"partition": "0" * 64}
    target = BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        for name, member in (members | {"state.json": json.dumps(title).encode()}).items():
            archive.writestr(name, member)
    return target.getvalue()


def without_a_table(content: bytes) -> bytes:
    target = BytesIO()
    with zipfile.ZipFile(BytesIO(content)) as archive, zipfile.ZipFile(target, "w") as other:
        for name in archive.namelist():
            if name != "numbers":
                other.writestr(name, archive.read(name))
    return target.getvalue()


DAMAGE = {
    "truncated": truncated,
    "one bit": flipped,
    "empty": lambda _: b"",
    "another partition's": of_another_partition,
    "a table is missing": without_a_table,
    "not an archive": lambda _: b"PAR1 something else",
    "pickle": lambda _: b"\x80\x04K\x01.",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_is_computed_again_with_a_warning(
    snapshot_of, months, store, caplog, damage
):
    snapshot = snapshot_of(*months)
    facts = gather(snapshot, store)
    key = stored_states(store)[1]
    intact = store.read(key)
    store.delete(merged_state(store))
    store.write(key, DAMAGE[damage](intact))
    assert gather(snapshot, store) == facts
    assert f"{key} is measured again" in caplog.text
    assert store.read(key) == intact


@pytest.mark.parametrize("damage", sorted(DAMAGE.keys() - {"another partition's"}))
def test_a_damaged_merged_state_is_merged_again_with_a_warning(
    snapshot_of, months, store, caplog, damage
):
    snapshot = snapshot_of(*months)
    facts = gather(snapshot, store)
    key = merged_state(store)
    intact = store.read(key)
    store.write(key, DAMAGE[damage](intact))
    assert gather(snapshot, store) == facts
    assert store.read(key) == intact
    assert f"{key} is merged again" in caplog.text


def test_a_merged_state_serves_no_snapshot_that_lacks_one_of_its_partitions(
    snapshot_of, months, store
):
    whole = snapshot_of(*months)
    gather(whole, store)
    less = whole.model_copy(update={"files": whole.files[1:], "rows": 2_000})
    assert gather(less, store) == gather(less, open_store(f"{store.uri}-2"))


def test_with_a_merged_state_no_other_is_read(snapshot_of, months, store):
    snapshot = snapshot_of(*months)
    facts = gather(snapshot, store)
    for key in stored_states(store):
        store.delete(key)
    for file in snapshot.files:
        Path(file.uri).unlink()
    assert gather(snapshot, store) == facts
