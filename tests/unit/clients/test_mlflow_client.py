"""A database of MLflow that cannot be used is a clear error, within a stated time."""

import sqlite3
from contextlib import closing, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from mlflow.exceptions import MlflowException

from perennial.clients import mlflow_client
from perennial.clients.mlflow_client import MlflowError
from perennial.clients.tracking import open_mlflow, open_tracking
from perennial.contracts.errors import PerennialError
from perennial.registry.model_registry import open_registry

pytestmark = pytest.mark.hostile


@pytest.fixture
def database(environment):
    return environment.tracking_uri.removeprefix("sqlite:///")


def change(database, *statements):
    with closing(sqlite3.connect(database)) as opened:
        for statement in statements:
            opened.execute(statement)
        opened.commit()


def overwrite(database, content, at=0):
    with Path(database).open("r+b") as stream:
        stream.seek(at)
        stream.write(content)


DAMAGES = {
    "garbage": (lambda d: overwrite(d, b"garbage" * 500), "database is damaged"),
    "garbage pages": (lambda d: overwrite(d, b"\xff" * 400_000, 4096), "MLflow"),
    "a newer schema": (
        lambda d: change(d, "UPDATE alembic_version SET version_num = 'ffffffffffff'"),
        "made by another version than the installed",
    ),
    "no schema version": (
        lambda d: change(d, "DELETE FROM alembic_version"),
        "made by another version than the installed",
    ),
    "a table gone": (
        lambda d: change(d, "DROP TABLE registered_model_aliases"), "MLflow",
    ),
    "a column gone": (
        lambda d: change(d, "ALTER TABLE registered_models DROP COLUMN description"),
        "database is damaged",
    ),
}  # fmt: skip


def use(environment):
    """Read, write, read."""
    registry = open_registry(environment)
    registry.version_by_alias("clicks", "champion")
    registry.describe_model("clicks", "", {})
    registry.version_by_alias("clicks", "champion")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_database_is_an_error_for_people(environment, database, damage):
    harm, problem = DAMAGES[damage]
    harm(database)
    with pytest.raises(PerennialError) as stopped:
        use(environment)
    assert problem in stopped.value.problem, stopped.value
    assert environment.tracking_uri in stopped.value.evidence
    assert stopped.value.action


@contextmanager
def locked(database):
    with closing(sqlite3.connect(database)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield


def test_a_database_that_another_process_locks_is_waited_for_as_long_as_stated(
    environment, database, monkeypatch
):
    monkeypatch.setattr(mlflow_client, "LOCK_SECONDS", 0.05)
    with locked(database), pytest.raises(PerennialError, match="locked by another process"):
        open_mlflow(environment)
    open_mlflow(environment)


def test_an_error_keeps_mlflows_code(environment):
    client = open_mlflow(environment)
    with pytest.raises(MlflowException) as missing:
        client.get_run("0" * 32)
    assert isinstance(missing.value, PerennialError)
    assert missing.value.error_code == "RESOURCE_DOES_NOT_EXIST"


def test_a_run_whose_row_was_deleted_cannot_be_joined(environment, database):
    tracking = open_tracking(environment, "flights")
    change(database, f"DELETE FROM runs WHERE run_uuid = '{tracking.run_id}'")
    with pytest.raises(PerennialError, match="cannot be joined"):
        open_tracking(environment, "flights")


class LoginPage(BaseHTTPRequestHandler):
    """What a proxy in front of MLflow answers to everybody."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<html>please log in</html>")

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_):
        """Nothing."""


def test_a_login_page_in_mlflows_place_is_an_error_for_people(environment):
    server = ThreadingHTTPServer(("127.0.0.1", 0), LoginPage)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        uri = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(PerennialError) as stopped:
            open_mlflow(replace(environment, tracking_uri=uri)).search_experiments()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert "MLflow" in stopped.value.problem


def test_a_password_in_the_address_is_not_shown():
    text = "API request to http://ada:secret@host/api failed with exception"
    error = MlflowError.of(MlflowException(text), "http://ada:secret@host")
    assert error.problem == "MLflow's server does not answer"
    assert "secret" not in str(error)
    assert "http://host" in error.evidence
