"""Whatever happens to a run on a cluster, none of its training jobs is left going."""

import random
import statistics
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from datetime import timedelta

import pytest

from fake_api_server import FakeCluster
from fake_operator import step_pod
from launching import KINDS, brief_launcher, start_step
from perennial.clean_up.step import clean_up_step
from perennial.reap import reap

SCRIPTS = (
    "success", "success_of_the_master_first", "claimed_success", "worker_failure",
    "out_of_memory", "evicted", "preempted", "never_scheduled", "image_pull_error", "forever",
)  # fmt: skip
EVENTS = ("none", "terminated", "killed", "killed and tried again", "machine lost")
KILLED_AFTER = (0.1, 0.8)  # seconds behind SIGTERM, as a KFP backend was seen to do


@dataclass(frozen=True)
class Outcome:
    """What happened to a run; what deleted its job; the jobs left; how its step was terminated."""

    kind: str
    event: str
    layer: str
    left: list
    end: tuple[float, bool] | None  # seconds behind SIGTERM; whether SIGKILL had to follow


def random_run(seed, folder, store_uri, monkeypatch):
    """One run; returns what happened, and which layer deleted its job."""
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
    event, end = choose.choice(EVENTS), None
    try:
        step = start_step(cluster, folder, f"{store_uri}/{seed}", brief_launcher, kind)
        if event != "none":
            wait_for(lambda: cluster.store.created or step.poll() is not None)
            time.sleep(choose.uniform(0.0, 0.5))
            if event == "terminated":
                end = terminated(step, choose.uniform(*KILLED_AFTER))
            else:
                step.kill()
        step.wait(60)
        if event == "killed and tried again":
            step = start_step(cluster, folder, f"{store_uri}/{seed}", brief_launcher, kind)
            step.wait(60)
        by_step = not cluster.active_jobs()
        cluster.store.put("workflows", workflow | {"status": {"phase": "Failed"}})
        if event == "machine lost":  # with it the exit task
            reap("", timedelta(0), is_dry=False)
        else:
            clean_up_step()
        wait_for(lambda: not cluster.active_jobs(), 5.0)
        layer = "the step" if by_step else "reap" if event == "machine lost" else "clean_up"
        return Outcome(kind.title, event, layer, cluster.active_jobs(), end)
    finally:
        operator.close()
        cluster.close()


def terminated(step, patience):
    """SIGTERM, then SIGKILL to a step that is still there; nothing for one that has ended."""
    if step.poll() is not None:
        return None
    since = time.monotonic()
    step.terminate()
    try:
        step.wait(patience)
        was_killed = False
    except subprocess.TimeoutExpired:
        step.kill()
        step.wait()
        was_killed = True
    return time.monotonic() - since, was_killed


def wait_for(condition, seconds=60.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def no_orphans(seeds, folder, bucket, monkeypatch):
    table, ends = Counter(), []
    for seed in seeds:
        found = random_run(seed, folder / str(seed), bucket, monkeypatch)
        assert found.left == [], f"seed {seed}: {found}"
        table[found.kind, found.event, found.layer] += 1
        ends += [found.end] if found.end is not None else []
    for (kind, event, layer), count in sorted(table.items()):
        print(f"{kind:10} {event:24} ended by {layer:10} {count:4}")
    if ends:
        seconds = [after for after, _ in ends]
        middle, largest = statistics.median(seconds), max(seconds)
        killed = sum(was_killed for _, was_killed in ends)
        print(f"from SIGTERM to the end: median {middle:.2f} s, largest {largest:.2f} s")
        print(f"killed then, for they were still there: {killed} of {len(ends)}")


@pytest.mark.full
def test_no_orphan_in_a_few_random_runs(tmp_path, bucket, monkeypatch):
    no_orphans(range(8), tmp_path, bucket, monkeypatch)


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_no_orphan_in_200_random_runs(tmp_path, bucket, monkeypatch):
    no_orphans(range(200), tmp_path, bucket, monkeypatch)
