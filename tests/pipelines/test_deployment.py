"""Deploying against a server that speaks KFP's wire format: once, twice, at once, broken off."""

import json
import sys
import threading
from contextlib import suppress
from datetime import datetime, timedelta
from functools import cache

import boto3
import pytest

from deployments import DIGEST, contract, profile
from fake_api_server import NAMESPACE
from fake_operator import step_pod
from perennial.cli import main
from perennial.clients.pipeline_api import UnreachableError
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Verdict
from perennial.deployment.credentials import connect
from perennial.deployment.desired import desire
from perennial.deployment.operations import (
    DeployedModel,
    TargetCluster,
    cancel,
    difference,
    follow,
    start_deployed,
    submit,
    switch,
    undeploy,
)
from perennial.deployment.plan import OvertakenError, apply, observe
from perennial.deployment.run_request import RunRequest
from perennial.steps.parameters import CARRIED_BYTES, REPLACED, resolve, shown_text
from perennial.steps.stored_steps import StoredRun, StoredStep
from perennial.studies.config import StudySection
from pipeline_server import pipeline_server

CALLS_OF_A_FIRST_DEPLOYMENT = 6
ACTIONS_OF_A_FIRST_DEPLOYMENT = CALLS_OF_A_FIRST_DEPLOYMENT + 1  # the contract is stored
CHANGED = {"schedules": {"monitoring": "0 4 * * *"}}


@pytest.fixture
def served(bucket, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "no such file"))
    client = boto3.client("s3")
    client.create_bucket(Bucket="perennial")
    with pipeline_server() as (server, url):
        yield server, url
    for item in client.list_objects_v2(Bucket="perennial").get("Contents", ()):
        client.delete_object(Bucket="perennial", Key=item["Key"])
    client.delete_bucket(Bucket="perennial")


def target_of(url, **sections):
    where = profile(url, **sections)
    return TargetCluster(where, connect(where))


ANY_CALL = [
    pytest.param(number, marks=() if number % 4 == 0 else pytest.mark.full)
    for number in range(CALLS_OF_A_FIRST_DEPLOYMENT + 3)
]


def status_lines(target):
    return list(DeployedModel.find(target, "flights-late").lines())


@cache
def wanted(monitoring):
    """Compiling takes a second; what is wanted does not depend on where the server is."""
    return desire(contract(), profile(schedules={"monitoring": monitoring}))


def deploy(url, **sections):
    where = target_of(url, **sections)
    return list(apply(where.api, wanted(where.profile.schedules.monitoring)))


def test_deploying_twice_changes_nothing_the_second_time(served):
    server, url = served
    assert len(deploy(url)) == ACTIONS_OF_A_FIRST_DEPLOYMENT
    assert len(server.mutations) == CALLS_OF_A_FIRST_DEPLOYMENT
    assert deploy(url) == []
    assert len(server.mutations) == CALLS_OF_A_FIRST_DEPLOYMENT


def test_a_change_makes_exactly_the_needed_calls(served):
    server, url = served
    deploy(url)
    before = len(server.mutations)
    deploy(url, **CHANGED)
    (old, new) = "recurring_run-0006", "recurring_run-0007"
    assert server.mutations[before:] == [
        "POST /apis/v2beta1/recurringruns",
        f"POST /apis/v2beta1/recurringruns/{old}:disable",
        f"DELETE /apis/v2beta1/recurringruns/{old}",
    ]
    assert list(server.schedules) == [new]


def test_the_schedule_starts_after_its_predecessor_is_switched_off_and_catches_up_on_nothing(
    served,
):
    server, url = served
    deploy(url)
    (schedule,) = server.schedules.values()
    cron = schedule["trigger"]["cron_schedule"]
    assert cron["cron"] == "0 0 3 * * *"
    assert cron["start_time"] > "2026"
    assert schedule["no_catchup"] is True
    assert schedule["max_concurrency"] == "1"
    assert schedule["service_account"] == "pipeline-runner"


def test_a_run_under_way_survives_a_change_of_its_schedule(served):
    server, url = served
    deploy(url)
    (old,) = server.schedules
    experiment = server.schedules[old]["experiment_id"]
    run = server.add_run("RUNNING", recurring_run_id=old, experiment_id=experiment)
    deploy(url, **CHANGED)
    assert server.runs[run]["state"] == "RUNNING"
    assert server.schedules[old]["status"] == "DISABLED"
    server.runs[run]["state"] = "SUCCEEDED"
    deploy(url, **CHANGED)
    assert old not in server.schedules


