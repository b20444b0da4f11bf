"""What becomes of a training on a cluster, whatever the cluster does to it."""

import re
import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from fake_api_server import JOBS, NAMESPACE
from fake_operator import step_pod
from fake_trainer import TrainJobs
from launching import (
    ENDINGS,
    HOUR,
    KINDS,
    PATIENT,
    SHORT,
    TIMED_OUT,
    each_kind,
    eventually,
    job_name,
    launcher_for,
    matches,
    of_each_kind,
    training_job,
)
from perennial.clients.object_store import open_store
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import POD_NAME
from perennial.contracts.errors import TrainingFailedError
from perennial.engine.handover import read_heartbeat, receive_job
from perennial.training_jobs.attempt_watch import AttemptFiles
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.launcher import JobState


@pytest.mark.parametrize(("kind", "script", "state", "cause"), of_each_kind(ENDINGS))
def test_an_attempt_ends_as_its_pods_did(launched, kind, script, state, cause):
    job = launched(script)
    launcher = launcher_for(kind)
    launcher.start(job)
    result = launcher.wait()
    assert result.state is state
    assert matches(kind, cause, result.evidence)
    assert job.first_step.exists()


def test_the_pods_of_a_followed_job_see_signs_of_life_and_know_how_long_to_wait(launched):
    job = launched("success")
    launcher = launcher_for()
    launcher.start(job)
    attempt = launcher._job
    received = receive_job(attempt.address)
    assert received.unattended_seconds == 20 * 60
    seen = set()

    def new_sign():
        seen.add(read_heartbeat(attempt))
        return len(seen - {b""}) > 1

    follower = threading.Thread(target=launcher.wait)
    follower.start()
    is_seen = eventually(new_sign)
    follower.join()
    assert is_seen


NOT_THERE = "1 of its pods never existed; the operator could not create the others"


def test_a_pod_that_could_not_be_created_is_the_cause_when_the_others_fail(launched, caplog):
    """The operator reports nothing in the job's conditions, and events may not be read."""
    job = launched("refused_worker")
    with pytest.raises(TrainingFailedError) as caught, caplog.at_level("INFO"):
        run_to_end(job, launcher_for(), max_restarts=3)
    assert NOT_THERE in caught.value.evidence
    assert "k8s/components/training-operator" in caught.value.evidence
    assert any(
        "queued: 1 of 2 pods exist; the operator could not create" in line
        for line in caplog.messages
    )


@each_kind
def test_a_pod_that_was_deleted_before_it_started_is_not_taken_for_one_that_was_refused(
    launched, kind, bucket
):
    launcher = launcher_for(kind)
    launcher.start(launched("first_failure_before_the_second_starts"))
    result = launcher.wait()
    assert result.state is JobState.FAILED
    pod = rf"{job_name(bucket)}-(master-0|node-0-0-\w+)"
    assert re.match(rf"{pod} Failed: Error, exit code 1$", result.evidence)
    assert NOT_THERE not in result.evidence


@pytest.mark.parametrize(("kind", "script", "short", "reason", "evidence"), of_each_kind(TIMED_OUT))
def test_what_takes_too_long_times_out_and_is_deleted(
    cluster, launched, *, kind, script, short, reason, evidence
):
    job = launched(script)
    budgets = PATIENT.model_copy(update={short: getattr(SHORT, short)} if short else {})
    with pytest.raises(TrainingFailedError) as caught:
        run_to_end(job, launcher_for(kind, budgets), max_restarts=3)
    assert reason in caught.value.problem
    assert evidence in caught.value.evidence
    assert eventually(lambda: not cluster.active_jobs())


@each_kind
def test_the_real_exception_of_a_worker_is_the_steps_error(cluster, launched, kind):
    job = launched("worker_failure")
    with pytest.raises(TrainingFailedError, match="rank 1 failed at step 7: KeyError: 'price'"):
        run_to_end(job, launcher_for(kind), max_restarts=3)
    assert len(cluster.store.created) == 1
    assert b"KeyError" in open_store(job.store_uri).read("error.json")


KILLED = [("evicted",), ("preempted",), ("out_of_memory",)]


