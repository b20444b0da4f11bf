"""Jobs that nobody follows any more are deleted, and no others."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from perennial.cli import main
from perennial.clients.mlflow_client import open_mlflow
from perennial.clients.tracking import open_tracking
from perennial.contracts.environment import Environment
from perennial.training_jobs.leftovers import decide_reaping

NOW = datetime(2026, 11, 2, tzinfo=UTC)
GRACE = timedelta(hours=24)


ENDED = {"status": {"conditions": [{"type": "Failed", "status": "True"}]}}


def job(hours, *, run="run-1", name="a", **metadata):
    made = (NOW - timedelta(hours=hours)).strftime("%Y-%m-%dT%H:%M:%SZ")
    labels = {"perennial/run": run, "app.kubernetes.io/managed-by": "perennial"}
    return {
        "metadata": {"name": name, "uid": name, "labels": labels, "creationTimestamp": made}
        | metadata
    }


@pytest.mark.parametrize(
    ("found", "phases", "is_due", "reason"),
    [
        (job(25), {"run-1": "Running"}, False, "still runs"),
        (job(25), {"run-1": ""}, False, "still runs"),
        (job(25), {"run-1": "Failed"}, True, "run run-1 is Failed"),
        (job(25), {}, True, "run run-1 is gone"),
        (job(0), {"run-1": "Failed"}, True, "it still runs, and run run-1 is Failed"),
        (job(0), {"run-1": "Pending"}, False, "still runs"),
        (job(23) | ENDED, {}, False, "only 23.0 h old"),
        (job(25) | ENDED, {}, True, "it has ended, and run run-1 is gone"),
        (job(25) | ENDED, {"run-1": "Running"}, False, "run run-1 still runs"),
        (job(25, deletionTimestamp="now"), {}, False, "being deleted"),
    ],
)
def test_a_job_that_goes_on_without_its_run_is_due_at_once_and_one_that_has_ended_later(
    found, phases, is_due, reason
):
    decision = decide_reaping(found, phases, NOW, GRACE)
    assert decision.is_due is is_due
    assert reason in decision.reason


def test_mlflow_runs_of_ended_runs_of_this_namespace_are_closed(cluster, monkeypatch, tmp_path):
    environment = Environment(
        str(tmp_path / "store"), f"sqlite:///{tmp_path}/mlflow.db", "run-1", None, "", "", ""
    )
    runs = {
        name: open_tracking(replace(environment, run_id=name), "prices").run_id
        for name in ("gone", "failed", "on")
    }
    client = open_mlflow(environment)
    assert client.get_run(runs["on"]).data.tags["perennial.namespace"] == "team-a"
    monkeypatch.delenv("KFP_POD_NAME")  # a run on a laptop, which has no Workflow
    runs["laptop"] = open_tracking(replace(environment, run_id="laptop"), "prices").run_id
    for name, phase in (("failed", "Failed"), ("on", "Running")):
        cluster.store.put(
            "workflows",
            {
                "metadata": {"name": name, "labels": {"pipeline/runid": name}},
                "status": {"phase": phase},
            },
        )
    monkeypatch.setenv("MLFLOW_TRACKING_URI", environment.tracking_uri)
    assert main(["reap"]) == 0
    status = {name: client.get_run(run).info.status for name, run in runs.items()}
    assert status == {"gone": "KILLED", "failed": "KILLED", "on": "RUNNING", "laptop": "RUNNING"}


def test_the_command_deletes_what_is_due_and_reports_it(cluster, capsys):
    for name, run in (("orphan", "run-9"), ("kept", "run-1")):
        cluster.store.put("pytorchjobs", job(0, name=name, run=run))
    workflow = {
        "metadata": {"name": "wf", "labels": {"pipeline/runid": "run-1"}},
        "status": {"phase": "Running"},
    }
    cluster.store.put("workflows", workflow)
    assert main(["reap", "--dry-run"]) == 0
    assert "would delete orphan: it still runs, and run run-9 is gone" in capsys.readouterr().out
    assert cluster.store.deleted == []
    assert main(["reap"]) == 0
    assert cluster.store.deleted == ["orphan"]