def test_a_run_under_way_survives_that_its_kind_of_schedule_is_replaced_by_the_other(served):
    server, url = served
    deploy(url)
    (old,) = server.schedules
    experiment = server.schedules[old]["experiment_id"]
    run = server.add_run("RUNNING", recurring_run_id=old, experiment_id=experiment)
    where = profile(url, schedules={"monitoring": "", "training": "0 4 * * *"})
    list(apply(connect(where), desire(contract(), where)))
    assert server.schedules[old]["status"] == "DISABLED"
    assert server.runs[run]["state"] == "RUNNING"


@pytest.mark.parametrize("how", ["refuse", "drop after"])
@pytest.mark.parametrize("number", ANY_CALL)
def test_broken_off_at_any_call_the_next_deployment_finishes(served, number, how):
    server, url = served
    server.fault = (number, how)
    attempts = []
    for sections in ({}, {}, CHANGED, CHANGED):
        try:
            deploy(url, **sections)
        except PerennialError as error:
            attempts.append(error)
    # A dropped DELETE is repeated by itself.
    assert len(attempts) == (
        0 if how == "drop after" and number == CALLS_OF_A_FIRST_DEPLOYMENT + 2 else 1
    )
    assert len(server.enabled("monitoring")) == 1
    assert len(server.schedules) == 1
    assert server.enabled("monitoring")[0]["trigger"]["cron_schedule"]["cron"] == "0 0 4 * * *"
    assert len(server.pipelines) == 2
    assert len(server.versions) == 2
    assert deploy(url, **CHANGED) == []


@pytest.mark.parametrize("number", ANY_CALL)
def test_another_deployment_in_between_leaves_one_schedule(served, number):
    server, url = served
    intruded = []

    def intrude(count, call):
        if count == number and not intruded and call.startswith(("POST", "DELETE")):
            intruded.append(call)
            other = threading.Thread(target=deploy, args=(url,), kwargs=CHANGED)
            server._lock.release()  # the other one speaks to the server before this call is heard
            other.start()
            other.join()
            server._lock.acquire()

    server.before = intrude
    for hour in (5, 6):
        with suppress(OvertakenError):
            deploy(url, schedules={"monitoring": f"0 {hour} * * *"})
    assert intruded
    assert len(server.enabled("monitoring")) == 1
    assert len(server.schedules) == 1


def test_deployments_at_once_leave_one_schedule(served):
    server, url = served
    hours = [str(hour) for hour in range(6)]
    outcomes = []

    def attempt(hour):
        try:
            deploy(url, schedules={"monitoring": f"0 {hour} * * *"})
            outcomes.append("in place")
        except OvertakenError:
            outcomes.append("overtaken")

    threads = [threading.Thread(target=attempt, args=(hour,)) for hour in hours]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == len(hours)
    assert len(server.enabled("monitoring")) == 1
    assert len(server.pipelines) == 2


def test_paused_schedules_stay_paused_through_deployments(served):
    server, url = served
    deploy(url)
    target = target_of(url)
    assert len(switch(target, "flights-late", enabled=False)) == 1
    deploy(url, **CHANGED)
    assert server.enabled("monitoring") == []
    assert "PAUSED" in "\n".join(status_lines(target))
    switch(target, "flights-late", enabled=True)
    assert len(server.enabled("monitoring")) == 1


def test_pausing_stops_the_schedule_that_an_interrupted_deployment_left_enabled(served):
    server, url = served
    deploy(url)
    server.fault = (CALLS_OF_A_FIRST_DEPLOYMENT + 1, "refuse")  # before the older one is disabled
    with pytest.raises(PerennialError):
        deploy(url, **CHANGED)
    assert len(server.enabled("monitoring")) == 2
    target = target_of(url)
    switch(target, "flights-late", enabled=False)
    assert server.enabled("monitoring") == []
    # Only the newest counts: the older one is on its way out.
    switch(target, "flights-late", enabled=True)
    assert [item["trigger"]["cron_schedule"]["cron"] for item in server.enabled("monitoring")] == [
        "0 0 4 * * *"
    ]


