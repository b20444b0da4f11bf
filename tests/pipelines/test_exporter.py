"""What an alert can ask about a model is what the servers hold, and a server that is away is reported."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from deployments import contract, profile
from perennial.cli import main
from perennial.clients.object_store import open_store
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.decide_retraining.state import MonitoringRecord, save_monitoring_record
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.exporter import BOUNDED_WAIT, SERIES, ModelCollector
from perennial.deployment.operations import TargetCluster, switch
from perennial.deployment.plan import apply
from perennial.registry.champion_records import UnclearChampionError
from perennial.registry.model_registry import open_registry
from pipeline_server import pipeline_server
from ports import get_free_port

LOOKED = datetime(2026, 11, 20, 3, 10, tzinfo=UTC)
NEWEST_ROW = datetime(2026, 11, 19, 23, 59)


def look(**changes):
    values = {
        "at": LOOKED, "run_id": "r", "champion_version": "1", "data_time": NEWEST_ROW, "windows": 3,
        "drifted": True, "decayed": False, "largest_z_score": 5.5, "retrain": True, "trigger": "drift",
    }  # fmt: skip
    return MonitoringRecord(**{**values, **changes})


class Place:
    """A Pipelines server, MLflow's database and a store, as one exporter sees them."""

    def __init__(self, server, url, bucket, folder):
        self.server, self.store = server, open_store(f"{bucket}/store")
        self.profile = profile(url, stores={"store_uri": f"{bucket}/store"})
        self.target = TargetCluster(self.profile, connect(self.profile))
        self.registry = open_registry(
            Environment(self.store.uri, f"sqlite:///{folder}/mlflow.db", "t")
        )

    def deploy(self, model):
        wanted = desire(contract(name=model), self.profile)
        list(apply(self.target.api, wanted))

    def register(self, model, fingerprint):
        self.registry.describe_model(model, "", {})
        made = self.registry.register(
            model, source="s3://b/m", run_id="", fingerprint=fingerprint, tags={}, description=""
        )
        before = self.registry.aliases(model).get("champion", "")
        self.registry.promote(model, made.version, before)
        return made

    def run_of(self, model, pipeline, state, ended=None):
        experiment = self.target.experiment(model)
        found = self.target.api.find_pipeline(pipeline)
        values = {"finished_at": ended} if ended else {}
        return self.server.add_run(
            state, experiment_id=experiment,
            pipeline_version_reference={"pipeline_id": found, "pipeline_version_id": "v"}, **values,
        )  # fmt: skip

    def exported(self):
        registry = CollectorRegistry()
        registry.register(ModelCollector(self.target, self.registry, self.store))
        return parsed(generate_latest(registry).decode())


