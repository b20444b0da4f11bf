"""Gives these tests the tables of `tests/skeleton_tables.py`."""

import sys
from pathlib import Path

TESTS = str(next(path for path in Path(__file__).parents if path.name == "tests"))
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

from skeleton_tables import datasets, examine  # noqa: E402, F401, pytest finds fixtures here