def test_a_schedule_that_was_cloned_in_the_dashboard_is_of_the_same_model(served):
    server, url = served
    deploy(url)
    (item,) = server.schedules.values()
    clone = {"recurring_run_id": "clone", "display_name": f"Clone of {item['display_name']}"}
    server.schedules["clone"] = {**item, **clone, "created_at": server._now()}
    target = target_of(url)
    assert list(target.deployed_schedules()) == ["flights-late"]
    # The newest counts: the next deployment ends the one that it was cloned from.
    deploy(url)
    assert list(server.schedules) == ["clone"]
    assert deploy(url) == []
    # Until it has another time.
    server.schedules["clone"]["trigger"] = {"cron_schedule": {"cron": "0 0 9 * * *"}}
    deploy(url)
    assert server.enabled("monitoring")[0]["trigger"]["cron_schedule"]["cron"] == "0 0 3 * * *"
    assert len(server.schedules) == 1


def test_a_study_starts_with_as_many_tasks_as_trials_run_at_a_time(served):
    server, url = served
    deploy(url)
    target = target_of(url)
    rates = {"training.optimizer.learning_rate": {"log": (1e-4, 1.0)}}
    study = StudySection.model_validate({"goal": "which?", "nuisance": rates, "parallel": 3})
    run = submit(target, contract(study=study), RunRequest("study", "a question"))
    started = server.runs[run]
    assert started["display_name"].startswith("flights-late study 20")
    assert '"goal":"which?"' in resolve(started["runtime_config"]["parameters"]["contract"])
    version = server.versions[started["pipeline_version_reference"]["pipeline_version_id"]]
    assert '["1/3", "2/3", "3/3"]' in json.dumps(version).replace("\\", "")
    assert len(server.schedules) == 1


def test_submitting_starts_the_contract_on_disk_and_leaves_schedules_alone(served):
    server, url = served
    deploy(url)
    target = target_of(url)
    run = submit(target, contract(), RunRequest("training", "looked odd"))
    assert server.runs[run]["display_name"].startswith("flights-late training 20")
    parameters = server.runs[run]["runtime_config"]["parameters"]
    assert '"reason":"looked odd"' in parameters["trigger"]
    assert len(server.schedules) == 1
    with pytest.raises(PerennialError, match="1 run of flights-late under way"):
        submit(target, contract(), RunRequest("training", "again"))


def test_a_trigger_trains_what_is_deployed_with_the_evidence_given(served):
    server, url = served
    deploy(url)
    target = target_of(url)
    request = RunRequest("training", "new files", '{"files": 3}')
    run = start_deployed(target, "flights-late", request)
    started = server.runs[run]
    version = started["pipeline_version_reference"]["pipeline_version_id"]
    pipeline = server.versions[version]["pipeline_id"]
    assert server.pipelines[pipeline]["display_name"] == "continuous-training"
    assert '"evidence":{"files":3}' in started["runtime_config"]["parameters"]["trigger"]
    with pytest.raises(PerennialError, match="not a JSON object"):
        start_deployed(
            target, "flights-late", RunRequest("training", "x", "three files", force=True)
        )
    with pytest.raises(PerennialError, match="nothing is deployed for a model 'flight'"):
        start_deployed(target, "flight", RunRequest("training", "typo"))


@pytest.mark.parametrize(
    ("reason", "evidence"), [("x" * CARRIED_BYTES, ""), ("x", json.dumps({"a": "ü" * 5000}))]
)
def test_a_reason_that_is_too_long_for_steps_is_refused_with_the_limit(reason, evidence):
    with pytest.raises(PerennialError, match=f"at most {CARRIED_BYTES:,}"):
        _ = RunRequest("training", reason, evidence).trigger


def test_a_terminated_run_is_called_cancelled_although_the_server_says_failed(served):
    server, url = served
    deploy(url)
    target = target_of(url)
    run = submit(target, contract(), RunRequest("training", "a test"))
    assert cancel(target, run)
    shown = []
    assert follow(target, run, shown.append, sleep=lambda seconds: None).was_canceled
    assert shown == [f"{server.runs[run]['display_name']}: cancelled"]
    assert not cancel(target, run)
    assert "cancelled" in "\n".join(status_lines(target))


