"""When a run has ended, however it did, none of its jobs goes on."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fake_operator import step_pod
from launching import launcher_for
from perennial.clean_up.step import clean_up_step
from perennial.clients.mlflow_client import open_mlflow
from perennial.clients.object_store import open_store
from perennial.clients.tracking import open_tracking
from perennial.contracts.environment import STORE_URI, Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.monitoring import RetrainingDecision
from perennial.registry.trigger_state import Retraining, TriggerState
from perennial.steps.stored_steps import FLOW, StoredRun, StoredStep
from perennial.training_jobs.leftovers import NODE_ANNOTATION, still_goes_on
from ports import get_free_port


def job(*conditions, **metadata):
    found = [{"type": kind, "status": status} for kind, status in conditions]
    return {"metadata": {"name": "a", "uid": "1", **metadata}, "status": {"conditions": found}}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (job(), True),
        ({"metadata": {"name": "a", "uid": "1"}}, True),
        (job(("Running", "True")), True),
        (job(("Running", "False"), ("Succeeded", "True")), False),
        (job(("Failed", "True")), False),
        (job(("Complete", "True")), False),
        (job(("Failed", "False")), True),
        (job(deletionTimestamp="2026-01-01T00:00:00Z"), False),
    ],
)
def test_what_goes_on_is_deleted_and_what_has_ended_stays(found, expected):
    assert still_goes_on(found) == expected


def test_the_jobs_of_the_run_are_deleted_and_those_of_others_are_not(
    cluster, launched, tmp_path, bucket
):
    launcher_for().start(launched("forever"))
    (ours,) = cluster.store.all("pytorchjobs")
    other = json.loads(json.dumps(ours))
    other["metadata"] |= {"name": "other", "uid": "other"}
    other["metadata"]["labels"]["perennial/run"] = "run-2"
    cluster.store.put("pytorchjobs", other)
    assert clean_up_step() == [ours["metadata"]["name"]]
    assert cluster.store.deleted == [ours["metadata"]["name"]]
    assert clean_up_step() == []


def test_without_a_store_and_mlflow_the_jobs_are_still_deleted(
    cluster, launched, monkeypatch, caplog
):
    launcher_for().start(launched("forever"))
    monkeypatch.delenv(STORE_URI, raising=False)
    assert len(clean_up_step()) == 1
    assert "open MLflow runs and the run's page are left as they are" in caplog.text


def test_a_pod_outside_a_run_is_refused(cluster):
    pod = step_pod()
    pod["metadata"]["labels"] = {}
    cluster.store.put("pods", pod)
    with pytest.raises(PerennialError, match="does not belong to a pipeline run"):
        clean_up_step()


def test_without_a_cluster_there_is_nothing_to_do(monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert clean_up_step() == []


def test_a_run_on_one_machine_in_a_notebooks_pod_has_nothing_to_delete(cluster, monkeypatch):
    monkeypatch.delenv("KFP_POD_NAME")
    assert clean_up_step() == []


@pytest.fixture
def stored(cluster, bucket, monkeypatch, tmp_path):
    """The records of the run that the step's pod belongs to."""
    monkeypatch.setenv("PERENNIAL_STORE_URI", bucket)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return StoredRun(bucket, "run-1")


def test_inputs_and_results_of_the_runs_scorings_are_deleted_and_their_logs_stay(stored, bucket):
    store = open_store(bucket)
    deleted = ["inputs/a", "attempts/x/results/0/losses", "scored.json"]
    kept = ["attempts/x/logs/pod-0.log", "attempts/x/errors/rank-1.json"]
    for name in (*deleted, *kept):
        store.write(f"scoring/run-1/f/{name}", b"1")
    store.write("scoring/run-2/f/inputs/a", b"1")
    clean_up_step()
    left = {each.key for each in store.list("scoring/")}
    assert left == {f"scoring/run-1/f/{name}" for name in kept} | {"scoring/run-2/f/inputs/a"}


