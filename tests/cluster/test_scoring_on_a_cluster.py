"""A model that is scored by a job of two machines: the gate, selection, export and monitoring.

Pods are processes of this machine, and a process of a step's machine is one of its own as well.
"""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fake_api_server import FakeCluster
from fake_operator import become_step
from launching import SHORT, each_kind, eventually, launcher_for
from perennial.clean_up.step import clean_up_step
from perennial.clients.object_store import open_store
from perennial.contracts.data import ModelSection, Split
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError, ShardingError
from perennial.contracts.monitoring import WindowDrift
from perennial.contracts.scoring import ScoringSection
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.detect_drift.performance import sharded_losses
from perennial.engine.evaluation.processes import Shards
from perennial.engine.export import weight_files
from perennial.evaluate_model.step import evaluate_model_step
from perennial.gate.config import GateSection, JudgementConfig
from perennial.gate.scoring import score_exported
from perennial.select_checkpoint.candidates import select_challenger
from perennial.select_checkpoint.config import SelectionSection
from perennial.training_jobs.config import ClusterSection, ResourcesSection
from perennial.training_jobs.scoring_jobs import JobShards, open_shards
from ports import get_free_port
from process_pods import ProcessOperator, kill
from sharded_models import left_training, write_made
from small_models import stream, write_skeleton, write_snapshot

ARRAYS = ("losses", "predictions", "labels", "weights")
KEEP = {Split.TEST: ("time", "label"), Split.VALIDATION: ()}
MODEL = ModelSection(name="prices", task="sharded_models:BlocksTask")
TWO = ScoringSection(shards=2, machines=2)
RESOURCES = ResourcesSection(
    launcher="pytorchjob", cluster=ClusterSection(memory_gib_per_process=2.0)
)
FAILURES = {
    "raises": (RuntimeError, "rank 1 of 2: ValueError: no such column"),
    "dies": (ShardingError, "scoring in shards was stopped: a process of the job was killed"),
}
SUPPORT = Path(__file__).resolve().parents[1] / "support"
STEP = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import test_scoring_on_a_cluster as scored
from perennial.contracts.snapshot import Snapshot

dataset = scored.Dataset(Snapshot.read(Path(sys.argv[2])))
scored.score_exported(Path(sys.argv[3]), dataset, scored.KEEP, shards=scored.shards_of())
"""


class EvictingOperator(ProcessOperator):
    """Evicts the last pod of the first job as soon as it has started."""

    def __init__(self, *args):
        super().__init__(*args, evicts=True)

    def _evicted_in_training(self, job):
        self._train(job, lambda: True)


class ForgetfulOperator(ProcessOperator):
    """Its pods start when the job's inputs are no longer in the store."""

    def _train(self, job, is_time_to_evict):
        store = open_store(job["metadata"]["annotations"]["perennial/store-uri"])
        for each in store.list("inputs/"):
            store.delete(each.key)
        super()._train(job, is_time_to_evict)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scored")


@pytest.fixture(scope="module")
def dataset(folder):
    made = write_snapshot(folder / "data", stream(days=60))
    made.write(folder / "snapshot")
    return Dataset(made)


@pytest.fixture
def cluster(tmp_path, bucket, monkeypatch, s3_endpoint):
    """A cluster that this process is a step on."""
    found = FakeCluster(tmp_path / "cluster")
    become_step(found, monkeypatch, tmp_path, bucket, s3_endpoint)
    yield found
    found.close()


@pytest.fixture
def operator(cluster, tmp_path):
    with contextlib.closing(ProcessOperator(cluster, tmp_path / "pods", get_free_port())) as found:
        yield found


def shards_of(**resources):
    return open_shards(TWO, RESOURCES.model_copy(update=resources), MODEL, Environment.read())


def require_equal(one, other):
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    assert one.rows.equals(other.rows)


