"""A job that Kueue holds is waited for, and one that it admitted but that stays suspended is stuck."""

import pytest

from fake_kueue import ADMITTED, WAITING, workload
from launching import HOUR, MINUTE, SHORT, each_kind, job_name, launcher_for
from perennial.contracts.errors import TrainingFailedError
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.config import Budgets
from perennial.training_jobs.status import admission_of

JOB = {
    "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob",
    "metadata": {"name": "prices", "uid": "u"}, "spec": {"pytorchReplicaSpecs": {}},
}  # fmt: skip
RESERVED = ADMITTED[:1]
EVICTED = ("Evicted", "True", "Preempted", "Preempted to accommodate a workload (UID: 7)")
GONE = ("Evicted", "True", "Deactivated", "The workload is deactivated")
FINISHED = ("Finished", "True", "FailedToStart", "invalid podset infos: expecting 1 got 2")
CHECK = {"name": "prov", "state": "Pending", "message": "Waiting for machines"}

# Workload → the reason that is reported of the job.
WAITS = {
    "no quota": (workload(JOB, WAITING), "waits to be admitted: couldn't assign flavors to pod"),
    "admission checks": (
        workload(JOB, RESERVED, admissionChecks=[CHECK]),
        "waits for admission checks: prov Pending: Waiting for machines",
    ),
    "evicted, quota not yet given back": (
        workload(JOB, [*ADMITTED, EVICTED]), "waits for admission checks: none is named"
    ),
    "evicted": (workload(JOB, [*WAITING, EVICTED]), "waits to be admitted: couldn't assign"),
    "never looked at": (workload(JOB, []), "waits to be admitted: Kueue reports no reason"),
}  # fmt: skip
STUCK = {
    "admitted": (
        workload(JOB, ADMITTED),
        "Kueue admitted it (The workload is admitted), but it stays suspended",
    ),
    "stopped": (workload(JOB, [*ADMITTED, FINISHED]), "Kueue stopped it: invalid podset"),
}


@pytest.mark.parametrize("name", WAITS)
def test_waiting_is_explained_by_kueues_message_and_needs_no_remedy(name):
    waiting, reason = WAITS[name]
    found = admission_of(waiting)
    assert reason in found.reason
    assert not found.is_stuck


@pytest.mark.parametrize("name", STUCK)
def test_a_suspended_job_that_kueue_has_let_go_needs_a_person(name):
    stuck, reason = STUCK[name]
    found = admission_of(stuck)
    assert reason in found.reason
    assert "deployment/kueue-controller-manager" in found.remedy


def test_a_deactivated_workload_is_reported():
    deactivated = workload(JOB, [*WAITING, GONE])
    deactivated["spec"]["active"] = False
    assert "deactivated: The workload is deactivated" in admission_of(deactivated).reason


@each_kind
def test_a_job_that_is_admitted_and_stays_suspended_times_out(cluster, launched, kind, bucket):
    job = launched("admitted_but_suspended")
    with pytest.raises(TrainingFailedError) as caught:
        run_to_end(job, launcher_for(kind, patient(stuck=0.4)), max_restarts=3)
    assert "it could not start for" in caught.value.problem
    assert "Kueue admitted it (The workload is admitted), but it stays" in caught.value.evidence
    assert "Trainer below 2.2" in caught.value.action
    assert cluster.store.deleted == [job_name(bucket)]


@each_kind
def test_waiting_for_quota_is_logged_and_needs_one_right(cluster, launched, kind, caplog):
    job = launched("admitted_after_a_while")
    with caplog.at_level("INFO"):
        run_to_end(job, launcher_for(kind, patient()), max_restarts=0)
    logged = [line for line in caplog.messages if line.startswith("training is")]
    assert "queued: it waits to be admitted: couldn't assign flavors" in logged[0]
    assert any("running: 2 pods run" in line for line in logged)
    of_kueue = {right for right in cluster.rights if right[0] == "kueue.x-k8s.io"}
    assert of_kueue == {("kueue.x-k8s.io", "workloads", "list")}


@each_kind
def test_a_job_whose_quota_is_taken_back_waits_and_goes_on(cluster, launched, kind, bucket):
    """The job stays and is adopted: deleting it would lose its place in the queue."""
    job = launched("suspended_while_it_runs")
    run_to_end(job, launcher_for(kind, patient()), max_restarts=1)
    assert len(cluster.store.created) == 1
    assert cluster.store.deleted == [job_name(bucket)]  # when it had ended


@each_kind
def test_pods_that_are_slow_to_leave_a_suspended_job_end_one_attempt_only(cluster, launched, kind):
    """Their next attempt is another one's: its restart was counted when they ended."""
    job = launched("suspended_with_pods_that_stay")
    run_to_end(job, launcher_for(kind, patient()), max_restarts=1)
    assert len(cluster.store.created) == 1


def not_served(cluster):
    cluster.handler.served -= {"workloads"}


def forbidden(cluster):
    cluster.faults.forbidden.add("workloads")


UNKNOWN = [
    (lambda cluster: None, "Kueue has not created a Workload for it"),
    (not_served, "the cluster does not serve Kueue's Workloads"),
    (forbidden, 'cannot list resource "workloads" in API group "kueue.x-k8s.io"'),
]


@each_kind
@pytest.mark.parametrize(("prepare", "reason"), UNKNOWN, ids=["none", "no Kueue", "no right"])
def test_without_a_report_of_kueue_the_job_waits_until_its_timeout(
    cluster, launched, kind, prepare, reason
):
    prepare(cluster)
    with pytest.raises(TrainingFailedError, match="it has been queued") as caught:
        run_to_end(launched("suspended"), launcher_for(kind, SHORT), max_restarts=0)
    assert reason in caught.value.evidence


def patient(stuck=10.0):
    return Budgets(
        queued_hours=30.0 / HOUR, starting_minutes=30.0 / MINUTE, stuck_minutes=stuck / MINUTE,
        running_hours=30.0 / HOUR,
    )  # fmt: skip
