"""One workshop for all planted bugs and healthy tasks: its data sets are written once."""

import pytest

from skeleton_tables import datasets, examine
from workshop import Workshop


@pytest.fixture(scope="session")
def workshop(tmp_path_factory) -> Workshop:
    return Workshop(tmp_path_factory.mktemp("workshop"))
