import contextlib

import pytest

from api_server import ApiServer
from real_cluster import define
from s3_server import bucket, s3_endpoint
from tiny_training import root


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A real API server that serves what the operators define."""
    with contextlib.closing(ApiServer(tmp_path_factory.mktemp("api-server"))) as found:
        define(found)
        yield found
