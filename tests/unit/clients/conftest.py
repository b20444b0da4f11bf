"""What tests of the clients share."""

import pytest

from components.clients.environment import Environment


@pytest.fixture
def environment(tmp_path) -> Environment:
    """A laptop: a local store and MLflow's database without a server."""
    return Environment(
        store_uri=str(tmp_path / "store"),
        tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}",
        run_id="run-1",
        run_folder=None,
        code_digest="code",
        commit="abc",
        tracking_run_id="",
    )
