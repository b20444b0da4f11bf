"""An event starts one run, also where its receiver is killed and tries again."""

import sys
from datetime import UTC, datetime, timedelta

import pytest

from deployments import DIGEST
from perennial.cli import main
from perennial.deployment.signed_event import Event, sign
from pipeline_server import pipeline_server

KEY = b"0123456789abcdef" * 4


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no such file"))
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "contract.toml").write_text(
        '[model]\nname = "flights"\ntask = "perennial.tasks.tabular:TabularClassification"\n'
        '[data]\nuri = "s3://p/flights"\nlabel = "late"\nids = ["flight"]\n'
    )
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "job").write_text("perennial-event-1")
    return tmp_path


@pytest.fixture
def server(bucket, folder):
    images = "".join(
        f'{name} = "r.example/{name}@{DIGEST}"\n' for name in ("data", "trainer", "control")
    )
    with pipeline_server() as (server, url):
        (folder / "profile.toml").write_text(
            f'[server]\npipelines_url = "{url}"\n[images]\n{images}'
            f'[stores]\nstore_uri = "{bucket}"\ntracking_uri = "http://mlflow:5000"\n'
            '[schedules]\nmonitoring = "0 3 * * *"\n'
        )
        arguments = [str(folder / "contract.toml"), "--profile", str(folder / "profile.toml")]
        assert main(["deploy", *arguments]) == 0
        yield server


def receive(folder, event, *options):
    (folder / "event").write_text(event)
    files = {"profile": "profile.toml", "key": "key", "event": "event", "claimant": "job"}
    places = [f"--{name}={folder / file}" for name, file in files.items()]
    return main(["receive", "flights", *places, *options])


@pytest.mark.parametrize("state", ["RUNNING", "SUCCEEDED"])
def test_a_receiver_that_was_killed_after_the_start_finds_its_run(server, folder, capsys, state):
    event = sign(Event(model="flights", reason="labels corrected"), KEY, datetime.now(UTC))
    assert receive(folder, event) == 0
    (run,) = server.runs
    server.runs[run]["state"] = state
    capsys.readouterr()
    assert receive(folder, event) == 0  # the same Job, whose pod was killed
    assert list(server.runs) == [run]
    assert capsys.readouterr().out == f"started {run}\n"


def test_two_events_with_the_same_text_start_two_runs(server, folder):
    now = datetime.now(UTC)
    for seconds in (0, 1):
        signed_at = now - timedelta(seconds=seconds)
        event = sign(Event(model="flights", reason="labels corrected"), KEY, signed_at)
        assert receive(folder, event) == 0
        for run in server.runs.values():
            run["state"] = "SUCCEEDED"
    assert len(server.runs) == 2