@pytest.fixture
def without_pauses(monkeypatch):
    """The client's own tries follow each other at once."""
    monkeypatch.setattr("urllib3.util.retry.Retry.sleep", lambda self, response=None: None)


@pytest.mark.parametrize("answer", [(503, "no healthy upstream"), (500, "the database is away")])
def test_a_run_is_followed_through_an_outage_of_the_server(served, without_pauses, answer):
    server, url = served
    server.away_answer = answer
    deploy(url)
    target = target_of(url)
    run = submit(target, contract(), RunRequest("training", "a test"))
    shown, pauses = [], []

    def sleep(seconds):
        pauses.append(seconds)
        server.is_away = len(pauses) < 3
        if len(pauses) == 4:
            cancel(target, run)

    server.is_away = True
    assert follow(target, run, shown.append, sleep=sleep).was_canceled
    assert "the run continues; still waiting" in shown[0]
    assert shown[1:-1] == [
        "  what a step waits for cannot be seen from here: no Kubernetes cluster is configured"
    ]


def test_an_outage_that_does_not_end_is_an_error(served, without_pauses):
    server, url = served
    deploy(url)
    target = target_of(url)
    run = submit(target, contract(), RunRequest("training", "a test"))
    server.is_away = True
    pauses = []
    with pytest.raises(UnreachableError):
        follow(target, run, lambda line: None, sleep=pauses.append)
    assert sum(pauses) >= 600.0


def test_the_parameters_of_a_run_can_be_compared_and_its_contract_lies_in_the_store(served):
    server, url = served
    deploy(url)
    target = target_of(url)
    reason = "labels corrected, see {{ticket}} for $(NAME)"
    run = submit(target, contract(), RunRequest("training", reason))
    given = server.runs[run]["runtime_config"]["parameters"]
    assert given["model"] == "flights-late"
    assert given["data"] == "s3://perennial/flights"
    assert shown_text(given["reason"]) == reason
    assert not REPLACED.search(given["reason"])
    assert given["contract"].startswith("s3://perennial/store/parcels/")
    assert resolve(given["contract"]) == contract().to_json()
    (schedule,) = server.schedules.values()
    scheduled = schedule["runtime_config"]["parameters"]
    assert scheduled == {
        "contract": given["contract"], "model": "flights-late", "data": "s3://perennial/flights",
        "reason": "schedule",
    }  # fmt: skip


def test_without_access_to_the_store_a_short_contract_travels_as_itself(served):
    server, url = served
    target = target_of(url, stores={"store_uri": "s3://not-there/store"})
    run = submit(target, contract(), RunRequest("training", "a test"))
    given = server.runs[run]["runtime_config"]["parameters"]
    assert given["contract"] == contract().to_json()


def test_a_version_of_an_earlier_deployment_gets_the_parameters_that_it_has(served):
    server, url = served
    deploy(url)
    (schedule,) = server.schedules.values()
    for name in ("model", "data", "reason"):
        del schedule["runtime_config"]["parameters"][name]
    run = start_deployed(target_of(url), "flights-late", RunRequest("training", "a test"))
    assert set(server.runs[run]["runtime_config"]["parameters"]) == {"contract", "trigger"}


# What Kubeflow's server lists as a run's tasks: steps, its drivers and executors, the workflow.
TASKS = [
    ("flights-late-training-x7k2p", "RUNNING"), ("root-driver", "SUCCEEDED"),
    ("root", "RUNNING"), ("training", "RUNNING"), ("training-driver", "SUCCEEDED"),
    ("snapshot-data", "SUCCEEDED"), ("snapshot-data-driver", "SUCCEEDED"),
    ("validate-data", "FAILED"), ("executor", "SUCCEEDED"), ("executor", "RUNNING"),
]  # fmt: skip


def with_tasks(server, run):
    server.runs[run]["run_details"] = {
        "task_details": [{"display_name": name, "state": state} for name, state in TASKS]
    }


def record(run, step, **values):
    stored = StoredRun("s3://perennial/store", run)
    stored.write(StoredStep(step=step, began=1.0, ended=2.0, **values))


