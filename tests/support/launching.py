"""What tests of the cluster launcher share: a fake cluster, a job, and attempts at it."""

import hashlib
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_api_server import FakeCluster
from fake_operator import step_pod
from fake_trainer import TrainJobs
from fake_training_operator import PyTorchJobs
from perennial.clients.cluster import Cluster
from perennial.clients.outages import Persistence
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import CACHE, ClusterAddress
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.training_jobs.config import Budgets, ClusterSection, ResourcesSection
from perennial.training_jobs.launcher import JobState, PollIntervals
from perennial.training_jobs.manifests import PyTorchJob, RunIdentity, TrainJob
from perennial.training_jobs.on_cluster import ClusterLauncher

# One second of a real cluster is about a hundredth of one here.
INTERVALS = PollIntervals(
    poll=0.1, shortest=0.02, settle=0.5, curves=0.1, reconnect=0.02, logs=0.6, heartbeat=0.05
)
PERSISTENCE = Persistence(budget_seconds=3.0, first_pause_seconds=0.02, longest_pause_seconds=0.1)
ROOT = Path(__file__).resolve().parents[2]
STEP = """
import sys
from pathlib import Path
import launching
from perennial.training_jobs.attempts import run_to_end

folder, store_uri, launcher, kind = sys.argv[1:]
job = launching.training_job(Path(folder), store_uri)
found = getattr(launching, launcher)(getattr(launching, kind))
run_to_end(job, found, max_restarts=0)
"""
HOUR, MINUTE = 3600.0, 60.0
SHORT = Budgets(
    queued_hours=1.0 / HOUR, starting_minutes=1.5 / MINUTE, stuck_minutes=0.4 / MINUTE,
    running_hours=2.0 / HOUR,
)  # fmt: skip

PATIENT = Budgets(
    queued_hours=120.0 / HOUR, starting_minutes=120.0 / MINUTE, stuck_minutes=120.0 / MINUTE,
    running_hours=120.0 / HOUR,
)  # fmt: skip

BRIEF = Budgets(
    queued_hours=5.0 / HOUR, starting_minutes=5.0 / MINUTE, stuck_minutes=5.0 / MINUTE,
    running_hours=10.0 / HOUR,
)  # fmt: skip

# The operators, and what their jobs are to the launcher.
KINDS = {PyTorchJobs: PyTorchJob(), TrainJobs: TrainJob()}
each_kind = pytest.mark.parametrize("kind", KINDS, ids=[kind.title for kind in KINDS])

# The first attempt's script → its state, and a pattern of the message about it, which may name the
# second machine's pod.
ENDINGS = [
    ("success", JobState.SUCCEEDED, "every rank finished"),
    ("success_of_the_master_first", JobState.SUCCEEDED, "every rank finished"),
    ("claimed_success", JobState.FAILED, "reports success, but not every rank"),
    ("worker_failure", JobState.FAILED, "SECOND Failed: Error, exit code 1"),
    ("out_of_memory", JobState.FAILED, "SECOND Failed: OOMKilled, exit code 137"),
    ("evicted", JobState.DISPLACED, r"SECOND Failed: Evicted \(The node was low on resource\)"),
    ("preempted", JobState.INTERRUPTED, "PreemptionByScheduler"),
]
# The script → the only budget that is short, the timeout, and its evidence.
TIMED_OUT = [
    ("never_scheduled", "queued_hours", "it has been queued", "Insufficient nvidia.com/gpu"),
    (
        "image_pull_error",
        "stuck_minutes",
        "a pod could not start",
        "ImagePullBackOff (Back-off pulling image)",
    ),
    (
        "never_meets",
        "starting_minutes",
        "it has been starting",
        "rendezvous of their ranks is not complete",
    ),
    ("forever", "running_hours", "it has been running", "2 pods run"),
    ("deadline", "", "DeadlineExceeded", "active on the node too long"),
    ("job_deadline", "", "DeadlineExceeded", "TrainJob exceeded its active deadline"),
]


