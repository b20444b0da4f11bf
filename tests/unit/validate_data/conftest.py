"""A small healthy dataset, and a way to spoil it and judge it."""

import json
import warnings
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from perennial.clients.object_store import sha256_of_file
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.data.splits import with_split_rows
from perennial.validate_data.step import validate_data_step
from s3_server import bucket, s3_endpoint

with warnings.catch_warnings():
    # Great Expectations imports a module that Python has deprecated.
    warnings.simplefilter("ignore", DeprecationWarning)
    import perennial.validate_data.validation

__all__ = ["bucket", "s3_endpoint"]

ROWS = 3_000
START = datetime(2024, 1, 1)


@pytest.fixture(scope="session")
def healthy() -> pl.DataFrame:
    """Three months of rows whose label depends a little on the features."""
    random = np.random.default_rng(5)
    at = [START + timedelta(minutes=43 * i) for i in range(ROWS)]
    amount = random.normal(50.0, 10.0, ROWS)
    city = random.choice(["Ulm", "Bonn", "Kiel"], ROWS, p=[0.5, 0.3, 0.2])
    chance = 1 / (1 + np.exp(-(amount - 50) / 10 - (city == "Kiel")))
    return pl.DataFrame(
        {
            "id": [f"r{i}" for i in range(ROWS)],
            "at": at,
            "user": [f"u{i}" for i in random.integers(0, 300, ROWS)],
            "amount": amount,
            "visits": random.integers(0, 20, ROWS),
            "city": city,
            "weather": [None if i % 9 == 0 else float(i % 30) for i in range(ROWS)],
            "weather_at": [None if i % 9 == 0 else at[i] - timedelta(hours=1) for i in range(ROWS)],
            "label": (random.random(ROWS) < chance).astype(int),
        }
    )


@pytest.fixture
def snapshot_of(tmp_path):
    """Pins tables as partitions, without the checks that `snapshot_data` makes first."""

    def pin(*tables: pl.DataFrame, split: dict | None = None, **roles) -> Snapshot:
        folder = tmp_path / f"data{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        files = []
        for index, table in enumerate(tables):
            path = folder / f"part-{index:03}.parquet"
            table.write_parquet(path)
            size, digest = path.stat().st_size, sha256_of_file(path)
            files.append(DataFile(uri=str(path), size_bytes=size, sha256=digest, rows=table.height))
        defaults = {"label": "label", "time": "at", "ids": ("id",), "meta": ("user",)}
        defaults["available_at"] = {"weather": "weather_at"}
        present = set(tables[0].columns)
        if "weather" not in present:
            del defaults["available_at"]
        snapshot = Snapshot(
            data=DataSection(uri=str(folder), **(defaults | roles)),
            split=SplitSection(**(split or {})),
            files=tuple(files),
            columns={name: str(dtype) for name, dtype in tables[0].schema.items()},
            rows=sum(table.height for table in tables),
            split_rows={},
        )
        return with_split_rows(snapshot)

    return pin


@pytest.fixture
def validate(tmp_path, monkeypatch):
    """Runs the step on a snapshot; the outputs are in `out` whether it raises or not."""
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///unused.db")
    monkeypatch.delenv("PERENNIAL_RUN_FOLDER", raising=False)
    out = tmp_path / "out"

    def run(snapshot: Snapshot, **expectations):
        snapshot.write(tmp_path / "snapshot")
        model = {"name": "demo", "task": "demo.task:Demo"}
        config = json.dumps({"model": model, "expectations": expectations})
        outputs = {name: str(out / name) for name in ("validation", "report", "perennial_suite")}
        return validate_data_step(contract=config, snapshot=str(tmp_path / "snapshot"), **outputs)

    run.out = out
    return run
