"""Buckets on a real server of the S3 protocol, and a cache of the test's own."""

import pytest

from perennial.contracts.environment import CACHE
from s3_server import bucket, s3_endpoint


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache"
