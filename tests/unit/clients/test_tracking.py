"""One MLflow run per pipeline run, however often its steps are tried."""

import json
import re
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest
from mlflow.exceptions import MlflowException

from perennial.clients.object_store import ConflictError, LocalObjectStore
from perennial.clients.tracking import BATCH_METRICS, open_mlflow, open_tracking, short_name
from perennial.contracts.errors import PerennialError


def run_of(environment, tracking):
    return open_mlflow(environment).get_run(tracking.run_id)


def test_every_step_of_a_pipeline_run_joins_the_same_run(environment):
    first = open_tracking(environment, "flights")
    again = open_tracking(environment, "flights")
    other = open_tracking(replace(environment, run_id="run-2"), "flights")
    assert first.run_id == again.run_id != other.run_id


def test_concurrent_openers_agree_on_one_run(environment):
    found = []
    threads = [
        Thread(target=lambda: found.append(open_tracking(environment, "flights").run_id))
        for _ in range(4)
    ]
    open_tracking(replace(environment, run_id="creates the experiment"), "flights")
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    settled = open_tracking(environment, "flights").run_id
    client = open_mlflow(environment)
    experiment = client.get_experiment_by_name("flights").experiment_id
    runs = client.search_runs([experiment], "tags.`perennial.run_id` = 'run-1'")
    assert [run.info.run_id for run in runs] == [settled]


def test_a_claim_whose_answer_was_lost_is_recognised(environment, monkeypatch):
    """The store's client sends a write again, and reads that somebody wrote in between."""
    replace_once = LocalObjectStore.replace

    def answered_late(self, *args, **kwargs):
        replace_once(self, *args, **kwargs)
        raise ConflictError

    monkeypatch.setattr(LocalObjectStore, "replace", answered_late)
    tracking = open_tracking(environment, "flights")
    assert run_of(environment, tracking).info.lifecycle_stage == "active"


def test_a_run_opened_by_the_platform_is_joined_and_left_running(environment):
    opened = open_tracking(replace(environment, run_id="platform"), "elsewhere")
    joined = open_tracking(replace(environment, tracking_run_id=opened.run_id), "flights")
    joined.finish()
    assert joined.run_id == opened.run_id
    assert open_mlflow(environment).get_experiment_by_name("flights") is None
    assert run_of(environment, joined).info.status == "RUNNING"


def test_a_platform_run_that_does_not_exist_is_an_error_that_names_the_server(environment):
    with pytest.raises(PerennialError, match="MLFLOW_TRACKING_URI"):
        open_tracking(replace(environment, tracking_run_id="0" * 32), "flights")


def test_a_deleted_experiment_is_not_silently_replaced(environment):
    open_tracking(environment, "flights")
    client = open_mlflow(environment)
    client.delete_experiment(client.get_experiment_by_name("flights").experiment_id)
    with pytest.raises(PerennialError, match="deleted"):
        open_tracking(environment, "flights")


def test_parameters_may_be_repeated_but_not_changed(environment):
    tracking = open_tracking(environment, "flights")
    long = "x" * 10_000
    tracking.log_params({"lr": 0.1, "long": long})
    tracking.log_params({"lr": 0.1, "long": long, **{f"p{i}": i for i in range(120)}})
    assert len(run_of(environment, tracking).data.params) == 122
    with pytest.raises(PerennialError, match=r"'0\.1'; new value: '0\.2'"):
        tracking.log_params({"lr": 0.2})


def test_two_workers_record_the_parameters_of_one_run_at_the_same_moment(environment, monkeypatch):
    """MLflow looks for a parameter, then inserts it: who loses that race tries again."""
    tracking, rival = (open_tracking(environment, "flights") for _ in range(2))
    log_batch, lost = tracking._client.log_batch, []

    def lose_once(*args, **kwargs):
        if lost:
            return log_batch(*args, **kwargs)
        lost.append(args)
        rival.log_params({"lr": 0.1})
        raise MlflowException("UNIQUE constraint failed: params.key, params.run_uuid")

    monkeypatch.setattr(tracking._client, "log_batch", lose_once, raising=False)
    tracking.log_params({"lr": 0.1, "momentum": 0.9})
    assert run_of(environment, tracking).data.params == {"lr": "0.1", "momentum": "0.9"}


def test_a_curve_sent_twice_is_recorded_once(environment):
    tracking = open_tracking(environment, "flights")
    curve = [(step, float(step) / 2) for step in range(0, 10 * BATCH_METRICS, 8)]
    tracking.log_curve("loss", curve[:50])
    open_tracking(environment, "flights").log_curve("loss", curve)
    history = open_mlflow(environment).get_metric_history(tracking.run_id, "loss")
    assert sorted((point.step, point.value) for point in history) == curve


