"""Gives these tests the models and the MLflow database of `tests/small_models.py`."""

import sys
from pathlib import Path

TESTS = str(next(path for path in Path(__file__).parents if path.name == "tests"))
if TESTS not in sys.path:
    sys.path.insert(0, TESTS)

from small_models import environment  # noqa: E402, F401, pytest finds fixtures here