def add_pod(cluster, step, phase, reason="", code=0, *, attempt=0, disruption="", place="training"):
    pod = step_pod(f"{step}-{attempt}-{place[-20:]}")
    pod["metadata"] |= {
        "annotations": {NODE_ANNOTATION: f"wf.root.{place}.{step}.executor({attempt})"},
        "creationTimestamp": f"2026-11-20T10:00:0{attempt}Z",
    }
    ended = {"terminated": {"exitCode": code, "reason": reason}}
    pod["status"] = {
        "phase": phase, "containerStatuses": [{"name": "main", "state": ended if reason else {}}]
    }  # fmt: skip
    if disruption:
        target = {"type": "DisruptionTarget", "status": "True", "reason": disruption}
        pod["status"]["conditions"] = [target]
    cluster.store.put("pods", pod)


def test_the_page_of_a_run_tells_of_the_step_that_ran_out_of_memory(cluster, stored, tmp_path):
    stored.write(StoredStep(step="snapshot_data", status="finished", began=1.0, ended=2.0,
                            summary="3 partitions"), b"<p>SNAPSHOT PAGE</p>")  # fmt: skip
    stored.write(StoredStep(step="validate_data", status="running", began=3.0))
    for attempt in range(3):
        add_pod(cluster, "validate-data", "Failed", "OOMKilled", 137, attempt=attempt)
    clean_up_step(model="flights", report=str(tmp_path / "run.html"))
    record = stored.step("validate_data")
    assert (record.status, record.problem) == (
        "failed", "validate_data ran out of memory: Kubernetes killed it",
    )  # fmt: skip
    assert "[pods.steps.validate_data] memory" in record.action
    assert "OOMKilled, exit code 137" in stored.page("validate_data")
    page = (tmp_path / "run.html").read_text()
    assert stored.page("run") == page
    assert "Failed" in page
    assert "validate_data ran out of memory" in page
    assert "SNAPSHOT PAGE" in page


def test_a_step_whose_machine_was_drained_did_not_run_out_of_memory(cluster, stored):
    stored.write(StoredStep(step="train_model", status="running", began=3.0))
    add_pod(cluster, "train-model", "Failed", "Error", 137, disruption="EvictionByEvictionAPI")
    clean_up_step(model="flights")
    record = stored.step("train_model")
    assert record.problem == (
        "train_model ended before it wrote its result: its pod was preempted or lost its machine"
    )
    assert "EvictionByEvictionAPI" in record.evidence


def test_a_run_that_failed_before_the_gate_has_its_page_and_trigger_in_mlflow(
    cluster, stored, tmp_path
):
    environment = replace(Environment.read(), run_id="run-1", tracking_run_id="")
    run_id = open_tracking(environment, "flights").run_id
    stored.write(StoredStep(step="train_model", status="running", began=3.0))
    trigger = '{"trigger":"manual","reason":"labels corrected"}'
    clean_up_step(model="flights", trigger=trigger, report=str(tmp_path / "run.html"))
    client = open_mlflow(environment)
    run = client.get_run(run_id)
    assert run.info.status == "KILLED"
    assert run.data.tags["perennial.trigger"] == "manual"
    page = Path(client.download_artifacts(run_id, "reports/run.html", str(tmp_path)))
    assert page.read_text() == stored.page("run")


def test_an_mlflow_that_is_away_fails_no_clean_up(cluster, stored, tmp_path, monkeypatch, caplog):
    environment = replace(Environment.read(), run_id="run-1", tracking_run_id="")
    open_tracking(environment, "flights")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{get_free_port()}")
    assert clean_up_step(model="flights", report=str(tmp_path / "run.html")) == []
    assert "the run's page is not added to MLflow" in caplog.text


def test_a_step_that_never_started_is_on_the_page(cluster, stored, tmp_path):
    add_pod(cluster, "train-model", "Failed")
    clean_up_step(report=str(tmp_path / "run.html"))
    assert "train_model ended before it wrote its result" in (tmp_path / "run.html").read_text()


def test_a_retry_that_succeeded_is_no_failure(cluster, stored, tmp_path):
    add_pod(cluster, "validate-data", "Failed", "OOMKilled", 137)
    add_pod(cluster, "validate-data", "Succeeded", "Completed", attempt=1)
    stored.write(StoredStep(step="validate_data", status="finished", began=3.0, summary="fine"))
    clean_up_step(report=str(tmp_path / "run.html"))
    assert stored.step("validate_data").status == "finished"


