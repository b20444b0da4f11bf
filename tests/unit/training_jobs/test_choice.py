"""Which launcher runs a training, by what the cluster serves, and what is printed."""

import pytest

from perennial.clients.cluster import ApiError
from perennial.contracts.environment import POD_NAME, Environment
from perennial.contracts.errors import PerennialError
from perennial.training_jobs.config import ClusterSection, ResourcesSection
from perennial.training_jobs.launcher import LocalLauncher
from perennial.training_jobs.on_cluster import ClusterLauncher, open_launcher

ENVIRONMENT = Environment("s3://bucket", "", "")
OLD, NEW = "pytorchjobs", "trainjobs"
# Neighbours are not training jobs: notebooks are in the group of PyTorchJobs.
OTHERS = {"workflows", "notebooks"}


@pytest.fixture
def choice(cluster, caplog):
    """The kind of job that a step on this cluster opens a launcher for, and what is printed."""

    def choose(wanted="auto", served=(), queue=""):
        cluster.handler.served = OTHERS | set(served)
        resources = ResourcesSection(launcher=wanted, cluster=ClusterSection(queue=queue))
        caplog.clear()
        with caplog.at_level("INFO"):
            launcher = open_launcher(resources, ENVIRONMENT)
        printed = [line for line in caplog.messages if line.startswith("launcher=")]
        if isinstance(launcher, LocalLauncher):
            return "local", printed
        assert isinstance(launcher, ClusterLauncher)
        kind = launcher._kind.title
        launcher.close()
        return kind, printed

    return choose


# What is served, and the queue → the kind of job, and why.
AUTO = {
    "PyTorchJob alone": (
        {OLD}, "", "PyTorchJob", "the cluster serves only PyTorchJob, which Kubeflow is retiring"
    ),
    "PyTorchJob alone, and a queue": (
        {OLD}, "team", "PyTorchJob", "only if Kueue's integration kubeflow.org/pytorchjob is enabled"
    ),
    "TrainJob alone": ({NEW}, "", "TrainJob", "the cluster serves only TrainJob"),
    "both": ({OLD, NEW}, "", "PyTorchJob", "both kinds are served, and its API is stable"),
    "both, and a queue": (
        {OLD, NEW}, "team", "TrainJob", "both kinds are served, and Kueue ignores PyTorchJobs"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", AUTO)
def test_auto_takes_what_is_served_and_prints_why(choice, name):
    served, queue, kind, reason = AUTO[name]
    chosen, (printed,) = choice(served=served, queue=queue)
    assert chosen == kind
    assert printed.startswith(f"launcher={kind.lower()}: ")
    assert reason in printed


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [("pytorchjob", "PyTorchJob"), ("trainjob", "TrainJob"), ("local", "local")],
)
def test_what_the_contract_names_is_taken_whatever_else_is_served(choice, wanted, kind):
    assert choice(wanted, {OLD, NEW}, "team") == (
        kind, [f"launcher={wanted}: set in the contract"]
    )  # fmt: skip


NOT_SERVED = [
    ("auto", set(), "its API server serves neither kind"),
    ("pytorchjob", {NEW}, "its API server serves trainjob"),
    ("trainjob", {OLD}, "its API server serves pytorchjob"),
]


@pytest.mark.parametrize(("wanted", "served", "evidence"), NOT_SERVED)
def test_what_is_not_served_is_refused_with_what_to_install(choice, wanted, served, evidence):
    with pytest.raises(PerennialError, match=f'launcher = "{wanted}" is not possible') as caught:
        choice(wanted, served)
    assert caught.value.evidence == evidence
    assert "install Kubeflow Trainer 2.3 (TrainJob) or the training" in caught.value.action


def test_discovery_that_is_not_allowed_is_not_a_missing_operator(cluster, choice):
    cluster.faults.hides_discovery = True
    with pytest.raises(ApiError, match=r"refused GET /apis/kubeflow.org/v1 \(403\)") as caught:
        choice(served={OLD, NEW})
    assert "pipeline-runner" in caught.value.evidence
    assert "cluster role system:discovery" in caught.value.action


@pytest.mark.parametrize("absent", ["KUBERNETES_SERVICE_HOST", POD_NAME])
def test_outside_a_pipelines_step_auto_is_local_and_asks_no_cluster(
    cluster, choice, monkeypatch, absent
):
    """A notebook's pod has a service account too; nothing names it a step's pod."""
    monkeypatch.delenv(absent)
    cluster.faults.hides_discovery = True
    assert choice(served={OLD, NEW}) == (
        "local", ["launcher=local: this is not a pipeline step on a cluster"]
    )  # fmt: skip