def test_the_latest_scalar_counts(environment):
    tracking = open_tracking(environment, "flights")
    tracking.log_metrics({"auc": 0.9, "loss": 1.0})
    tracking.log_metrics({"auc": 0.8})
    assert run_of(environment, tracking).data.metrics == {"auc": 0.8, "loss": 1.0}


def test_artifacts_of_a_database_without_a_server_go_into_the_store(environment, tmp_path):
    tracking = open_tracking(environment, "flights")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("a")
    tracking.log_artifacts(tmp_path / "files", "model")
    assert tracking.artifact_uri("model").startswith((tmp_path / "store").as_uri())
    assert (tmp_path / "store" / "mlflow-artifacts").is_dir()
    assert not (tmp_path / "mlruns").exists()
    uri = tracking.artifact_uri("model").removeprefix("file://")
    assert [file.name for file in Path(uri).iterdir()] == ["a.txt"]


def test_our_own_run_is_finished_and_tagged_with_the_code(environment):
    tracking = open_tracking(environment, "flights")
    tracking.set_tags({"why": "because"})
    tracking.finish()
    run = run_of(environment, tracking)
    assert run.info.status == "FINISHED"
    assert run.data.tags["why"] == "because"
    assert run.data.tags["mlflow.source.git.commit"] == "abc"


def test_a_run_that_failed_goes_on_when_it_is_tried_again(environment):
    first = open_tracking(environment, "flights")
    first.fail()
    assert run_of(environment, first).info.status == "FAILED"
    again = open_tracking(environment, "flights")
    assert again.run_id == first.run_id
    assert run_of(environment, again).info.status == "RUNNING"
    again.finish()
    assert run_of(environment, again).info.status == "FINISHED"


def test_a_failure_is_the_platforms_to_record_in_its_own_run(environment):
    opened = open_tracking(replace(environment, run_id="platform"), "elsewhere")
    joined = open_tracking(replace(environment, tracking_run_id=opened.run_id), "flights")
    joined.fail()
    assert run_of(environment, joined).info.status == "RUNNING"


def test_nothing_is_printed(environment, capfd):
    tracking = open_tracking(environment, "flights")
    tracking.log_metrics({"auc": 0.9})
    tracking.finish()
    assert capfd.readouterr() == ("", "")


def test_a_run_follows_mlflows_conventions(environment):
    experiment = "prices"
    run_id = "prices-20261101-101500-ab12"
    tracking = open_tracking(replace(environment, run_id=run_id, code_digest="c" * 64), experiment)
    run = run_of(environment, tracking)
    assert run.info.run_name == "20261101-101500-ab12"
    tags = run.data.tags
    assert {"mlflow.user", "mlflow.source.name", "mlflow.source.type"} <= {*tags}
    assert run_id in tags["mlflow.note.content"]
    assert not [name for name, value in tags.items() if re.search(r"[0-9a-f]{64}", value)]
    client = open_mlflow(environment)
    kind = client.get_experiment_by_name(experiment).tags["mlflow.experimentKind"]
    assert kind == "custom_model_development"


def test_a_run_of_a_cluster_is_named_by_the_beginning_of_its_id():
    assert short_name("9f2c1a2b-1111-2222-3333-444455556666", "prices") == "9f2c1a2b"


def test_data_of_a_run_is_a_dataset_of_mlflow_once(environment):
    tracking = open_tracking(environment, "prices")
    for _ in range(2):
        tracking.log_dataset(
            "prices", "d" * 64, uri="s3://streams/prices", profile={"rows": 7}, context="training"
        )
    (found,) = run_of(environment, tracking).inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest) == ("prices", "d" * 36)
    assert found.dataset.source_type == "s3"
    assert json.loads(found.dataset.source) == {"uri": "s3://streams/prices"}
    assert json.loads(found.dataset.profile) == {"rows": 7}
    assert {tag.key: tag.value for tag in found.tags} == {"mlflow.data.context": "training"}


def test_a_text_is_a_file_of_the_run(environment):
    tracking = open_tracking(environment, "prices")
    for text in ("first", "second"):
        tracking.log_text(text, "contract.json")
        tracking.log_text(text, "reports/page.html")
    client = open_mlflow(environment)
    found = {item.path for item in client.list_artifacts(tracking.run_id)}
    assert {"contract.json", "reports"} <= found
    assert Path(client.download_artifacts(tracking.run_id, "contract.json")).read_text() == "second"
