"""A small healthy dataset, written as monthly partitions."""

import json
from datetime import datetime, timedelta

import polars as pl
import pytest

from s3_server import bucket, s3_endpoint


def month_of_rows(month: int) -> pl.DataFrame:
    start = datetime(2024, month, 1)
    return pl.DataFrame(
        {
            "id": [f"{month}-{i}" for i in range(112)],
            "at": [start + timedelta(hours=6 * i) for i in range(112)],
            "user": [f"u{i % 40}" for i in range(112)],
            "amount": [float(i) for i in range(112)],
            "city": ["Ulm", "Bonn"] * 56,
            "known_at": [start + timedelta(hours=6 * i - 1) for i in range(112)],
            "label": [i % 2 for i in range(112)],
        }
    )


@pytest.fixture
def months() -> dict[str, pl.DataFrame]:
    return {f"month=2024-{month:02}/rows.parquet": month_of_rows(month) for month in (1, 2, 3)}


@pytest.fixture
def write(tmp_path):
    """Writes tables as partitions of one dataset and returns its folder."""

    def write_all(tables, folder="data"):
        for key, table in tables.items():
            path = tmp_path / folder / key
            path.parent.mkdir(parents=True, exist_ok=True)
            table.write_parquet(path)
        return tmp_path / folder

    return write_all


@pytest.fixture
def contract():
    """The JSON text of a contract on a dataset."""

    def text(uri, **sections) -> str:
        data = {"uri": str(uri), "label": "label", "time": "at", "ids": ["id"]}
        whole = {
            "model": {"name": "demo", "task": "demo.task:Demo"},
            "data": data | {"available_at": {"amount": "known_at"}},
            "split": {},
        }
        return json.dumps(whole | sections)

    return text