def test_a_followed_run_reports_steps_only_and_why_one_failed(served):
    server, url = served
    deploy(url)
    target = target_of(url)
    run = submit(target, contract(), RunRequest("training", "a test"))
    with_tasks(server, run)
    error = {"problem": "the data is not fit", "evidence": "3 rows", "action": "look at month 4"}
    record(run, "snapshot_data", status="finished", summary="3 partitions")
    record(run, "validate_data", status="failed", **error)
    server.runs[run] |= {"state": "FAILED"}
    shown = []
    follow(target, run, shown.append, sleep=lambda seconds: None)
    assert shown == [
        "  snapshot_data: succeeded",
        "  validate_data: failed",
        f"{server.runs[run]['display_name']}: failed",
        "  verdict: Failed",
        "  validate_data failed: the data is not fit",
        "    evidence: 3 rows",
        "    to do:    look at month 4",
    ]
    printed = "\n".join(status_lines(target))
    assert "validate_data failed: the data is not fit" in printed
    assert "executor" not in printed


def test_the_gate_and_the_decision_are_part_of_the_status(served):
    server, url = served
    deploy(url)
    target = target_of(url)
    run = submit(target, contract(), RunRequest("training", "a test"))
    verdict = Verdict(
        promote=False, summary="Do not promote.", reasons=(), comparisons=(), baselines={},
        champion_version="1", test_rows=9, test_blocks=3, performance_reference=(),
    )  # fmt: skip
    record(run, "decide_retraining", status="finished", summary="Retrain: drift.")
    record(run, "evaluate_model", status="finished", summary="Do not promote: 0.55 against 0.57.",
           results={"verdict": verdict.to_json()})  # fmt: skip
    server.runs[run] |= {"state": "SUCCEEDED"}
    reasons = [
        "verdict: Champion kept",
        "trigger: Retrain: drift.",
        "gate: Do not promote: 0.55 against 0.57.",
    ]
    assert status_lines(target)[-3:] == [f"    {line}" for line in reasons]
    assert DeployedModel.find(target, "flights-late").record()["newest"] == reasons


def test_unreadable_reasons_are_reported_without_a_wait(served, monkeypatch):
    server, url = served
    deploy(url)
    run = submit(target_of(url), contract(), RunRequest("training", "a test"))
    server.runs[run] |= {"state": "FAILED"}
    elsewhere = target_of(url, stores={"store_uri": "s3://not-there/store"})
    assert "reasons: not known here, because s3://not-there/store cannot be read" in "\n".join(
        status_lines(elsewhere)
    )


@pytest.mark.parametrize(
    ("place", "shown"),
    [
        ("wf.root.training.train-model.executor(0)", "train_model"),
        ("wf.root.training.snapshot-data-driver", "training.snapshot-data-driver"),
        ("", "train_model"),
    ],
)
def test_a_pod_that_waits_is_named_as_what_it_is(served, cluster, place, shown):
    _, url = served
    deploy(url)
    where = target_of(url, server={"namespace": NAMESPACE})
    run = submit(where, contract(), RunRequest("training", "a test"))
    pod = step_pod("step-2", run)
    pod["metadata"]["annotations"] = {"workflows.argoproj.io/node-name": place} if place else {}
    pod["status"] = {"phase": "Pending", "reason": "Unschedulable"}
    cluster.store.put("pods", pod)
    assert f"    {shown} waits: Unschedulable" in status_lines(where)


def test_a_step_that_waits_is_named_with_the_reason(served, cluster, monkeypatch):
    _, url = served
    deploy(url)
    where = target_of(url, server={"namespace": NAMESPACE})
    run = submit(where, contract(), RunRequest("training", "a test"))
    why = "0/1 nodes are available: 1 Insufficient cpu."
    pod = step_pod("step-2", run)
    pod["metadata"]["annotations"] = {
        "workflows.argoproj.io/node-name": "wf.root.training.train-model.executor(0)"
    }
    unscheduled = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": why
    }  # fmt: skip
    pod["status"] = {"phase": "Pending", "conditions": [unscheduled]}
    cluster.store.put("pods", pod)
    assert f"    train_model waits: Unschedulable: {why}" in status_lines(where)
    shown, polls = [], []

    def sleep(seconds):
        polls.append(seconds)
        if len(polls) == 3:
            cancel(where, run)

    follow(where, run, shown.append, sleep=sleep)
    assert shown.count(f"  train_model waits: Unschedulable: {why}") == 1


