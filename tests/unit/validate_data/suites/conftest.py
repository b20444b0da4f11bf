"""Flights of 2013, as the example writes them."""

import importlib.util
from pathlib import Path

import polars as pl
import pytest

EXAMPLE = Path(__file__).resolve().parents[4] / "examples" / "flights" / "prepare.py"


@pytest.fixture(scope="session")
def year() -> pl.DataFrame:
    """All flights of 2013, as the example writes them."""
    spec = importlib.util.spec_from_file_location("prepare_flights", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.build_rows()


@pytest.fixture(scope="session")
def january(year) -> pl.DataFrame:
    return year.filter(pl.col("scheduled_departure").dt.month() == 1)
