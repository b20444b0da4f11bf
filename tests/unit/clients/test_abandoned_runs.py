"""MLflow runs whose pipeline run is over are closed, with the reason; no others are."""

from dataclasses import replace

import pytest

from perennial.clean_up.step import close_tracking_runs
from perennial.clients.mlflow_client import open_mlflow
from perennial.clients.tracking import (
    ENDED_TAG,
    RUN_TAG,
    close_abandoned_runs,
    open_tracking,
)
from perennial.contracts import environment as names
from perennial.train_model.record import join_tracking


def opened(environment, run_id, model="prices"):
    return open_tracking(replace(environment, run_id=run_id, tracking_run_id=""), model).run_id


def status_of(environment, run_id):
    run = open_mlflow(environment).get_run(run_id)
    return run.info.status, run.data.tags.get(ENDED_TAG, "")


def test_what_is_over_is_closed_with_the_reason_and_opened_again_when_resumed(environment):
    over, on, other = (opened(environment, name) for name in ("over", "on", "else"))
    client = open_mlflow(environment)
    client.set_terminated(other, status="FINISHED")
    foreign = client.create_run(client.create_experiment("foreign")).info.run_id
    closed = close_abandoned_runs(environment, lambda tags: tags[RUN_TAG] != "on", "cancelled")
    assert closed == [over]
    assert status_of(environment, over) == ("KILLED", "cancelled")
    assert status_of(environment, on)[0] == "RUNNING"
    assert status_of(environment, other)[0] == "FINISHED"
    assert status_of(environment, foreign)[0] == "RUNNING"
    assert opened(environment, "over") == over
    assert status_of(environment, over)[0] == "RUNNING"


def test_the_next_run_on_one_machine_closes_what_a_killed_one_left(environment, tmp_path):
    killed = opened(environment, "killed")
    (tmp_path / "killed").mkdir()
    folder = tmp_path / "next"
    here = replace(environment, run_id="next", run_folder=folder, tracking_run_id="")
    assert status_of(environment, join_tracking(here, "prices").run_id)[0] == "RUNNING"
    assert status_of(environment, killed) == ("KILLED", "run next was started after it")


def test_a_run_of_another_model_in_the_same_home_goes_on(environment, tmp_path):
    other = opened(environment, "other", model="clicks")
    (tmp_path / "other").mkdir()
    join_tracking(replace(environment, run_id="next", run_folder=tmp_path / "next"), "prices")
    assert status_of(environment, other)[0] == "RUNNING"


def test_a_run_of_another_home_in_the_same_mlflow_goes_on(environment, tmp_path):
    other = opened(environment, "other")
    (tmp_path / "killed").mkdir()
    join_tracking(replace(environment, run_id="next", run_folder=tmp_path / "next"), "prices")
    assert status_of(environment, other) == ("RUNNING", "")


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_a_run_that_ended_early_has_its_status_until_it_is_continued(environment, status):
    def end():
        here = replace(environment, tracking_run_id="")
        close_abandoned_runs(
            here, lambda tags: tags[RUN_TAG] == "early", "stopped", "prices", status
        )

    end()  # no step has opened one
    early = opened(environment, "early")
    end()
    assert status_of(environment, early)[0] == status
    opened(environment, "early")
    assert status_of(environment, early)[0] == "RUNNING"
    open_mlflow(environment).set_terminated(early, status="FINISHED")
    end()
    assert status_of(environment, early)[0] == "FINISHED"


def test_on_a_cluster_another_run_may_go_on(environment):
    other = opened(environment, "other")
    join_tracking(replace(environment, run_id="next", tracking_run_id=""), "prices")
    assert status_of(environment, other)[0] == "RUNNING"


@pytest.fixture
def of_a_pod(environment, monkeypatch):
    monkeypatch.setenv(names.STORE_URI, environment.store_uri)
    monkeypatch.setenv(names.TRACKING_URI, environment.tracking_uri)
    return environment


def test_the_exit_task_closes_its_own_run_alone(of_a_pod):
    own, other = opened(of_a_pod, "own"), opened(of_a_pod, "other")
    close_tracking_runs(of_a_pod, "own")
    assert status_of(of_a_pod, own) == ("KILLED", "pipeline run own ended while this run was open")
    assert status_of(of_a_pod, other)[0] == "RUNNING"
