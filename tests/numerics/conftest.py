"""The tiny training of `tests/support/tiny_training.py`, and an MLflow database."""

import pytest

from captioned_shapes import write_shapes
from small_models import environment
from tiny_training import root


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    """A snapshot of pictures with captions."""
    folder = tmp_path_factory.mktemp("shapes")
    write_shapes(folder)
    return folder
