"""`perennial deploy` upgrades a cluster of the previous version; its champions and state are read.

`previous_version/cluster.json` was written by the version whose package was `components`.
"""

import json
from datetime import UTC, date, datetime
from pathlib import Path

import pytest

from deployments import contract, profile
from perennial.clients.object_store import open_store
from perennial.clients.pipeline_api import NewSchedule
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.environment import Environment
from perennial.contracts.section import canonical_json
from perennial.contracts.snapshot import Snapshot
from perennial.decide_retraining.state import decide_and_record
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.operations import TargetCluster, start_deployed
from perennial.deployment.plan import apply
from perennial.deployment.run_request import RunRequest
from perennial.deployment.watch import WatchState
from perennial.detect_drift.file_windows import ArrivedFiles
from perennial.gate.repeats import PastTest, claim_test
from perennial.registry.model_registry import CHAMPION, open_registry
from perennial.registry.trigger_state import TriggerState
from pipeline_server import pipeline_server

BEFORE = json.loads((Path(__file__).parent / "previous_version/cluster.json").read_text())
NAME = "flights-late"
WANTED = desire(contract(), profile())
MANUAL = RunRequest("training", "looked odd")


@pytest.fixture
def upgraded():
    """A server with the previous version's pipelines and schedule."""
    with pipeline_server() as (server, url):
        where = profile(url)
        api = connect(where)
        for name, version in BEFORE["versions"].items():
            api.create_pipeline(name, "Made by `perennial deploy`.")
            pipeline = api.find_pipeline(name)
            api.upload_version(pipeline, version, WANTED.pipeline(name).package)
        yield server, TargetCluster(where, api)


def schedule_before(target):
    saved = BEFORE["schedule"]
    pipeline = target.api.find_pipeline("drift-monitoring")
    target.api.create_experiment(NAME, "")
    experiment = target.api.find_experiment(NAME)
    return target.api.create_schedule(
        experiment,
        NewSchedule(
            name=saved["name"],
            version=target.api.find_version(pipeline, BEFORE["versions"]["drift-monitoring"]),
            parameters={"contract": canonical_json(saved["parameters"]["contract"])},
            service_account="pipeline-runner", pipeline_root="", description=saved["description"],
            cron=saved["cron"], enabled=True, starts_at=datetime.now(UTC),
        ),
    )  # fmt: skip


def test_a_deployment_remakes_the_schedule_with_the_new_pipelines(upgraded):
    server, target = upgraded
    old = schedule_before(target)
    list(apply(target.api, WANTED))
    (schedule,) = server.schedules.values()
    assert schedule["recurring_run_id"] != old
    assert schedule["display_name"] == BEFORE["schedule"]["name"]
    assert BEFORE["versions"]["drift-monitoring"] not in schedule["description"]
    assert list(apply(target.api, WANTED)) == []


def test_before_the_deployment_a_run_starts_with_the_deployed_version(upgraded):
    server, target = upgraded
    schedule_before(target)
    run = server.runs[start_deployed(target, NAME, MANUAL)]
    assert json.loads(run["runtime_config"]["parameters"]["trigger"])["reason"] == "looked odd"


def test_a_paused_schedule_stays_paused(upgraded):
    server, target = upgraded
    target.api.set_enabled(schedule_before(target), enabled=False)
    list(apply(target.api, WANTED))
    (schedule,) = server.schedules.values()
    assert schedule["status"] == "DISABLED"


@pytest.fixture
def store(tmp_path):
    made = open_store(str(tmp_path / "store"))
    for key, value in BEFORE["objects"].items():
        made.write(key, canonical_json(value).encode())
    return made


def test_retrainings_tests_arrivals_and_watched_files_are_still_known(store):
    seen = []

    def decide(state: TriggerState):
        seen.append(state)
        return state.retrainings[0].decision

    snapshot = Snapshot(
        data=DataSection(uri="d", label="y"), split=SplitSection(), files=(), columns={}, rows=0,
        split_rows={},
    )  # fmt: skip
    decide_and_record(store, NAME, "run-1", snapshot, decide, now=datetime.now(UTC))
    assert [known.run_id for known in seen[0].retrainings] == ["run-1"]
    assert seen[0].retrainings[0].decision.trigger == "drift"
    again = PastTest(
        champion="1", champion_sha256="a" * 64, challenger_sha256="e" * 64, run_id="run-3",
        blocks=9, days=((date(2026, 9, 1), date(2026, 9, 9)),),
    )  # fmt: skip
    assert claim_test(store, NAME, again, 0.05).earlier == 1
    assert ArrivedFiles.from_json(store.read(f"monitoring/{NAME}/files.json")).sha256 == ("c" * 64,)
    assert WatchState.from_json(store.read(f"watch/{NAME}/state.json")).files == 3


def test_the_champion_stays_champion(store, tmp_path):
    environment = Environment(
        store.uri, f"sqlite:///{tmp_path}/mlflow.db", "run-9", None, "", "", ""
    )
    registry = open_registry(environment)
    registry.describe_model(NAME, "", {})
    folder = tmp_path / "version"
    folder.mkdir()
    client = registry._client
    run = client.create_run(client.create_experiment("e", str(tmp_path / "runs")))
    client.create_model_version(
        NAME, str(folder), run.info.run_id, tags={"perennial.fingerprint": "f"}
    )
    client.set_registered_model_alias(NAME, CHAMPION, "1")
    assert registry.version_by_alias(NAME, CHAMPION).version == "1"
    assert registry.champion_records(NAME).problem() == ""