def test_who_cancelled_a_run_stands_on_its_page(cluster, stored, tmp_path):
    stored.write(StoredStep(step="train_model", status="running", began=3.0))
    stored.write_cancellation("ada")
    cluster.store.put("workflows", {
        "metadata": {"name": "wf-run-1"}, "spec": {"activeDeadlineSeconds": 0},
    })  # fmt: skip
    cluster.handler.served = cluster.handler.served | {"workflows"}
    add_pod(cluster, "train-model", "Failed", "Error", 143)
    clean_up_step(model="flights", report=str(tmp_path / "run.html"))
    assert "The run was stopped at train_model by ada." in (tmp_path / "run.html").read_text()
    assert stored.step("train_model").status == "cancelled"


def test_a_service_account_that_may_not_read_workflows_still_gets_a_page(cluster, stored, tmp_path):
    stored.write(StoredStep(step="train_model", status="running", began=3.0))
    cluster.faults.forbidden = {"workflows"}
    cluster.handler.served = cluster.handler.served | {"workflows"}
    clean_up_step(report=str(tmp_path / "run.html"))
    assert "its pod is gone" in (tmp_path / "run.html").read_text()


def test_the_page_of_a_clone_names_the_run_that_it_was_made_of(cluster, stored, tmp_path):
    trigger = '{"trigger":"manual","request":"a1","reason":"odd"}'
    StoredRun(stored.store_uri, "run-0").claim_trigger(trigger)
    stored.write(StoredStep(step="train_model", status="finished", began=3.0))
    clean_up_step(reason="odd", trigger=trigger, report=str(tmp_path / "run.html"))
    assert "a clone of the run run-0, whose reason was: odd" in (tmp_path / "run.html").read_text()


def test_a_reason_that_begins_with_a_quotation_mark_has_its_page(cluster, stored, tmp_path):
    stored.write(StoredStep(step="train_model", status="finished", began=3.0))
    clean_up_step(reason='"weekly" retraining', report=str(tmp_path / "run.html"))
    assert "&#34;weekly&#34; retraining" in (tmp_path / "run.html").read_text()


