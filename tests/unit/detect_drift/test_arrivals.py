"""The order in which files arrived: snapshots first, then names."""

import pytest

from perennial.clients.object_store import ConflictError, open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import PerennialError
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.detect_drift.file_windows import record_arrivals

KEY = "monitoring/m/files.json"


def snapshot(*paths):
    """Files whose digests are their names; `name>digest` for another."""
    named = [path.partition(">") for path in paths]
    return Snapshot(
        data=DataSection(uri="s3://b/d", label="y"), split=SplitSection(), columns={}, rows=0,
        files=tuple(
            DataFile(uri=f"s3://b/d/{path}", size_bytes=1, sha256=digest or path, rows=1)
            for path, _, digest in named
        ),
        split_rows={},
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    return open_store(str(tmp_path / "store"))


def test_snapshots_order_files_and_names_those_of_one_snapshot(store):
    assert list(record_arrivals(store, "m", [snapshot("a", "c")])) == ["a", "c"]
    assert list(record_arrivals(store, "m", [snapshot("a", "b", "c", "d")])) == list("acbd")
    kept = store.read(KEY)
    # An older look, a repeated one and a renamed file change nothing.
    assert list(record_arrivals(store, "m", [snapshot("c"), snapshot("z>a", "b")])) == list("acbd")
    assert store.read(KEY) == kept
    # A file that was written again arrives again.
    assert list(record_arrivals(store, "m", [snapshot("a>A", "b")])) == ["a", "c", "b", "d", "A"]


def test_numbers_in_names_count_by_their_value(store):
    named = ["part-10", "part-9", "x", "day=2/part-1", "day=10/part-0", "²", "part-"]
    assert list(record_arrivals(store, "m", [snapshot(*named)])) == [
        "day=2/part-1", "day=10/part-0", "part-", "part-9", "part-10", "x", "²"
    ]  # fmt: skip


def test_the_loser_of_a_race_keeps_what_the_winner_wrote(store, monkeypatch):
    write, rivals = store.replace, [snapshot("rival")]

    def replace(key, content, *, previous):
        if rivals:
            monkeypatch.setattr(store, "replace", write)
            record_arrivals(store, "m", [rivals.pop()])
            raise ConflictError("another writer was first")
        write(key, content, previous=previous)

    monkeypatch.setattr(store, "replace", replace)
    assert list(record_arrivals(store, "m", [snapshot("own")])) == ["rival", "own"]


def test_a_damaged_record_is_an_error_that_names_the_next_action(store):
    store.write(KEY, b"{")
    with pytest.raises(PerennialError, match="damaged") as stopped:
        record_arrivals(store, "m", [snapshot("a")])
    assert "delete it" in stopped.value.action
    assert "files.json" in stopped.value.evidence
