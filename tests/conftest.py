"""Tests that compare durations get the machine to themselves, also beside other workers.

Ctrl-C is answered where a test needs it.
"""

import fcntl
import os
import signal
from contextlib import contextmanager
from pathlib import Path

import pytest

MACHINE = Path(__file__)
DOOR = MACHINE.with_name("README.md")
# A service that a test takes away for good is waited for as long as this, not ten minutes.
os.environ.setdefault("PERENNIAL_OUTAGE_SECONDS", "20")


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


@pytest.fixture
def interruptible():
    """Python's own answer to Ctrl-C, also in children; what is started in the background has none."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