def test_undeploying_stops_schedules_first_and_leaves_runs(served):
    server, url = served
    deploy(url)
    (schedule,) = server.schedules
    experiment = server.schedules[schedule]["experiment_id"]
    run = server.add_run("RUNNING", recurring_run_id=schedule, experiment_id=experiment)
    target = target_of(url)
    printed = list(undeploy(target, "flights-late", cancel_running=False))
    assert server.runs[run]["state"] == "RUNNING"
    assert "until its run is over; call again" in " ".join(printed)
    assert server.enabled("monitoring") == []
    list(undeploy(target, "flights-late", cancel_running=True))
    assert server.runs[run]["state"] == "FAILED"
    list(undeploy(target, "flights-late", cancel_running=False))
    assert server.schedules == {}


def test_the_difference_names_options_schedules_and_images(served):
    _, url = served
    deploy(url)
    digest = "sha256:" + "f" * 64
    changed = target_of(
        url, schedules={"monitoring": "0 4 * * *"},
        images={"data": f"registry.example/perennial-data@{digest}"},
    )  # fmt: skip
    desired = desire(contract(uri="s3://perennial/new"), changed.profile)
    lines = list(difference(changed, desired, observe(changed.api, desired)))
    assert "- schedule 'flights-late monitoring' = 0 3 * * *" in lines
    assert "+ schedule 'flights-late monitoring' = 0 4 * * *" in lines
    assert '+ data.uri = "s3://perennial/new"' in lines
    assert any(
        line.startswith("+ monitoring: exec-snapshot-data.image = ") and digest in line
        for line in lines
    )


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ({"pods": {"steps": {"train_model": {"memory": "7Gi"}}}},
         '+ training: exec-train-model.resources.resourceMemoryLimit = "7Gi"'),
        ({"stores": {"tracking_uri": "https://mlflow.example"}},
         '+ training: exec-train-model.env.MLFLOW_TRACKING_URI = "https://mlflow.example"'),
        ({"pods": {"node_selector": {"pool": "gpu"}}},
         '+ training: exec-train-model.pod.nodeSelector.labels.pool = "gpu"'),
    ],
    ids=["resources", "stores", "pods"],
)  # fmt: skip
def test_the_difference_names_what_a_profile_changes(served, section, line):
    _, url = served
    deploy(url)
    same = target_of(url)
    desired = desire(contract(), same.profile)
    assert list(difference(same, desired, observe(same.api, desired))) == []
    changed = target_of(url, **section)
    desired = desire(contract(), changed.profile)
    lines = list(difference(changed, desired, observe(changed.api, desired)))
    assert line in lines


def test_tokens_are_read_again_for_each_request(served, tmp_path):
    server, url = served
    token = tmp_path / "token"
    where = {"auth": {"kind": "in-cluster", "token_file": str(token)}}
    with pytest.raises(PerennialError, match="there is no token"):
        deploy(url, **where)
    token.write_text("first\n")
    server.token = "first"
    target = target_of(url, **where)
    assert target.api.find_experiment("flights-late") is None
    token.write_text("second\n")
    server.token = "second"
    assert target.api.find_experiment("flights-late") is None
    token.write_text("stale\n")
    with pytest.raises(PerennialError, match="missing or expired"):
        target.api.find_experiment("flights-late")


def test_a_server_that_is_not_there_is_named(without_pauses):
    with pytest.raises(PerennialError, match="cannot be reached to look for a pipeline"):
        deploy("http://127.0.0.1:9")


def test_a_listing_that_leads_back_to_an_earlier_page_is_an_error(served):
    server, url = served
    deploy(url)
    page = server._page

    def circular(*arguments):
        return {**page(*arguments), "next_page_token": "2026-11-01T00:00:00Z"}

    server._page = circular
    with pytest.raises(PerennialError, match=r"not from a pipeline server.*list the") as caught:
        target_of(url).api.schedules()
    assert "page 2 leads back to an earlier one" in caught.value.evidence


def test_data_on_this_machine_cannot_be_deployed():
    with pytest.raises(PerennialError, match="is a folder of this machine"):
        desire(contract(uri="/data/flights"), profile())
    with pytest.raises(PerennialError, match="'gs://perennial/flights' is not an address"):
        desire(contract(uri="gs://perennial/flights"), profile())