def of_each_kind(rows, kinds=tuple(KINDS), rare=()):
    """Each row behind each operator that has its script; a TrainJob's rare ones in full runs."""
    return [
        pytest.param(
            kind, *row, id=f"{kind.title}-{row[0]}",
            marks=[pytest.mark.full] if kind is TrainJobs and row[0] in rare else [],
        )
        for kind in kinds
        for row in rows
        if kind.has(row[0])
    ]  # fmt: skip


def matches(kind, pattern, text):
    """Whether a text is what a row expects of an operator's job."""
    return re.search(pattern.replace("SECOND", kind.second), text) is not None


def small_resources(kind, budgets=PATIENT, **changes) -> ResourcesSection:
    # A TrainJob has its runtime's.
    grace = {"grace_seconds": 1} if kind is PyTorchJobs else {}
    cluster = ClusterSection(machines=2, budgets=budgets, **grace, **changes)
    return ResourcesSection(num_processes=2, cluster=cluster)


def launcher_for(
    kind=PyTorchJobs, budgets=PATIENT, persistence=PERSISTENCE, **changes
) -> ClusterLauncher:
    """A launcher in the pod that the environment describes."""
    cluster = Cluster.connect(ClusterAddress.read(), persistence=persistence)
    return ClusterLauncher(
        cluster, KINDS[kind], RunIdentity.of_pod(cluster.own_pod()),
        small_resources(kind, budgets, **changes), intervals=INTERVALS,
    )  # fmt: skip


def brief_launcher(kind=PyTorchJobs) -> ClusterLauncher:
    """One whose budgets end every job within seconds, however busy the machine is."""
    return launcher_for(kind, BRIEF)


def patient_launcher(kind=PyTorchJobs) -> ClusterLauncher:
    """One for a real API server, whose seconds are seconds."""
    budgets = Budgets(
        queued_hours=8.0 / HOUR, starting_minutes=10.0 / MINUTE, stuck_minutes=3.0 / MINUTE,
        running_hours=12.0 / HOUR,
    )  # fmt: skip
    persistence = Persistence(
        budget_seconds=120.0, first_pause_seconds=0.1, longest_pause_seconds=1.0
    )
    return launcher_for(kind, budgets, persistence)


def training_job(folder, store_uri) -> TrainingJob:
    snapshot = folder / "snapshot"
    snapshot.mkdir(exist_ok=True)
    (snapshot / "snapshot.json").write_text("{}")
    return TrainingJob(
        fingerprint="f" * 64, snapshot=str(snapshot), model=ModelSection(name="prices", task="a:B"),
        training=TrainingSection(), num_processes=2, folder=str(folder / "job"),
        store_uri=f"{store_uri}/training/ffff",
    )  # fmt: skip


def job_name(bucket) -> str:
    """The name of that training's job."""
    store = hashlib.sha256(f"{bucket}/training/ffff".encode()).hexdigest()
    return f"training-ffffffffffff-{store[:6]}"


@pytest.fixture
def cluster(tmp_path, monkeypatch, bucket):
    found = FakeCluster(tmp_path / "cluster")
    for name, value in found.environment("step-1").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    found.store.put("pods", step_pod())
    yield found
    found.close()


@pytest.fixture
def kind():
    """Whose jobs they are, where a test does not name it."""
    return PyTorchJobs


@pytest.fixture
def launched(cluster, kind, tmp_path, bucket):
    """Starts an operator with scripts; gives the job to launch."""
    operators = []

    def launch(*scripts):
        operators.append(kind(cluster, *scripts))
        return training_job(tmp_path, bucket)

    yield launch
    for operator in operators:
        operator.close()


def environment_of(cluster, pod) -> dict[str, str]:
    return {**os.environ, **cluster.environment(pod)}


def start_step(cluster, folder, store_uri, launcher=launcher_for, kind=PyTorchJobs):
    """The step in a process of its own, with a launcher of this module."""
    return subprocess.Popen(
        [sys.executable, "-c", STEP, str(folder), store_uri, launcher.__name__, kind.__name__],
        env=environment_of(cluster, "step-1") | {"PYTHONPATH": str(ROOT / "tests/support")},
        stderr=subprocess.DEVNULL,
    )


def eventually(condition, seconds=60.0):
    """Whether a condition comes true; the limit is only for a machine that is busy elsewhere."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False
