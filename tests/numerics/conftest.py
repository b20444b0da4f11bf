"""Gives these tests the tiny training of `tests/tiny_training.py`."""

import sys
from pathlib import Path

import pytest

TESTS = str(next(path for path in Path(__file__).parents if path.name == "tests"))
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)


@pytest.fixture(scope="session")
def root(tmp_path_factory):
    """A folder with a snapshot, in which jobs are made."""
    from tiny_training import write_snapshot

    folder = tmp_path_factory.mktemp("training")
    write_snapshot(folder)
    return folder
