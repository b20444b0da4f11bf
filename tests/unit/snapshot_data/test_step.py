"""The step writes the snapshot and keeps it in the object store."""

import os
from pathlib import Path

import pytest

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


def test_writes_the_snapshot_its_record_page_and_metrics(run, write, months, contract, tmp_path):
    result, out = run(contract(write(months)))
    snapshot = Snapshot.read(out / "snapshot")
    assert (tmp_path / "store" / "snapshots" / snapshot.digest() / "snapshot.json").exists()
    page = (out / "report").read_text()
    assert all(name in page for name in (*snapshot.columns, "month=2024-02/rows.parquet"))
    assert page.count("<svg") == 2
    assert result.metrics["rows"] == 336
    assert "336 rows in 3 partitions" in result.summary


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