def parsed(text):
    """Series and labels → value, as Prometheus reads them."""
    return {
        (sample.name, *(f"{key}={value}" for key, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }  # fmt: skip


@pytest.fixture
def place(bucket, tmp_path):
    with pipeline_server() as (server, url):
        yield Place(server, url, bucket, tmp_path)


def test_every_figure_of_a_model_in_production_is_exported(place):
    place.deploy("flights")
    place.register("flights", "first")
    champion = place.register("flights", "second")
    place.run_of("flights", "drift-monitoring", "SUCCEEDED", "2026-11-19T03:10:00Z")
    newest = place.run_of("flights", "drift-monitoring", "FAILED", "2026-11-20T03:10:00Z")
    save_monitoring_record(place.store, "flights", look())
    created = datetime.fromisoformat(place.server.runs[newest]["created_at"])
    model = "model=flights"
    assert place.exported() == {
        ("perennial_run_created_timestamp_seconds", "kind=monitoring", model): created.timestamp(),
        ("perennial_champion_registered_timestamp_seconds", model, "version=2"): champion.created_at.timestamp(),
        ("perennial_schedule_enabled", "kind=monitoring", model): 1.0,
        ("perennial_run_succeeded_timestamp_seconds", "kind=monitoring", model): datetime(2026, 11, 19, 3, 10, tzinfo=UTC).timestamp(),
        ("perennial_run_state", "kind=monitoring", model, "state=failed"): 1.0,
        ("perennial_look_timestamp_seconds", model): LOOKED.timestamp(),
        ("perennial_look_data_timestamp_seconds", model): NEWEST_ROW.replace(tzinfo=UTC).timestamp(),
        ("perennial_look_windows", model): 3.0,
        ("perennial_look_drifted", model): 1.0,
        ("perennial_look_decayed", model): 0.0,
        ("perennial_look_largest_z_score", model): 5.5,
    }  # fmt: skip


def test_a_training_that_failed_is_exported_after_a_day_of_hourly_monitoring(place):
    place.deploy("flights")
    place.run_of("flights", "continuous-training", "FAILED", "2026-11-18T03:10:00Z")
    for hour in range(24):
        place.run_of("flights", "drift-monitoring", "SUCCEEDED", f"2026-11-19T{hour:02}:10:00Z")
    exported = place.exported()
    training = ("perennial_run_state", "kind=training", "model=flights", "state=failed")
    assert exported[training] == 1.0
    assert exported["perennial_run_state", "kind=monitoring", "model=flights", "state=succeeded"]


def test_all_series_are_written_down(place):
    place.deploy("flights")
    place.register("flights", "first")
    place.run_of("flights", "continuous-training", "SUCCEEDED", "2026-11-19T03:10:00Z")
    save_monitoring_record(place.store, "flights", look())
    assert {key[0].removeprefix("perennial_") for key in place.exported()} == set(SERIES)


def test_a_deployed_model_without_champion_has_a_schedule_and_no_invented_age(place):
    place.deploy("new")
    assert place.exported() == {("perennial_schedule_enabled", "kind=monitoring", "model=new"): 1.0}
    switch(place.target, "new", enabled=False)
    assert place.exported() == {("perennial_schedule_enabled", "kind=monitoring", "model=new"): 0.0}


def test_models_that_others_keep_in_the_same_mlflow_are_left_out(place):
    place.registry.describe_model("theirs", "", {})
    client = place.registry._client
    client.create_model_version("theirs", "s3://b/x")
    client.set_registered_model_alias("theirs", "champion", "1")
    place.register("ours", "first")
    assert {key[1] for key in place.exported()} == {"model=ours"}


def test_a_champion_that_was_deleted_in_mlflow_fails_the_scrape(place):
    place.register("flights", "first")
    place.registry._client.delete_registered_model_alias("flights", "champion")
    with pytest.raises(
        UnclearChampionError, match="flights version 1 is the recorded champion, but"
    ):
        place.exported()


def test_an_earlier_comparison_does_not_replace_a_later_one(place):
    save_monitoring_record(place.store, "m", look(drifted=False))
    save_monitoring_record(place.store, "m", look(at=LOOKED.replace(hour=1)))
    place.registry.describe_model("m", "", {})
    assert place.exported()[("perennial_look_drifted", "model=m")] == 0.0


def test_a_damaged_comparison_fails_the_scrape_and_is_named(place):
    place.registry.describe_model("m", "", {})
    place.store.write("monitoring/m/look.json", b"{}")
    with pytest.raises(PerennialError, match=r"monitoring/m/look\.json"):
        place.exported()


def test_a_cancelled_run_is_not_one_that_failed_by_itself(place):
    place.deploy("m")
    run = place.run_of("m", "drift-monitoring", "RUNNING")
    place.target.api.terminate(run)
    states = {key[-1] for key in place.exported() if key[0] == "perennial_run_state"}
    assert states == {"state=cancelled"}


PROGRAM = """
import sys
from pathlib import Path
from perennial.deployment import exporter
from perennial.deployment.operations import TargetCluster
from perennial.deployment.credentials import connect
from perennial.deployment.profile import Profile

where = Profile.model_validate_json(sys.argv[1])
stores = where.stores.model_copy(update={"tracking_uri": sys.argv[2]})
where = where.model_copy(update={"stores": stores})
exporter.serve(exporter.collectors(TargetCluster(where, connect(where))), int(sys.argv[3]))
"""


def test_a_server_that_is_away_fails_the_scrape_and_sigterm_ends_the_process(place, tmp_path):
    place.register("m", "first")
    port = get_free_port()
    given = json.dumps(place.profile.model_dump(mode="json"))
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, given, f"sqlite:///{tmp_path}/mlflow.db", str(port)],
        stderr=subprocess.DEVNULL,
    )
    try:
        text = scrape(port, process)
        assert (
            "perennial_champion_registered_timestamp_seconds",
            "model=m",
            "version=1",
        ) in parsed(text)
        place.store.write("monitoring/m/look.json", b"{}")
        with pytest.raises(urllib.error.HTTPError, match="500"):
            scrape(port, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()


def test_a_dead_mlflow_that_the_environment_names_ends_the_export_within_seconds(
    place, monkeypatch, capsys, tmp_path
):
    dead = f"http://127.0.0.1:{get_free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", dead)
    for name in BOUNDED_WAIT:
        monkeypatch.setenv(name, "")  # remembered, so that the end of the test restores it
        monkeypatch.delenv(name)
    monkeypatch.setattr("perennial.deployment.verbs.connect_to", lambda _: place.target)
    begun = time.monotonic()
    assert main(["exporter", "--profile", str(tmp_path / "profile.toml")]) == 2
    assert time.monotonic() - begun < 30
    error = capsys.readouterr().err
    assert "MLflow's server does not answer" in error
    assert dead in error


def scrape(port, process):
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                return answer.read().decode()
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            assert process.poll() is None, "the exporter ended"
            assert time.monotonic() < deadline
            time.sleep(0.1)
