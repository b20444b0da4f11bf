"""The whole way of a training on a cluster: step, job, pods that train, checkpoints, result.

Pods are processes of this machine; nothing else is pretended at a real API server.
"""

import contextlib

import pytest

from api_server import needs_api_server
from fake_api_server import FakeCluster
from fake_operator import become_step
from perennial.clients.object_store import open_store
from perennial.contracts.data import ModelSection
from perennial.contracts.training import TrainingResult
from perennial.train_model.step import train_model_step
from perennial.training_jobs.config import ClusterSection, ResourcesSection, TrainModelConfig
from ports import get_free_port
from process_pods import ProcessOperator
from real_cluster import RealCluster
from tiny_training import largest_difference, tiny_section, weights

# Slow enough to be disturbed.
SLOW = {"trouble": "slow forward", "trouble_rank": -1, "seconds": 0.2}
MODEL = ModelSection(name="tiny", task="faulty_training:FaultyTask", options=SLOW)


def run_step(folder, root, **resources):
    config = TrainModelConfig(
        model=MODEL, training=tiny_section(),
        resources=ResourcesSection(num_processes=2, **resources),
    )  # fmt: skip
    train_model_step(
        contract=config.to_json(), snapshot=str(root / "snapshot"),
        training=str(folder / "training"), report=str(folder / "report.html"),
    )  # fmt: skip
    return TrainingResult.read(folder / "training")


REAL = pytest.param("real", marks=[pytest.mark.full, pytest.mark.alone, needs_api_server])


@pytest.fixture(params=["fake", REAL])
def cluster(request, tmp_path, bucket, monkeypatch, s3_endpoint):
    """A cluster that this process is a step on, with a store of its own."""
    if request.param == "real":
        found = RealCluster(request.getfixturevalue("server"), tmp_path / "cluster")
    else:
        found = FakeCluster(tmp_path / "cluster")
    become_step(found, monkeypatch, tmp_path, bucket, s3_endpoint)
    yield found
    found.close()


@pytest.fixture
def train(cluster, tmp_path, root, bucket, monkeypatch):
    """Trains on the cluster, whose first attempt may be evicted, and in processes here."""

    def run(*, evicts):
        operator = ProcessOperator(cluster, tmp_path / "pods", get_free_port(), evicts=evicts)
        with contextlib.closing(operator):
            machines = ClusterSection(machines=2)
            there = run_step(tmp_path / "there", root, launcher="pytorchjob", cluster=machines)
        monkeypatch.setenv("PERENNIAL_STORE_URI", f"{bucket}/here")
        return there, run_step(tmp_path / "here", root, launcher="local")

    return run


@pytest.mark.full
@pytest.mark.parametrize(
    "evicts", [pytest.param(False, id="undisturbed"), pytest.param(True, id="evicted")]
)
def test_two_machines_of_a_job_train_what_two_processes_here_train(cluster, train, bucket, evicts):
    there, here = train(evicts=evicts)
    assert not cluster.active_jobs()
    kept = open_store(f"{bucket}/on-a-cluster").list("training/")
    assert sum(item.key.endswith("/joined") for item in kept) == 1 + int(evicts)
    assert there.num_resumes == int(evicts)
    assert largest_difference(weights(there), weights(here)) == 0.0
