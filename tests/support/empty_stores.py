"""The environment of a laptop, and a user without rights."""

import contextlib
import os

import pytest

from perennial.clients import mlflow_client
from perennial.contracts.environment import Environment
from small_models import environment_at


@pytest.fixture
def environment(tmp_path) -> Environment:
    """A laptop: a local store and MLflow's database without a server."""
    made = environment_at(tmp_path / "mlflow.db", tmp_path)
    mlflow_client._make_database(made.tracking_uri)
    return made


@pytest.fixture
def as_nobody():
    """Gives up root's right to read everything, for the time of a `with` block."""

    @contextlib.contextmanager
    def unprivileged():
        before = os.geteuid()
        os.seteuid(65534 if before == 0 else before)
        try:
            yield
        finally:
            os.seteuid(before)

    return unprivileged()