def test_a_step_that_would_end_before_its_training_is_not_deployed():
    with pytest.raises(PerennialError, match=r"ends the step before its training\n.* 5780 minutes"):
        desire(contract(), profile(pods={"training_timeout_minutes": 5779}))


def test_the_commands_say_what_they_do(served, tmp_path, capsys, monkeypatch):
    server, url = served
    monkeypatch.setattr("sys.path", [*sys.path])
    (tmp_path / "profile.toml").write_text(
        f'[server]\npipelines_url = "{url}"\n[images]\n'
        + "".join(f'{name} = "r.example/{name}@{DIGEST}"\n' for name in ("data", "trainer", "control"))
        + '[stores]\nstore_uri = "s3://p/s"\ntracking_uri = "http://mlflow:5000"\n'
        '[schedules]\nmonitoring = "0 3 * * *"\n'
    )  # fmt: skip
    (tmp_path / "contract.toml").write_text(
        '[model]\nname = "flights"\ntask = "perennial.tasks.tabular:TabularClassification"\n'
        '[data]\nuri = "s3://p/flights"\nlabel = "late"\nids = ["flight"]\n'
    )
    where = ["--profile", str(tmp_path / "profile.toml")]
    contract_file = str(tmp_path / "contract.toml")

    def run_verb(*arguments):
        code = main([*arguments, *where])
        return code, capsys.readouterr().out

    assert (
        "would create the schedule 'flights monitoring' (0 3 * * *)"
        in run_verb("deploy", contract_file, "--dry-run", "--diff")[1]
    )
    code, printed = run_verb("deploy", contract_file)
    assert printed.count("✓") in (CALLS_OF_A_FIRST_DEPLOYMENT, ACTIONS_OF_A_FIRST_DEPLOYMENT)
    assert "continuous-training: up to 8 tasks, of which Kubeflow itself takes 180 s" in printed
    assert "nothing to do" in run_verb("deploy", contract_file)[1]
    assert "flights monitoring': 0 3 * * *, paused" in run_verb("schedule", "flights", "--pause")[1]
    code, printed = run_verb("trigger", "flights", "--reason", "labels corrected")
    run = printed.split()[1]
    assert (code, printed) == (0, f"started {run}\n")
    assert run in run_verb("status", "flights")[1]
    header, line = run_verb("runs")[1].splitlines()[1:]
    assert header.split("  ")[1] == "STARTED (UTC)"
    assert header.split()[-4:] == ["TOOK", "OUTCOME", "RUN", "NAME"]
    assert run in line
    for verb in (("status",), ("schedule",), ("trigger", "--reason", "odd")):
        assert main([verb[0], "flihgts", *verb[1:], *where]) == 2
        assert "the nearest is flights" in capsys.readouterr().err
    assert main(["cancel", "run-99", *where]) == 2
    assert "there is no run 'run-99'\n" in (refused := capsys.readouterr().err)
    assert "to do:    `perennial runs --profile" in refused
    (state,) = json.loads(run_verb("status", "--json")[1])
    assert (state["model"], state["runs"][0]["run"]) == ("flights", run)
    assert state["schedules"] == [
        {"name": "flights monitoring", "cron": "0 3 * * *", "enabled": False}
    ]
    assert json.loads(run_verb("runs", "flights", "--json")[1]) == state["runs"]
    assert state["runs"][0]["outcome"] == "pending"
    monkeypatch.setenv("PERENNIAL_PROFILE", where[1])
    for verb in ("status", "runs"):
        for model in ([], ["flights"]):
            assert main([verb, *model]) == 0
            assert run in capsys.readouterr().out
        assert main([verb, "flights@2"]) == 2
        assert "not on one of its versions (got 'flights@2')" in capsys.readouterr().err
        assert main([verb, "--home", str(tmp_path / "home")]) == 0
        assert run not in capsys.readouterr().out
    monkeypatch.delenv("PERENNIAL_PROFILE")
    assert "cancelled" in run_verb("cancel", run)[1]
    begun = datetime.fromisoformat(server.runs[run]["created_at"])
    server.runs[run]["finished_at"] = (begun + timedelta(minutes=75)).isoformat()
    assert "  1 h 15 min  cancelled  " in run_verb("runs")[1]
    assert "over already: cancelled" in run_verb("cancel", run)[1]
    assert "deleted the schedule 'flights monitoring'" in run_verb("undeploy", "flights")[1]
