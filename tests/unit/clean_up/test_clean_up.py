"""When a run has ended, however it did, none of its jobs goes on."""

import json

import pytest

from fake_operator import step_pod
from launching import launcher_for
from perennial.clean_up.step import clean_up_step
from perennial.contracts.errors import PerennialError
from perennial.training_jobs.leftovers import still_goes_on


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
