"""The launcher, the clean-up and the manifests at a real API server, with the rights that k8s/ gives.

A real API server in the place of the fake one; the operator stays a script.
"""

import contextlib
import threading
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

import fake_operator
from api_server import needs_api_server
from cluster_manifests import OVERLAYS, build, label
from fake_operator import step_pod
from fake_training_operator import PyTorchJobs
from launching import (
    ENDINGS,
    TIMED_OUT,
    eventually,
    matches,
    of_each_kind,
    patient_launcher,
    start_step,
    training_job,
)
from perennial.clean_up.step import clean_up_step
from perennial.clients.cluster import ApiError, Cluster
from perennial.clients.object_store import open_store
from perennial.contracts.environment import CACHE, ClusterAddress
from perennial.contracts.errors import TrainingFailedError
from perennial.reap import reap
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.launcher import JobState
from perennial.training_jobs.leftovers import PYTORCHJOBS
from real_cluster import LAUNCHER, REAPER, RealCluster

pytestmark = [pytest.mark.full, pytest.mark.alone, needs_api_server]

GOLDEN = Path(__file__).parents[1] / "manifests" / "golden"


@pytest.fixture
def cluster(server, tmp_path, monkeypatch):
    """A namespace with what `k8s/` grants, in the pod of a step."""
    monkeypatch.setattr(fake_operator, "TICK", 0.1)
    found = RealCluster(server, tmp_path / "cluster")
    for name, value in found.environment("step-1").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    found.store.put("pods", step_pod())
    return found


@pytest.fixture
def launched(cluster, tmp_path, bucket):
    """Starts an operator with scripts; gives the job to launch."""
    with contextlib.ExitStack() as stack:

        def launch(*scripts):
            stack.enter_context(contextlib.closing(PyTorchJobs(cluster, *scripts)))
            return training_job(tmp_path, bucket)

        yield launch


def the_job(cluster):
    (job,) = cluster.store.all("pytorchjobs")
    return job


@pytest.mark.parametrize(("kind", "script", "state", "cause"), of_each_kind(ENDINGS, [PyTorchJobs]))
def test_an_attempt_ends_as_its_pods_did(launched, kind, script, state, cause):
    job, found = launched(script), patient_launcher()
    found.start(job)
    result = found.wait()
    assert result.state is state
    assert matches(kind, cause, result.evidence)


@pytest.mark.parametrize(
    ("kind", "script", "short", "reason", "evidence"), of_each_kind(TIMED_OUT, [PyTorchJobs])
)
def test_what_takes_too_long_times_out_and_is_deleted(
    cluster, launched, *, kind, script, short, reason, evidence
):
    with pytest.raises(TrainingFailedError) as caught:
        run_to_end(launched(script), patient_launcher(), max_restarts=3)
    assert reason in caught.value.problem
    assert evidence in caught.value.evidence
    assert eventually(lambda: not cluster.active_jobs(), 10.0)


def test_every_pods_log_is_kept(launched):
    job = launched("success")
    run_to_end(job, patient_launcher(), max_restarts=0)
    store = open_store(job.store_uri)
    kept = {
        item.key.rpartition("/")[2][:5]: store.read(item.key) for item in store.list("attempts/")
    }
    assert kept["pod-0"].splitlines() == [
        b"INFO rank=0 begins", *(b"INFO rank=0 step=%d" % step for step in range(3))
    ]  # fmt: skip
    assert kept["pod-1"] == b"INFO rank=1 begins\n"


@pytest.mark.parametrize("moment", ["before the creation", "while it runs"])
def test_an_api_server_that_dies_and_comes_back_costs_nothing_but_time(
    cluster, launched, server, monkeypatch, moment
):
    """It forgets what it had cached: versions that were watched from are gone, in its own words."""
    monkeypatch.setattr(fake_operator, "TICK", 1.0)
    job, found = launched("success"), patient_launcher()
    outage = threading.Thread(target=lambda: [server.kill(), server.start()])
    if moment == "before the creation":
        outage.start()
        found.start(job)
    else:
        found.start(job)
        outage.start()
    assert found.wait().state is JobState.SUCCEEDED
    outage.join()
    assert len(cluster.store.all("pytorchjobs")) == 1


def test_a_rotated_token_is_taken_up(cluster, launched):
    job, found = launched("success"), patient_launcher()
    found.start(job)
    cluster.become(LAUNCHER)
    assert found.wait().state is JobState.SUCCEEDED


