"""An empty MLflow database, the environment of a laptop, and a user without rights."""

import contextlib
import os
import shutil

import pytest

from perennial.clients.tracking import open_mlflow
from perennial.contracts.environment import Environment
from small_models import environment_at


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """MLflow's database as it makes it, once: making it takes seconds."""
    folder = tmp_path_factory.mktemp("mlflow")
    open_mlflow(environment_at(folder / "mlflow.db", folder)).search_experiments()
    return folder / "mlflow.db"


@pytest.fixture
def environment(tmp_path, empty_database) -> Environment:
    """A laptop: a local store and MLflow's database without a server."""
    shutil.copyfile(empty_database, tmp_path / "mlflow.db")
    return environment_at(tmp_path / "mlflow.db", tmp_path)


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
