"""Whatever happens to a run on a cluster, none of its training jobs is left going."""

import random
import time
from collections import Counter
from datetime import timedelta

import pytest

from components.clean_up.step import clean_up_step
from fake_api_server import FakeCluster
from fake_operator import step_pod
from launching import KINDS, start_step
from pipelines.reap import reap

SCRIPTS = (
    "success", "success_of_the_master_first", "claimed_success", "worker_failure",
    "out_of_memory", "evicted", "preempted", "never_scheduled", "image_pull_error", "forever",
)  # fmt: skip
EVENTS = ("none", "terminated", "killed", "killed and tried again", "machine lost")


def random_run(seed, folder, store_uri, monkeypatch):
    """One run; says what happened, and which layer deleted its job."""
    choose = random.Random(seed)
    folder.mkdir()
    cluster = FakeCluster(folder / "cluster")
    for name, value in cluster.environment("step-1").items():
        monkeypatch.setenv(name, value)
    cluster.store.put("pods", step_pod())
    workflow = {"metadata": {"name": "wf", "labels": {"pipeline/runid": "run-1"}}}
    cluster.store.put("workflows", workflow | {"status": {"phase": "Running"}})
    kind = choose.choice(list(KINDS))
    operator = kind(cluster, *choose.choices([each for each in SCRIPTS if kind.has(each)], k=2))
    cluster.faults.rate = choose.choice([0.0, 0.05, 0.2])
    event = choose.choice(EVENTS)
    try:
        step = start_step(cluster, folder, f"{store_uri}/{seed}", kind=kind)
        if event != "none":
            wait_for(lambda: cluster.store.created or step.poll() is not None)
            time.sleep(choose.uniform(0.0, 0.5))
            step.terminate() if event == "terminated" else step.kill()
        step.wait(60)
        if event == "killed and tried again":
            step = start_step(cluster, folder, f"{store_uri}/{seed}", kind=kind)
            step.wait(60)
        by_step = not cluster.active_jobs()
        cluster.store.put("workflows", workflow | {"status": {"phase": "Failed"}})
        if event == "machine lost":  # with it the exit task
            reap("", timedelta(0), is_dry=False)
        else:
            clean_up_step()
        wait_for(lambda: not cluster.active_jobs(), 5.0)
        layer = "the step" if by_step else "reap" if event == "machine lost" else "clean_up"
        return kind.title, event, layer, cluster.active_jobs()
    finally:
        operator.close()
        cluster.close()


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def no_orphans(seeds, folder, bucket, monkeypatch):
    table = Counter()
    for seed in seeds:
        kind, event, layer, left = random_run(seed, folder / str(seed), bucket, monkeypatch)
        assert left == [], f"seed {seed}: {kind}, {event}"
        table[kind, event, layer] += 1
    for (kind, event, layer), count in sorted(table.items()):
        print(f"{kind:10} {event:24} ended by {layer:10} {count:4}")


def test_no_orphan_in_a_few_random_runs(tmp_path, bucket, monkeypatch):
    no_orphans(range(8), tmp_path, bucket, monkeypatch)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_no_orphan_in_200_random_runs(tmp_path, bucket, monkeypatch):
    no_orphans(range(200), tmp_path, bucket, monkeypatch)
