"""Only what was registered, from where it was registered, is ever read as a model version."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from perennial.clients.object_store import open_store
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.registry.version_files import ModelVersion, RegisteredFiles, VersionFiles

pytestmark = pytest.mark.hostile

AT = datetime(2026, 1, 1, tzinfo=UTC)


def version(source, tags=None):
    return ModelVersion("clicks", "3", tags or {}, "", source, AT)


@pytest.mark.parametrize(
    "below", ["{root}/m", "file://{root}/m", "{root}/a%20b", "file://{root}/a%20b", "{root}"]
)
def test_a_folder_of_a_local_store_may_be_read(tmp_path, below):
    files = VersionFiles(open_store(str(tmp_path / "store")), proxied=False)
    assert files.expected(version(below.format(root=tmp_path / "store"))) is None


@pytest.mark.parametrize(
    "source",
    [
        "", "m", "/etc", "file:///etc", "file:/etc", "file://host/etc", "{root}-other/m",
        "{root}/../m", "file://{root}/%2e%2e/m", "file://{root}/..%2fm", "{root}/linked",
        "{root}/holds-link", "http://h/m", "https://h/m", "s3://b/store/m", "runs:/1/m",
        "models:/clicks/1", "mlflow-artifacts:/1/m", "dbfs:/m", "ftp://h/m", "file://{root}/m?x",
        "file://{root}/m#x",
    ],
)  # fmt: skip
def test_a_place_outside_a_local_store_is_refused(tmp_path, source):
    root = tmp_path / "store"
    (root / "holds-link").mkdir(parents=True)
    (root / "linked").symlink_to("/etc")
    (root / "holds-link" / "file").symlink_to("/etc/hostname")
    files = VersionFiles(open_store(str(root)), proxied=False)
    with pytest.raises(PerennialError, match="outside the object store; nothing was read"):
        files.expected(version(source.format(root=root)))


def test_a_store_that_is_reached_through_a_link_is_read(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    for root in ("store", "disk"):
        files = VersionFiles(open_store(str(tmp_path / "store")), proxied=False)
        assert files.expected(version(f"{tmp_path / root}/m")) is None


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("{bucket}/home/m", True), ("{bucket}/home", False), ("{bucket}/homes/m", False),
        ("{bucket}/m", False), ("s3://another/home/m", False), ("{bucket}/home/../m", False),
        ("{bucket}/home/%2e%2e/m", False), ("{bucket}/home/m?versionId=1", False), ("/etc", False),
        ("mlflow-artifacts:/1/m", True), ("mlflow-artifacts://host/1/m", False),
        ("mlflow-artifacts:/1/../m", False), ("http://h/m", False),
    ],
)  # fmt: skip
def test_places_beside_a_bucket(bucket, source, allowed):
    files = VersionFiles(open_store(f"{bucket}/home"), proxied=True)
    found = version(source.format(bucket=bucket))
    if allowed:
        assert files.expected(found) is None
    else:
        with pytest.raises(PerennialError, match="outside the object store"):
            files.expected(found)


def test_a_place_that_was_recorded_at_registration_may_lie_elsewhere(tmp_path):
    """As where a platform opened the MLflow run, whose artifacts go to a bucket of its own."""
    files = VersionFiles(open_store(str(tmp_path)), proxied=False)
    registered = RegisteredFiles(source="s3://platform/1/m", files={"a": "0" * 64})
    tags = files.record("clicks", registered)
    found = version("s3://platform/1/m", tags)
    assert files.expected(found) == registered
    with pytest.raises(PerennialError, match="outside the object store"):
        files.expected(replace(found, source="s3://platform/2/m"))
    with pytest.raises(DamagedModelError, match="damaged: the digests of its files"):
        files.expected(replace(found, tags={}))
