"""A run's logs are its pods' own words, in order, without KFP's drivers."""

import pytest

from fake_api_server import FakeCluster
from fake_operator import step_pod
from perennial.clients.cluster import Cluster
from perennial.contracts.environment import ClusterAddress
from perennial.contracts.errors import PerennialError
from perennial.deployment.logs import run_log_lines
from perennial.steps.stored_steps import StoredRun, StoredStep
from perennial.training_jobs.manifests import PyTorchJob, TrainJob

NODE = "workflows.argoproj.io/node-name"


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    fake = FakeCluster(tmp_path / "cluster", served=("pytorchjobs", "trainjobs"))
    for name, value in fake.environment("step-1").items():
        monkeypatch.setenv(name, value)
    for number, place in enumerate(
        ["validate-data-driver", "validate-data.executor", "train-model.executor"]
    ):
        add(fake, step_pod(f"pod-{number}"), f"wf.root.{place}", number, f"{place} speaks")
    add_training(fake, PyTorchJob(), "job-master-0", "step 100 of 300")
    address = Cluster.connect(ClusterAddress.read())
    address.fake = fake
    yield address
    address.close()
    fake.close()


# What the operators write.
LABELS = {
    "PyTorchJob": "training.kubeflow.org/job-name",
    "TrainJob": "jobset.sigs.k8s.io/jobset-name",
}


def add_training(fake, kind, pod_name, log, run_id="run-1"):
    """A job and its pod, which its operator gives labels of its own alone."""
    labels = {"app.kubernetes.io/managed-by": "perennial", "perennial/run": run_id}
    name = f"{kind.container}-job"
    job = {"metadata": {"name": name, "uid": name, "labels": labels}}
    fake.store.put(kind.resource.plural, job)
    pod = step_pod(pod_name)
    pod["metadata"]["labels"] = {LABELS[kind.title]: name}
    pod["spec"]["containers"] = [
        {"name": "sidecar", "image": "proxy"}, {"name": kind.container, "image": "trainer"}
    ]  # fmt: skip
    add(fake, pod, "", 9, log)


def add(fake, pod, node, number, log):
    pod["metadata"]["creationTimestamp"] = f"2026-11-20T10:00:0{number}Z"
    pod["metadata"]["annotations"] = {NODE: node} if node else {}
    pod["status"] = {"phase": "Succeeded"}
    fake.store.put("pods", pod)
    fake.store.write_log(pod["metadata"]["name"], log)
    fake.store.close_log(pod["metadata"]["name"])


def test_steps_and_training_pods_are_told_in_order_and_drivers_are_not(cluster):
    assert list(run_log_lines(cluster, "run-1")) == [
        "── validate-data.executor (Succeeded)",
        "validate-data.executor speaks",
        "── train-model.executor (Succeeded)",
        "train-model.executor speaks",
        "── job-master-0 (Succeeded)",
        "step 100 of 300",
    ]


def test_one_step_is_enough_and_the_trainings_pods_belong_to_it(cluster):
    lines = list(run_log_lines(cluster, "run-1", "train_model"))
    assert "step 100 of 300" in lines
    assert "validate-data.executor speaks" not in lines


def test_the_pods_of_scorings_belong_to_the_steps_that_score(cluster):
    add_training(cluster.fake, TrainJob(), "scoring-3-node-0-0", "scored", run_id="run-1")
    lines = list(run_log_lines(cluster, "run-1", "evaluate_model"))
    assert "scored" in lines
    assert "step 100 of 300" not in lines
    assert "scored" not in list(run_log_lines(cluster, "run-1", "train_model"))


def test_the_pods_of_trials_belong_to_the_step_that_runs_them(cluster):
    step = step_pod("pod-5", run_id="run-4")
    add(cluster.fake, step, "wf.root.run-trials.executor", 5, "16 trials")
    add_training(cluster.fake, TrainJob(), "trial-3-node-0-0", "step 1 of 9", run_id="run-4")
    of_katib = step_pod("trial-of-katib")
    of_katib["metadata"]["labels"] = {"perennial/run": "run-4"}
    add(cluster.fake, of_katib, "", 7, "value=0.4")
    lines = list(run_log_lines(cluster, "run-4", "run_trials"))
    assert {"16 trials", "step 1 of 9", "value=0.4"} <= set(lines)
    assert lines.count("step 1 of 9") == 1


def test_the_pods_of_a_trainjob_are_found_by_their_job(cluster):
    add_training(cluster.fake, TrainJob(), "job-node-0-0", "epoch 1 of 3", run_id="run-3")
    assert list(run_log_lines(cluster, "run-3")) == ["── job-node-0-0 (Succeeded)", "epoch 1 of 3"]


def test_who_may_see_pods_alone_is_told_what_those_say(cluster):
    cluster.fake.faults.forbidden = {"pytorchjobs", "trainjobs"}
    pod = cluster.fake.store.objects["pods"]["job-master-0"]
    pod["metadata"]["labels"]["perennial/run"] = "run-1"
    lines = list(run_log_lines(cluster, "run-1"))
    assert {"validate-data.executor speaks", "step 100 of 300"} <= set(lines)


def test_deleted_pods_and_unknown_steps_are_reported(cluster):
    with pytest.raises(
        PerennialError, match=r"no pod of the run run-2 is left(.|\n)*reports/run-2/"
    ):
        list(run_log_lines(cluster, "run-2"))
    with pytest.raises(PerennialError, match=r"'register_model'.*\n.*validate-data\.executor"):
        list(run_log_lines(cluster, "run-1", "register_model"))


def test_stored_logs_are_printed_when_the_pods_are_deleted(cluster, tmp_path):
    stored = StoredRun(str(tmp_path / "store"), "run-2")
    for number, step in enumerate(("validate_data", "train_model")):
        stored.write(StoredStep(step=step, status="finished", began=float(number)))
        (tmp_path / "log").write_text(f"{step} spoke\n")
        stored.write_log(step, tmp_path / "log")
    assert list(run_log_lines(cluster, "run-2", "", stored.store_uri)) == [
        "── validate_data (stored)", "validate_data spoke",
        "── train_model (stored)", "train_model spoke",
    ]  # fmt: skip
    assert "train_model spoke" not in list(
        run_log_lines(cluster, "run-2", "validate_data", stored.store_uri)
    )


def test_a_lost_connection_is_logged_and_the_other_pods_are_followed(cluster):
    fake = cluster.fake
    fake.store.closed_logs.discard("pod-1")  # it is still running
    printed = []
    for line in run_log_lines(cluster, "run-1"):
        printed.append(line)
        if line == "validate-data.executor speaks":
            fake.faults.drop_streams = True
        elif line.startswith("   the connection was lost"):
            fake.faults.drop_streams = False
    assert [line for line in printed if "run the command again for the rest" in line]
    assert printed[-1] == "step 100 of 300"
