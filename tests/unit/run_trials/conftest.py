"""The tiny training of `tests/support/tiny_training.py`, and a home for its studies."""

import pytest

from perennial.contracts.environment import LEASE, RUN_FOLDER
from tiny_training import root


@pytest.fixture
def environment(tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-1")
    monkeypatch.setenv(RUN_FOLDER, str(tmp_path / "home" / "runs" / "run-1"))
    monkeypatch.delenv(LEASE, raising=False)
    (tmp_path / "home" / "runs" / "run-1").mkdir(parents=True)
    return tmp_path