@pytest.mark.parametrize(
    ("kind", "first"), of_each_kind(KILLED, rare={"preempted", "out_of_memory"})
)
def test_what_was_killed_is_trained_on_in_a_new_job_of_the_same_name(
    cluster, launched, bucket, kind, first
):
    job = launched(first, "success")
    run_to_end(job, launcher_for(kind), max_restarts=1)
    names = [made["metadata"]["name"] for made in cluster.store.created]
    assert names == [job_name(bucket)] * 2
    attempts = {
        made["metadata"]["annotations"]["perennial/attempt"] for made in cluster.store.created
    }
    assert len(attempts) == 2


@each_kind
def test_every_pods_log_is_kept_and_the_first_ranks_is_shown(launched, kind, caplog):
    job = launched("success")
    with caplog.at_level("INFO"):
        run_to_end(job, launcher_for(kind), max_restarts=0)
    store = open_store(job.store_uri)
    kept = {item.key: store.read(item.key) for item in store.list("attempts/")}
    logs = {key.rpartition("/")[2][:5]: text for key, text in kept.items() if "/pod-" in key}
    assert logs["pod-0"].splitlines() == [
        b"INFO rank=0 begins",
        *(b"INFO rank=0 step=%d" % step for step in range(3)),
    ]
    assert logs["pod-1"] == b"INFO rank=1 begins\n"
    assert "INFO rank=0 step=2" in caplog.messages
    assert "INFO rank=1 begins" not in caplog.messages


def outage(cluster, seconds):
    cluster.faults.down_until = time.monotonic() + seconds


def drop_streams(cluster, seconds):
    cluster.faults.drop_streams = True
    time.sleep(seconds)
    cluster.faults.drop_streams = False


def forget_versions(cluster, seconds):
    cluster.store.forgotten = cluster.store.version + 1
    drop_streams(cluster, seconds)


def restart_without_roles(cluster, seconds):
    outage(cluster, HOUR)
    assert eventually(lambda: cluster.faults.dropped)  # a refusal alone would be final
    outage(cluster, seconds)
    time.sleep(seconds)
    cluster.faults.forbidden = {"pods", *JOBS}
    time.sleep(2 * seconds)
    cluster.faults.forbidden = set()


TROUBLES = [
    ("the API server restarts and reads its roles last",
     lambda cluster: restart_without_roles(cluster, 0.2)),
    ("the API server restarts for 60 s", lambda cluster: outage(cluster, 0.6)),
    ("too many requests, then a webhook that fails",
     lambda cluster: cluster.faults.next.extend([429, 500, 503, 0])),
    ("a proxy answers with pages of its own",
     lambda cluster: cluster.faults.next.extend(4 * [b"<html>\nmaintenance\n</html>\n"])),
    ("the token is rotated", lambda cluster: cluster.rotate_token("token-1")),
    ("every stream is dropped", lambda cluster: drop_streams(cluster, 0.1)),
    ("the watch's version is gone", lambda cluster: forget_versions(cluster, 0.1)),
]  # fmt: skip


# Of a kind of its own, only its rights make a difference.
IN_TROUBLE = [
    pytest.param(
        kind, trouble, id=f"{kind.title}-{name}",
        marks=[pytest.mark.full] if kind is TrainJobs and "roles" not in name else [],
    )
    for kind in KINDS
    for name, trouble in TROUBLES
]  # fmt: skip


@pytest.mark.parametrize(("kind", "trouble"), IN_TROUBLE)
@pytest.mark.parametrize("moment", ["before the creation", "while it runs"])
def test_trouble_with_the_api_server_costs_nothing_but_time(
    cluster, launched, kind, trouble, moment
):
    job = launched("success")
    launcher = launcher_for(kind)
    if moment == "before the creation":
        thread = threading.Thread(target=trouble, args=(cluster,))
        thread.start()
        launcher.start(job)
    else:
        launcher.start(job)
        thread = threading.Thread(target=trouble, args=(cluster,))
        thread.start()
    assert launcher.wait().state is JobState.SUCCEEDED
    thread.join()
    assert len(cluster.store.created) == 1


@each_kind
def test_a_second_try_of_the_step_adopts_the_running_job(cluster, launched, kind):
    job = launched("forever")
    launcher_for(kind).start(job)
    # The step's pod is gone without a word; its job runs on.
    again = launcher_for(kind)
    again.start(job)
    (made,) = cluster.store.created
    assert again._followed.uid == made["metadata"]["uid"]
    again.close()
    assert eventually(lambda: not cluster.active_jobs())


