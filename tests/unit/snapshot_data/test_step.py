"""The step writes the snapshot and keeps it in the object store."""

import html
import os
from pathlib import Path

import polars as pl
import pytest

from perennial.contracts.errors import PerennialError
from perennial.contracts.snapshot import Snapshot
from perennial.snapshot_data.step import snapshot_data_step


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///unused.db")
    monkeypatch.delenv("PERENNIAL_RUN_FOLDER", raising=False)

    def step(contract: str):
        outputs = {name: str(tmp_path / "out" / name) for name in ("snapshot", "report")}
        return snapshot_data_step(contract=contract, **outputs), tmp_path / "out"

    return step


@pytest.fixture
def folder(write, months):
    """A dataset of three partitions."""
    return write(months)


def test_writes_the_snapshot_its_record_page_and_metrics(run, write, months, contract, tmp_path):
    result, out = run(contract(write(months)))
    snapshot = Snapshot.read(out / "snapshot")
    assert (tmp_path / "store" / "snapshots" / snapshot.digest() / "snapshot.json").exists()
    page = (out / "report").read_text()
    assert all(name in page for name in (*snapshot.columns, "month=2024-02/rows.parquet"))
    assert page.count("<svg") == 2
    assert result.metrics["rows"] == 336
    assert "336 rows in 3 partitions" in result.summary


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        ("amounts", r"gate.slices names \['amounts'\], whose values are lists"),
        ("town", r"gate.slices names \['town'\], which are not columns of the dataset"),
    ],
)
def test_slices_that_the_gate_refuses_end_the_run_here(
    run, write, months, contract, tmp_path, *, column, problem
):
    """Not after the training, in evaluate_model."""
    lists = {
        key: table.with_columns(amounts=pl.concat_list("amount")) for key, table in months.items()
    }
    folder = write(lists)
    with pytest.raises(PerennialError, match=problem):
        run(contract(folder, gate={"slices": ["city", column]}))
    assert not (tmp_path / "out" / "snapshot").exists()
    run(contract(folder, gate={"slices": ["city"]}))
    assert (tmp_path / "out" / "snapshot").exists()


def test_the_page_and_the_log_say_what_was_ignored_and_why(run, write, months, contract, caplog):
    folder = write(months)
    for name in ("_SUCCESS", "_delta_log/00.json", "notes.txt", ".x<b>"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("other")
    Path(os.fsdecode(os.fsencode(folder) + b"/.not-utf8-\xff")).touch()
    with caplog.at_level("INFO"):
        result, out = run(contract(folder))
    page = (out / "report").read_text()
    assert "5 other files ignored" in result.summary
    assert result.metrics["ignored_files"] == 5
    for text in ("notes.txt", "_delta_log/00.json", "log of a Delta table", "starts with . or _"):
        assert text in page
        assert text in caplog.text


@pytest.mark.hostile
@pytest.mark.parametrize("change", ["gone", "rewritten"])
def test_what_the_last_snapshot_had_and_this_one_lacks_is_reported(
    run, folder, contract, caplog, change
):
    run(contract(folder))
    lost = folder / "month=2024-02/rows.parquet"
    if change == "gone":
        lost.unlink()
        expected = "of 3 partitions 1 is gone (112 rows: 'month=2024-02/rows.parquet')"
    else:
        pl.read_parquet(lost).with_columns(pl.col("amount") + 1).write_parquet(lost)
        expected = "of 3 partitions 1 was rewritten ('month=2024-02/rows.parquet')"
    result, out = run(contract(folder))
    assert expected in result.summary
    assert expected in html.unescape((out / "report").read_text())
    assert expected in caplog.text


def test_a_dataset_that_grew_moved_or_renamed_a_partition_lost_nothing(
    run, write, months, contract, caplog
):
    first, second, third = months.items()
    run(contract(write(dict([first, second]))))
    elsewhere = write({"renamed.parquet": first[1], second[0]: second[1], third[0]: third[1]}, "b")
    result, out = run(contract(elsewhere))
    assert "WARNING" not in result.summary + caplog.text
    assert "last snapshot" not in (out / "report").read_text()


@pytest.mark.hostile
@pytest.mark.parametrize("record", [b"", b"null", b'{"snapshot_digest": "gone"}', b"\xff"])
def test_a_damaged_record_of_the_last_snapshot_stops_nothing_and_is_made_again(
    run, folder, contract, caplog, record
):
    run(contract(folder))
    (folder.parent / "store/snapshots/last/demo.json").write_bytes(record)
    result, _ = run(contract(folder))
    assert "lost partitions are not noticed" in caplog.text
    assert "WARNING" not in result.summary
    (folder / "month=2024-02/rows.parquet").unlink()
    assert "1 is gone" in run(contract(folder))[0].summary