def test_two_machines_score_what_two_processes_here_do_and_a_repetition_starts_no_job(
    cluster, operator, dataset, bucket, tmp_path
):
    write_made(tmp_path / "model", dataset.snapshot)
    _, here = score_exported(tmp_path / "model", dataset, KEEP, shards=Shards(2))
    shards = shards_of()
    _, there = score_exported(tmp_path / "model", dataset, KEEP, shards=shards)
    for split in KEEP:
        require_equal(here[split], there[split])
    assert len(operator.runs) == 1
    assert not cluster.active_jobs()
    store = open_store(f"{bucket}/on-a-cluster")
    (finished,) = [each.key for each in store.list("scoring/") if each.key.endswith("scored.json")]
    # As a step leaves them that is killed while its job ends.
    store.write(finished.replace("scored.json", "inputs/left"), b"")
    _, again = score_exported(tmp_path / "model", dataset, KEEP, shards=shards)
    assert not any("/inputs/" in each.key for each in store.list("scoring/"))
    require_equal(there[Split.TEST], again[Split.TEST])
    assert len(operator.runs) == 1


def test_a_step_judges_by_a_job_and_the_runs_end_leaves_its_logs_alone(
    operator, dataset, folder, bucket, tmp_path
):
    write_made(tmp_path / "challenger", dataset.snapshot)
    write_skeleton(tmp_path / "skeleton", constant=0.5)
    contract = JudgementConfig(
        model=MODEL, gate=GateSection(resamples=300, min_effective_days=2.0),
        scoring=TWO, resources=RESOURCES,
    )  # fmt: skip
    outputs = {name: str(tmp_path / name) for name in ("verdict", "report", "metrics")}
    result = evaluate_model_step(
        contract=contract.to_json(), snapshot=str(folder / "snapshot"),
        challenger=str(tmp_path / "challenger"), skeleton=str(tmp_path / "skeleton"), **outputs,
    )  # fmt: skip
    assert len(operator.runs) == 1
    task, here = score_exported(tmp_path / "challenger", dataset, KEEP, shards=Shards(2))
    metrics = task.score(here[Split.TEST].predictions, here[Split.TEST].labels)
    assert {name: result.metrics[f"test/{name}"] for name in metrics} == metrics
    store = open_store(f"{bucket}/on-a-cluster")
    assert any("/results/" in each.key for each in store.list("scoring/"))
    assert clean_up_step(model=MODEL.name, report=str(tmp_path / "run.html")) == []
    left = [each.key for each in store.list("scoring/run-1/")]
    assert any("/logs/" in key for key in left)
    assert not any("/results/" in key or "/inputs/" in key for key in left)
    assert not any(key.endswith("scored.json") for key in left)


@pytest.mark.full
def test_selection_export_and_monitoring_are_those_of_two_processes_here(
    cluster, operator, dataset, folder, tmp_path
):
    training = left_training(tmp_path, dataset.snapshot)
    found = {}
    for name, shards in (("here", Shards(2)), ("there", shards_of())):
        found[name] = tmp_path / name
        select_challenger(
            SelectionSection(), folder / "snapshot", training, found[name],
            page=tmp_path / f"{name}.html", shards=shards,
        )  # fmt: skip
    one, other = (Challenger.read(place) for place in found.values())
    assert one == other
    contents = [[file.read_bytes() for file in weight_files(each)] for each in found.values()]
    assert contents[0] == contents[1]
    days = dataset.scan(Split.TEST).select("time").collect()["time"].dt.truncate("1d").unique()
    windows = [WindowDrift(start=day, rows=30) for day in days.sort()]
    losses = [
        sharded_losses(found["here"], dataset.snapshot, windows, each)
        for each in (Shards(2), shards_of())
    ]
    assert losses[0] == losses[1]
    assert not cluster.active_jobs()


@pytest.mark.full
@pytest.mark.parametrize("fails", FAILURES)
def test_a_rank_that_fails_is_named_with_its_cause(operator, dataset, tmp_path, fails):
    kind, text = FAILURES[fails]
    write_made(tmp_path / "model", dataset.snapshot, fails=fails)
    with pytest.raises(kind) as raised:
        score_exported(tmp_path / "model", dataset, KEEP, shards=shards_of())
    assert type(raised.value) is kind
    assert str(raised.value).startswith(text)
    assert len(operator.runs) == 1
    assert not operator.cluster.active_jobs()
    left = [each.key for each in open_store(os.environ["PERENNIAL_STORE_URI"]).list("scoring/")]
    assert any("/logs/" in key for key in left)
    assert not any("/inputs/" in key for key in left)