@each_kind
def test_a_failed_job_that_is_found_is_replaced(cluster, launched, kind):
    job = launched("worker_failure", "success")
    first = launcher_for(kind)
    first.start(job)
    assert first.wait().state is JobState.FAILED
    run_to_end(job, launcher_for(kind), max_restarts=0)
    assert len(cluster.store.created) == 2


@each_kind
def test_a_job_that_someone_deletes_is_reported_as_deleted(cluster, launched, kind, bucket):
    job = launched("forever")
    launcher = launcher_for(kind)
    launcher.start(job)
    threading.Timer(0.3, cluster.store.drop, [kind.plural, job_name(bucket)]).start()
    with pytest.raises(TrainingFailedError, match="was deleted while it ran"):
        launcher.wait()


def test_the_job_belongs_to_the_workflow_and_names_its_run(cluster, launched):
    job = launched("success")
    run_to_end(job, launcher_for(), max_restarts=0)
    metadata = cluster.store.created[0]["metadata"]
    assert metadata["namespace"] == NAMESPACE
    assert metadata["labels"]["perennial/run"] == "run-1"
    (owner,) = metadata["ownerReferences"]
    assert owner == {
        "apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "wf-run-1",
        "uid": "wf-uid-run-1",
    }  # fmt: skip


@each_kind
def test_the_launcher_uses_these_rights_and_no_others(cluster, launched, kind):
    run_to_end(launched("evicted", "success"), launcher_for(kind), max_restarts=1)
    assert cluster.rights == {
        ("", "pods", "get"),
        ("", "pods", "list"),
        ("", "pods", "watch"),
        ("", "pods/log", "get"),
        (kind.group, kind.plural, "create"),
        (kind.group, kind.plural, "delete"),
        (kind.group, kind.plural, "get"),
    }


@each_kind
def test_an_ended_job_is_deleted_when_its_logs_are_stored_as_quotas_count_it(
    cluster, launched, kind, bucket
):
    job = launched("worker_failure")
    with pytest.raises(TrainingFailedError, match="KeyError"):
        run_to_end(job, launcher_for(kind), max_restarts=0)
    assert cluster.store.deleted == [job_name(bucket)]
    stored = {item.key.rpartition("/")[2][:5] for item in open_store(job.store_uri).list("att")}
    assert {"pod-0", "pod-1"} <= stored


def test_an_ended_job_is_kept_while_its_logs_are_nowhere_else(cluster, launched, monkeypatch):
    job = launched("success")
    monkeypatch.setattr(AttemptFiles, "keep_logs", lambda *arguments, **options: False)
    run_to_end(job, launcher_for(), max_restarts=0)
    assert cluster.store.deleted == []


@each_kind
def test_a_training_that_exceeds_the_quota_is_queued_until_another_ends(
    cluster, launched, kind, caplog
):
    job = launched("success")
    cluster.store.put(kind.plural, {"metadata": {"name": "other", "uid": "other", "labels": {}}})
    cluster.faults.quota = {kind.plural: 1}

    def end_the_other_once_ours_is_queued():
        while not any(line.startswith("training is queued") for line in list(caplog.messages)):
            time.sleep(0.02)
        cluster.store.drop(kind.plural, "other")

    threading.Thread(target=end_the_other_once_ours_is_queued, daemon=True).start()
    with caplog.at_level("INFO"):
        run_to_end(job, launcher_for(kind), max_restarts=0)
    refused = "exceeded quota: perennial, requested: count/"
    assert len([line for line in caplog.messages if refused in line]) == 1


def test_a_quota_that_stays_used_up_ends_as_a_timeout_of_the_queue(cluster, launched):
    job = launched("success")
    cluster.faults.quota = {"pytorchjobs": 0}
    with pytest.raises(TrainingFailedError, match="timed out before it was created") as caught:
        run_to_end(job, launcher_for(budgets=SHORT), max_restarts=0)
    assert "queued_hours" in caught.value.problem
    assert "ResourceQuota" in caught.value.action
    assert "verb" not in caught.value.action


