"""States in a store of the S3 protocol, and those whose writers were killed."""

import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from perennial.clients.object_store import open_store
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.facts import gather_facts

NOW = datetime(2025, 1, 1, tzinfo=UTC)
# Ends itself when half of a state's bytes are on their way: to a file, or to a socket.
KILLED = """
import http.client, io, os, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from perennial.clients import object_store
from perennial.contracts import artifact
from perennial.contracts.snapshot import Snapshot
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.facts import gather_facts

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def half(send):
    def send_half(self, data):
        if isinstance(data, bytes) and len(data) > 4_000:
            send(self, data[: len(data) // 2])
            die()
        return send(self, data)
    return send_half

artifact.os.fsync = die
http.client.HTTPConnection.send = half(http.client.HTTPConnection.send)
snapshot = Snapshot.from_json(Path(sys.argv[1]).read_text())
store = object_store.open_store(sys.argv[2])
gather_facts(snapshot, ExpectationsSection(), datetime(2025, 1, 1, tzinfo=UTC), store)
"""


@pytest.fixture(params=["folder", "s3"])
def store(request, tmp_path):
    if request.param == "s3":
        return open_store(f"{request.getfixturevalue('bucket')}/kept")
    return open_store(str(tmp_path / "kept"))


def gather(snapshot, store):
    return gather_facts(snapshot, ExpectationsSection(), NOW, store)


def keys(store):
    return [item.key for item in store.list("facts/")]


def test_partitions_whose_states_are_stored_are_not_opened_again(store, snapshot_of, healthy):
    snapshot = snapshot_of(healthy.head(2_000), healthy.tail(1_000))
    first = gather(snapshot, store)
    assert len(keys(store)) == 3  # of two partitions, and merged
    for file in snapshot.files:
        Path(file.uri).unlink()
    assert gather(snapshot, store) == first
    for key in keys(store):
        if "/merged/" in key:
            store.delete(key)
    assert gather(snapshot, store) == first


def test_a_killed_write_leaves_nothing_that_is_read(store, snapshot_of, healthy, tmp_path):
    snapshot = snapshot_of(healthy)
    (tmp_path / "snapshot.json").write_text(snapshot.to_json())
    arguments = [str(tmp_path / "snapshot.json"), store.uri]
    done = subprocess.run([sys.executable, "-c", KILLED, *arguments], check=False)
    assert done.returncode == -signal.SIGKILL
    assert keys(store) == []
    assert gather(snapshot, store) == gather(snapshot, open_store(str(tmp_path / "other")))


def test_a_corrupt_state_is_measured_again_and_named(store, snapshot_of, healthy, caplog):
    snapshot = snapshot_of(healthy)
    first = gather(snapshot, store)
    (state,) = [key for key in keys(store) if "/merged/" not in key]
    intact = store.read(state)
    for key in keys(store):
        store.write(key, store.read(key)[:-100])
    assert gather(snapshot, store) == first
    assert f"{store.uri}/{state} is measured again" in caplog.text
    assert store.read(state) == intact