def test_inputs_that_are_gone_prove_nothing_about_the_model(cluster, dataset, tmp_path):
    write_made(tmp_path / "model", dataset.snapshot)
    operator = ForgetfulOperator(cluster, tmp_path / "pods", get_free_port())
    with contextlib.closing(operator), pytest.raises(ShardingError) as raised:
        score_exported(tmp_path / "model", dataset, KEEP, shards=shards_of())
    assert str(raised.value).startswith("scoring in shards was stopped: ")
    assert "/inputs/" in str(raised.value)


@pytest.mark.full
def test_an_evicted_job_is_started_again(cluster, dataset, tmp_path):
    write_made(tmp_path / "model", dataset.snapshot)
    operator = EvictingOperator(cluster, tmp_path / "pods", get_free_port())
    with contextlib.closing(operator):
        with pytest.raises(ShardingError, match="no attempt is left after 0 restarts"):
            score_exported(tmp_path / "model", dataset, KEEP, shards=shards_of(max_restarts=0))
        operator.runs.clear()
        _, there = score_exported(tmp_path / "model", dataset, KEEP, shards=shards_of())
        assert len(operator.runs) == 2
    _, here = score_exported(tmp_path / "model", dataset, KEEP, shards=Shards(2))
    require_equal(here[Split.TEST], there[Split.TEST])


@pytest.mark.full
@pytest.mark.parametrize(
    "sent",
    [pytest.param(signal.SIGTERM, id="terminated"), pytest.param(signal.SIGKILL, id="killed")],
)
def test_a_step_that_ends_early_deletes_its_job_or_follows_it_when_it_is_repeated(
    operator, dataset, folder, tmp_path, sent
):
    is_terminated = sent == signal.SIGTERM
    write_made(tmp_path / "model", dataset.snapshot)
    step = subprocess.Popen(
        [sys.executable, "-c", STEP, str(Path(__file__).parent), str(folder / "snapshot"),
         str(tmp_path / "model")],
        env=os.environ | {"PYTHONPATH": str(SUPPORT)}, start_new_session=True,
    )  # fmt: skip
    try:
        assert eventually(lambda: operator.runs)
        step.send_signal(sent)
        step.wait(timeout=60)
        if is_terminated:
            assert eventually(lambda: not operator.cluster.active_jobs())
        _, there = score_exported(tmp_path / "model", dataset, KEEP, shards=shards_of())
    finally:
        kill(step)
    assert len(operator.runs) == (2 if is_terminated else 1)
    _, here = score_exported(tmp_path / "model", dataset, KEEP, shards=Shards(2))
    require_equal(here[Split.TEST], there[Split.TEST])


def test_a_store_that_pods_cannot_access_is_refused_at_once(cluster, tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    with pytest.raises(PerennialError, match="pods cannot access the store"):
        shards_of()


@each_kind
def test_a_job_that_cannot_start_blames_the_cluster_and_not_the_model(
    cluster, dataset, tmp_path, monkeypatch, kind
):
    write_made(tmp_path / "model", dataset.snapshot)
    shards = shards_of()
    monkeypatch.setattr(JobShards, "open_launcher", lambda _: launcher_for(kind, SHORT))
    operator = kind(cluster, "image_pull_error")
    with contextlib.closing(operator), pytest.raises(ShardingError) as raised:
        score_exported(tmp_path / "model", dataset, KEEP, shards=shards)
    assert "scoring in shards was stopped: the scoring job scoring-" in str(raised.value)
    assert "Back-off pulling image" in str(raised.value)
    assert len(operator.runs) == 1
    assert not cluster.active_jobs()


def test_machines_divide_the_shards_evenly():
    with pytest.raises(ValueError, match=r"scoring\.shards = 3 is not divisible by scoring"):
        ScoringSection(shards=3, machines=2)
    with pytest.raises(ValueError, match=r"scoring\.shards = 1 is not divisible by scoring"):
        ScoringSection(machines=2)


def test_a_local_launcher_scores_here(monkeypatch):
    for launcher in ("local", "auto"):
        asked = ResourcesSection(launcher=launcher)
        assert open_shards(TWO, asked, MODEL, None) == Shards(2)