@each_kind
@pytest.mark.parametrize("model", ["prices", "copy-of-prices"])
def test_another_runs_job_that_ended_and_was_deleted_has_succeeded(
    cluster, kind, model, tmp_path, bucket
):
    job = training_job(tmp_path, bucket)
    first, second = launcher_for(kind), launcher_for(kind)
    first.start(job)
    second._run = replace(second._run, run_id="run-2")
    second.start(job.model_copy(update={"model": ModelSection(name=model, task="a:B")}))
    # Only now an operator: the second run would replace a job that had ended.
    with closing(kind(cluster, "success")):
        follower = threading.Thread(target=first.wait)
        follower.start()
        assert eventually(lambda: cluster.store.deleted)
        assert second.wait().state is JobState.SUCCEEDED
        follower.join()
    assert len(cluster.store.created) == 1


def test_a_deployment_to_another_store_trains_in_a_job_of_its_own(
    cluster, launched, tmp_path, bucket, monkeypatch
):
    job = launched("success", "success")
    (tmp_path / "other").mkdir()
    other = training_job(tmp_path / "other", f"{bucket}/other")
    first = launcher_for()
    cluster.store.put("pods", step_pod("step-2", "run-2"))
    monkeypatch.setenv(POD_NAME, "step-2")
    second = launcher_for()
    with closing(first), closing(second):
        first.start(job)
        second.start(other)
        follower = threading.Thread(target=first.wait)
        follower.start()
        assert second.wait().state is JobState.SUCCEEDED
        follower.join()
    stores = {made["metadata"]["annotations"]["perennial/store-uri"]: made["metadata"]["name"]
              for made in cluster.store.created}  # fmt: skip
    assert stores.keys() == {job.store_uri, other.store_uri}


def test_the_pods_of_a_deleted_trainjob_are_awaited_before_the_next_is_created(
    cluster, tmp_path, bucket
):
    """A TrainJob goes before its pods do, which are of the same name for the new one's JobSet."""
    labels = {TrainJobs.of_job: job_name(bucket)}
    left = {"metadata": {"name": "left", "uid": "left", "labels": labels}, "status": {}}
    cluster.store.put("pods", left)
    launcher = launcher_for(TrainJobs)
    job = training_job(tmp_path, bucket)
    threading.Timer(0.4, cluster.store.drop, ["pods", "left"]).start()
    seen = []
    create = launcher._cluster.create

    def noting(resource, body):
        seen.extend(pod["metadata"]["name"] for pod in cluster.store.all("pods"))
        return create(resource, body)

    launcher._cluster.create = noting
    launcher.start(job)
    assert "left" not in seen


SOON = PATIENT.model_copy(update={"smaller_after_minutes": 0.3 / 60})


@each_kind
def test_a_training_that_finds_no_place_continues_on_fewer_machines(
    cluster, launched, kind, caplog
):
    job = launched("never_scheduled", "success")
    launcher = launcher_for(kind, SOON, min_machines=1)
    with caplog.at_level("INFO"):
        run_to_end(job, launcher, max_restarts=0)
    (ended,) = [
        line for line in caplog.messages if line.startswith("attempt ended: it has been queued for")
    ]
    assert ended.endswith("s with 2 machines; 1 are asked for")
    assert [line[-1] for line in caplog.messages if re.search(r"pods=\d$", line)] == ["2", "1"]
    assert launcher._job.num_processes == 1
    assert not cluster.active_jobs()


@each_kind
def test_after_an_interruption_all_machines_are_asked_for_again(launched, kind, caplog):
    job = launched("never_scheduled", "preempted", "success")
    with caplog.at_level("INFO"):
        run_to_end(job, launcher_for(kind, SOON, min_machines=1), max_restarts=1)
    assert [line[-1] for line in caplog.messages if re.search(r"pods=\d$", line)] == ["2", "1", "2"]


def test_a_job_that_a_quota_refuses_is_created_with_fewer_machines(cluster, launched, caplog):
    job = launched("success")
    cluster.faults.quota = {"pytorchjobs": 0}

    def free():
        """Wait until fewer machines are asked for."""
        while not any(line.endswith("1 are asked for") for line in caplog.messages):
            time.sleep(0.01)
        cluster.faults.quota.clear()

    freed = threading.Thread(target=free, daemon=True)
    freed.start()
    with caplog.at_level("INFO"):
        run_to_end(job, launcher_for(budgets=SOON, min_machines=1), max_restarts=0)
    freed.join()
    assert [line[-1] for line in caplog.messages if re.search(r"pods=\d$", line)] == ["1"]