def test_a_second_try_of_a_killed_step_adopts_the_running_job(cluster, launched, tmp_path, bucket):
    launched("forever")
    step = start_step(cluster, tmp_path, bucket, patient_launcher)
    assert eventually(cluster.active_jobs, 60.0)
    step.kill()
    step.wait()
    uid = the_job(cluster)["metadata"]["uid"]
    again = patient_launcher()
    again.start(training_job(tmp_path, bucket))
    assert the_job(cluster)["metadata"]["uid"] == uid
    again.close()
    assert eventually(lambda: not cluster.active_jobs(), 10.0)


def test_a_terminated_step_deletes_its_job(cluster, launched, tmp_path, bucket):
    launched("forever")
    step = start_step(cluster, tmp_path, bucket, patient_launcher)
    assert eventually(lambda: cluster.store.all("pytorchjobs"), 60.0)
    step.terminate()
    step.wait(60)
    assert eventually(lambda: not cluster.store.all("pytorchjobs"), 10.0)


def test_a_failed_job_that_is_found_is_replaced(cluster, launched):
    job = launched("worker_failure", "success")
    first = patient_launcher()
    first.start(job)
    assert first.wait().state is JobState.FAILED
    uid = the_job(cluster)["metadata"]["uid"]
    run_to_end(job, patient_launcher(), max_restarts=0)
    assert the_job(cluster)["metadata"]["uid"] != uid


def test_the_clean_up_at_a_runs_end_deletes_its_jobs(cluster, launched):
    found = patient_launcher()
    found.start(launched("forever"))
    clean_up_step()
    assert eventually(lambda: not cluster.store.all("pytorchjobs"), 10.0)


@pytest.mark.parametrize(("phase", "is_left"), [("Failed", False), ("Running", True)])
def test_the_reaper_deletes_the_jobs_of_runs_that_are_over(cluster, launched, phase, is_left):
    patient_launcher().start(launched("forever"))
    workflow = {"metadata": {"name": "wf-run-1", "labels": {"pipeline/runid": "run-1"}}}
    cluster.store.put("workflows", workflow | {"status": {"phase": phase}})
    cluster.become(REAPER)
    reap("", timedelta(0), is_dry=False)
    assert eventually(lambda: not cluster.store.all("pytorchjobs"), 5.0) is not is_left


def test_an_account_without_the_role_gets_the_missing_right_named(cluster):
    cluster.become("default")
    with pytest.raises(ApiError, match=r"pytorchjobs \(403\)") as caught:
        Cluster.connect(ClusterAddress.read()).list(PYTORCHJOBS, "")
    assert 'cannot list resource "pytorchjobs" in API group "kubeflow.org"' in caught.value.evidence
    assert "k8s/ has a role" in caught.value.action


def contains(stored, sent):
    """Whether an object kept every field that it was sent with; defaults may have been added."""
    if isinstance(sent, dict):
        return isinstance(stored, dict) and all(
            key in stored and contains(stored[key], value) for key, value in sent.items()
        )
    if isinstance(sent, list):
        return len(stored) == len(sent) and all(map(contains, stored, sent))
    return stored == sent


@pytest.mark.parametrize("name", ["pytorchjob", "pytorchjob-everything", "trainjob"])
def test_nothing_of_a_training_job_is_dropped(cluster, name):
    body = yaml.safe_load((GOLDEN / f"{name}.yaml").read_text())
    body["metadata"]["namespace"] = cluster.namespace
    plural = {"PyTorchJob": "pytorchjobs", "TrainJob": "trainjobs"}[body["kind"]]
    path = f"{cluster.store.roots[plural]}?fieldValidation=Strict&dryRun=All"
    stored = cluster.server.make(path, body)
    assert contains(stored["spec"], body["spec"])


@pytest.mark.parametrize("overlay", OVERLAYS, ids=lambda path: path.name)
def test_the_api_server_takes_every_object_of_an_overlay_that_it_knows(server, overlay):
    items = build(overlay)
    for name in {item["metadata"].get("namespace") for item in items} - {None}:
        server.ask("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    unknown, refused = [], []
    for item in items:
        path = server.path_of(item)
        if path is None:
            unknown.append(label(item))
            continue
        query = "?fieldManager=test&force=true&fieldValidation=Strict&dryRun=All"
        answer = server.ask("PATCH", path + query, item, kind="application/apply-patch+yaml")
        if answer.status_code not in (200, 201):
            refused.append(f"{label(item)}: {answer.text[:500]}")
    print(f"{overlay.name}: {len(items) - len(unknown)} taken; not served here: {unknown}")
    assert refused == []
