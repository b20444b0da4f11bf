"""Tests that compare durations get the machine to themselves, also beside other workers.

Ctrl-C is answered where a test needs it. Hostile inputs are counted at the end.
"""

import fcntl
import gc
import multiprocessing.util
import os
import shutil
import signal
import sys
import tempfile
import threading
import warnings
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings

from perennial.clients import mlflow_client

MACHINE = Path(__file__)
DOOR = MACHINE.with_name("README.md")
LONG = MACHINE.with_name("long_variants.txt")
# A service that a test takes away for good is waited for as long as this, not ten minutes.
os.environ.setdefault("PERENNIAL_OUTAGE_SECONDS", "20")
# No machine of a cloud is asked for credentials.
os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
# Nothing of what collection imports is garbage; to search it costs each worker 4 s of CPU time.
gc.disable()
# No test asserts on speed: an example may take as long as the machine does.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_configure(config):
    """Give the tests a temporary folder of their own: what killed processes leave goes with it.

    Pytest's own folders stay where they are, so that those of failed tests can be looked at.
    """
    if hasattr(config, "workerinput"):
        return
    usual = tempfile.gettempdir()
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", usual)
    folder = tempfile.mkdtemp(prefix="tests-")
    Path(folder).chmod(0o711)  # some tests are another user, who must reach what they may
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    # Last of all, after the standard library has deleted its own folder of sockets there.
    multiprocessing.util.Finalize(
        None, shutil.rmtree, (folder,), {"ignore_errors": True}, exitpriority=-200
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the long variants, before those that are not asked for are left out; order the files."""
    lines = LONG.read_text().splitlines()
    found = {item.nodeid: item for item in items}
    long = {line for line in lines if not line.startswith("#")}
    for name in long & found.keys():
        found[name].add_marker(pytest.mark.full)
    # Last come files of a second or two, so that no worker waits long for the last file of another.
    items.sort(key=lambda item: item.nodeid.startswith("tests/manifests/"))
    files = {name.partition("::")[0] for name in found}
    whole = not config.option.keyword and "::" not in "".join(config.args)
    gone = {name for name in long - found.keys() if name.partition("::")[0] in files}
    if whole and gone:
        raise pytest.UsageError(f"{LONG.name} names tests that do not exist: {sorted(gone)}")


def pytest_runtest_setup():
    """Let each test begin with the same random numbers, whichever tests ran before it."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


def pytest_collection_finish():
    """Let the collector pass over what lives to the end: imported libraries and all the tests."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)  # a database's rows and a server's answers are no cycles: 8 % to 16 %
    gc.enable()


@contextmanager
def locked(path: Path, kind: int):
    """An advisory lock of every test process of this checkout; given back by name, since a child
    that a test forked shares it."""
    with path.open() as file:
        fcntl.flock(file, kind)
        try:
            yield
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    """Let tests marked `alone` run when no other does; the door keeps new ones from overtaking."""
    alone = item.get_closest_marker("alone") is not None
    with locked(DOOR, fcntl.LOCK_EX):
        machine = locked(MACHINE, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        machine.__enter__()
    try:
        return (yield)
    finally:
        machine.__exit__(None, None, None)


@pytest.fixture(scope="session", autouse=True)
def quickly_made_databases(tmp_path_factory):
    """Copies MLflow's empty database where a new one is needed: its migrations take seconds."""
    template = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    make = mlflow_client._make_database

    def copy(uri: str) -> None:
        database = Path(uri.removeprefix(mlflow_client.SQLITE))
        if not uri.startswith(mlflow_client.SQLITE) or database.exists():
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the first import of MLflow's store uses old names
            make(f"{mlflow_client.SQLITE}{template}")
        database.parent.mkdir(parents=True, exist_ok=True)
        new = database.with_name(f".{database.name}.{os.getpid()}.{threading.get_ident()}")
        shutil.copyfile(template, new)
        new.replace(database)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(mlflow_client, "_make_database", copy)
        yield


@pytest.fixture
def interruptible():
    """Python's own answer to Ctrl-C, also in children; what is started in the background has none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pytest_terminal_summary(terminalreporter):
    """Print how many hostile inputs were tried, by file, and how many were not answered well."""
    counts = {
        outcome: Counter(
            report.nodeid.partition("::")[0]
            for report in terminalreporter.stats.get(outcome, [])
            if "hostile" in report.keywords and (outcome == "failed" or report.when == "call")
        )
        for outcome in ("passed", "failed")
    }
    files = sorted({*counts["passed"], *counts["failed"]})
    if files:
        terminalreporter.section("hostile inputs: a clear error, or it works")
        for file in files:
            good, bad = counts["passed"][file], counts["failed"][file]
            terminalreporter.write_line(f"{good:5} as stated {bad:3} not  {file}")
        good, bad = (sum(counts[outcome].values()) for outcome in ("passed", "failed"))
        terminalreporter.write_line(f"{good:5} as stated {bad:3} not  in all")