def test_steps_that_did_not_run_are_listed_on_the_page(cluster, stored, tmp_path):
    stored.write(StoredStep(step="snapshot_data", status="finished", began=1.0, ended=2.0))
    stored.write(StoredStep(step="decide_retraining", status="finished", began=3.0, ended=4.0))
    clean_up_step(pipeline="drift_monitoring", report=str(tmp_path / "run.html"))
    page = (tmp_path / "run.html").read_text()
    absent = re.findall(r'<li class="absent">.*?<strong>(.*?)</strong>', page)
    names = [name.replace("<wbr>", "") for name in absent[: len(absent) // 2]]  # listed twice
    assert names == [
        "validate_data", "detect_drift", "check_skeleton", "train_model", "select_checkpoint",
        "evaluate_model", "register_model",
    ]  # fmt: skip


RETRAIN = RetrainingDecision(
    retrain=True, trigger="drift", summary="drift", reasons=("drift",), evidence={}
)
MONITORED = ("snapshot_data", "validate_data", "detect_drift", "decide_retraining")


def write_finished(stored, steps, decision=RETRAIN):
    results = {"decide_retraining": {"decision": decision.to_json()}}
    for number, step in enumerate(steps):
        stored.write(StoredStep(step=step, status="finished", began=number, ended=number + 1.0,
                                results=results.get(step, {})))  # fmt: skip


def test_a_run_that_ended_before_its_next_step_had_a_pod_has_failed(cluster, stored, tmp_path):
    write_finished(stored, MONITORED)
    clean_up_step(pipeline="drift_monitoring", report=str(tmp_path / "run.html"))
    record = stored.step("check_skeleton")
    assert (record.status, record.problem) == (
        "failed", "check_skeleton did not start: the run ended before it"
    )  # fmt: skip
    page = (tmp_path / "run.html").read_text()
    assert '<meta name="perennial-badge" content="Failed">' in page
    retraining = Retraining(
        run_id="run-1", snapshot_digest="d", data_time=None, rows=1, decision=RETRAIN
    )
    state = TriggerState(retrainings=(retraining,)).with_failures(stored.store_uri)
    assert not state.judged  # the next monitoring run repeats it


def test_a_run_that_was_cancelled_between_two_steps_is_cancelled(cluster, stored, tmp_path):
    write_finished(stored, FLOW["continuous_training"][:3])
    cluster.store.put("workflows", {
        "metadata": {"name": "wf-run-1"}, "spec": {"activeDeadlineSeconds": 0},
    })  # fmt: skip
    cluster.handler.served = cluster.handler.served | {"workflows"}
    clean_up_step(pipeline="continuous_training", report=str(tmp_path / "run.html"))
    assert "The run was stopped at train_model." in (tmp_path / "run.html").read_text()
    assert stored.step("train_model").status == "cancelled"


NOT_NOW = RETRAIN.model_copy(update={"retrain": False, "trigger": "none"})


@pytest.mark.parametrize(
    ("pipeline", "finished", "decision"),
    [
        ("drift_monitoring", MONITORED, NOT_NOW),
        ("drift_monitoring", FLOW["drift_monitoring"], RETRAIN),
        ("continuous_training", FLOW["continuous_training"], RETRAIN),
        # Of the one that Kubeflow took from its cache, there is no record.
        ("continuous_training", ("snapshot_data", *FLOW["continuous_training"][2:]), RETRAIN),
        ("hyperparameter_study", FLOW["hyperparameter_study"], RETRAIN),
        ("", MONITORED, RETRAIN),
    ],
)
def test_a_run_that_came_to_its_end_has_not_failed(cluster, stored, pipeline, finished, decision):
    write_finished(stored, finished, decision)
    clean_up_step(pipeline=pipeline)
    assert {record.status for record in stored.steps()} == {"finished"}
    assert {record.step for record in stored.steps()} == set(finished)


def test_a_last_step_whose_record_could_not_be_written_has_not_failed(cluster, stored):
    write_finished(stored, FLOW["continuous_training"][:-1])
    add_pod(cluster, "register-model", "Succeeded", "Completed")
    clean_up_step(pipeline="continuous_training")
    assert {record.status for record in stored.steps()} == {"finished"}


def worker(number):
    """Where Argo runs a worker of a study, as KFP writes a loop over a list."""
    return f"study.for-loop-1.iteration-iterations({number}:{number}).iteration-item"


def test_a_worker_of_a_study_that_ran_out_of_memory_is_named_by_its_step(cluster, stored):
    write_finished(stored, FLOW["hyperparameter_study"][:3])
    stored.write(StoredStep(step="run_trials", status="running", began=5.0))
    add_pod(cluster, "run-trials", "Failed", "OOMKilled", 137, place=worker(0))
    clean_up_step(pipeline="hyperparameter_study")
    assert stored.step("run_trials").problem == (
        "run_trials ran out of memory: Kubernetes killed it"
    )
    assert {record.step for record in stored.steps()} == set(FLOW["hyperparameter_study"][:4])


def test_a_worker_that_failed_is_not_hidden_by_one_that_finished_after_it(cluster, stored):
    write_finished(stored, FLOW["hyperparameter_study"][:4])
    add_pod(cluster, "run-trials", "Failed", "OOMKilled", 137, place=worker(0))
    add_pod(cluster, "run-trials", "Succeeded", "Completed", attempt=1, place=worker(1))
    clean_up_step(pipeline="hyperparameter_study")
    assert "ran out of memory" in stored.step("run_trials").problem
    assert stored.step("analyze_study") is None


def test_a_worker_that_succeeded_at_its_second_attempt_has_not_failed(cluster, stored):
    write_finished(stored, FLOW["hyperparameter_study"])
    for number in range(2):
        add_pod(cluster, "run-trials", "Failed", "OOMKilled", 137, place=worker(number))
        add_pod(cluster, "run-trials", "Succeeded", "Completed", attempt=1, place=worker(number))
    clean_up_step(pipeline="hyperparameter_study")
    assert {record.status for record in stored.steps()} == {"finished"}
