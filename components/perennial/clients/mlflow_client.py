"""MLflow client: the only client of an MLflow server or database; explains its errors.

Whatever MLflow or its database raises leaves here as an `MlflowError`: a problem, its evidence and
what to do. It is an `MlflowException` still, so that its code can be asked for.
"""

import fcntl
import json
import logging
import os
import re
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar
from urllib.parse import quote

from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.version import VERSION
from sqlalchemy.exc import SQLAlchemyError
from typing_extensions import override

from perennial.clients.outages import outlast
from perennial.contracts.environment import Environment, without_login
from perennial.contracts.errors import PerennialError

SQLITE = "sqlite:///"
LOCK_SECONDS = 20
"""Seconds that another process may lock the database; MLflow waits as long for each statement."""
# How MLflow's client reports that there was no answer.
UNANSWERED = re.compile(r"API request to \S+ failed with (timeout )?exception")
# What MLflow answers when a row appeared or the database was locked while it was writing, and how
# often a write is tried; each loser's second try finds the row, a version's number is raced for.
RACES_LOST = ("BAD_REQUEST", "INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE")
WRITES = 5
# The start of what MLflow or its database raise → what is wrong, and what to do.
KNOWN = (
    (
        UNANSWERED,
        "MLflow's server does not answer",
        "check that MLFLOW_TRACKING_URI is its address, and that it is reached from here (one in a "
        "cluster through `kubectl port-forward`)",
    ),
    (
        re.compile(r"Expecting value: line"),
        "MLflow's server answers with something other than JSON",
        "check that MLFLOW_TRACKING_URI is its address, and not that of a login page before it",
    ),
    (
        re.compile(r".*out-of-date database schema"),
        f"MLflow's database was made by another version than the installed {VERSION}",
        "install the version of MLflow that wrote it; or, if that was an earlier one, take a "
        "backup and run `mlflow db upgrade` with the database's address",
    ),
    (
        re.compile(r".*database is locked", re.DOTALL),
        f"MLflow's database is locked by another process for {LOCK_SECONDS} s",
        "see which process uses it (`fuser` names it), and run this again when it has ended",
    ),
    (
        re.compile(r".*(readonly database|disk is full|unable to open|disk I/O error)", re.S),
        "MLflow's database cannot be opened or written",
        "check the rights on its folder and the free space there, or choose another with --home",
    ),
    (
        re.compile(r".*(not a database|malformed|no such table|no such column)", re.S),
        "MLflow's database is damaged",
        "restore it from a backup. The models' files and the records of promotions lie in the "
        "object store and are not affected",
    ),
)

P = ParamSpec("P")
T = TypeVar("T")


class MlflowError(PerennialError, MlflowException):
    """MLflow or its database refuses a call or cannot be used."""

    error_code: str

    def __init__(self, problem: str, *, evidence: str, action: str, code: str) -> None:
        super().__init__(problem, evidence=evidence, action=action)
        self.error_code = code

    @classmethod
    def of(cls, error: Exception, uri: str) -> "MlflowError":
        """Return the `MlflowError` that explains an exception."""
        text = str(error)
        code = getattr(error, "error_code", "INTERNAL_ERROR")
        first = text.splitlines()[0][:500] if text else type(error).__name__
        evidence = without_login(f"{uri}: {first}")
        for pattern, problem, action in KNOWN:
            if pattern.match(text):
                return cls(problem, evidence=evidence, action=action, code=code)
        action = "check that MLFLOW_TRACKING_URI is right, and what is recorded there"
        return cls("MLflow refuses a request", evidence=evidence, action=action, code=code)


class GuardedClient(MlflowClient):
    """MLflow's client, each of whose calls raises an `MlflowError` or returns.

    In a run each of them waits for a server that does not answer.

    Args:
        uri: Of tracking server or database, which is the registry as well.
    """

    def __init__(self, uri: str) -> None:
        self._guarded_uri = uri
        with _explained(uri):
            super().__init__(uri, uri)

    @override
    def __getattribute__(self, name: str) -> object:
        # Every method, so that those which a later MLflow adds are guarded as well.
        found = super().__getattribute__(name)
        if name.startswith("_") or not callable(found):
            return found

        @wraps(found)
        def call(*args: object, **kwargs: object) -> object:
            # Explained inside: a timeout then repeats the problem and what to do.
            return outlast(lambda: guarded(*args, **kwargs))

        def guarded(*args: object, **kwargs: object) -> object:
            with _explained(self._guarded_uri):
                return found(*args, **kwargs)

        return call


def open_mlflow(environment: Environment) -> MlflowClient:
    """Return a quiet client of the environment's MLflow; MLflow's global active run is never used.

    Raises:
        MlflowError: the database is damaged, locked, or of another version of MLflow.
    """
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    # It logs what it raises, with a traceback.
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)
    # MLflow's own seven retries take four minutes, in silence; a run waits by `outlast`.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "30")
    with warnings.catch_warnings():
        # MLflow's database models use a loader that SQLAlchemy 2.1 deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        _make_database(environment.tracking_uri)
        _refuse_unreadable(environment.tracking_uri)
        return GuardedClient(environment.tracking_uri)


@contextmanager
def tolerated(code: str) -> Iterator[None]:
    """An answer of MLflow that is as good as success."""
    try:
        yield
    except MlflowException as error:
        if error.error_code != code:
            raise


def despite_rivals(write: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the answer to a write that may be repeated, although others write the same.

    MLflow looks for a row, then inserts it. Who loses the race between the two gets an error
    of the database, and finds the row the next time.
    """
    for _ in range(WRITES - 1):
        try:
            return write(*args, **kwargs)
        except MlflowException as error:
            if error.error_code not in RACES_LOST:
                raise
    return write(*args, **kwargs)


@contextmanager
def _explained(uri: str) -> Iterator[None]:
    try:
        yield
    except PerennialError:
        raise
    except (MlflowException, SQLAlchemyError, sqlite3.Error, json.JSONDecodeError) as error:
        raise MlflowError.of(error, uri) from error


def _refuse_unreadable(uri: str) -> None:
    """Read a sqlite database once, since MLflow would try for minutes to open a damaged one.

    Raises:
        MlflowError: it is damaged, or locked for too long.
    """
    if not uri.startswith(SQLITE):
        return
    place = f"file:{quote(uri.removeprefix(SQLITE))}?mode=rw"
    with (
        _explained(uri),
        closing(sqlite3.connect(place, uri=True, timeout=LOCK_SECONDS)) as database,
    ):
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()


def _make_database(uri: str) -> None:
    """Make a missing sqlite database under another name, and rename it when it is complete.

    MLflow makes tables one by one where they are missed: of two processes that open a new database
    at once, one fails, and after a kill on the way nobody can open it any more.
    """
    database = Path(uri.removeprefix(SQLITE))
    if not uri.startswith(SQLITE) or database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    with database.with_name(f".{database.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if database.exists():
            return
        new = database.with_name(f".{database.name}.new")
        # A process that was killed here may have left an incomplete one.
        new.unlink(missing_ok=True)
        MlflowClient(f"{SQLITE}{new}").search_experiments(max_results=1)
        new.replace(database)
