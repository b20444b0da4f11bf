"""A training over two containers survives the loss of one, and ends with the same weights."""

import pytest
import torch

from containers import podman
from perennial.contracts.environment import CACHE
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.job import RankFailure
from two_machines import (
    STEPS,
    Machines,
    clicks_job,
    ended,
    logs,
    result_of,
    wait_for_checkpoint,
)

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]


def final_weights(result):
    last = max(result.checkpoints, key=lambda record: record.step)
    assert last.step == STEPS
    assert last.uri.startswith("s3://")
    return load_checkpoint_model(last.uri, result)[1].state_dict()


def test_a_container_killed_and_restarted_changes_no_bit_of_the_weights(
    images, network, store, tmp_path, monkeypatch
):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    machines = Machines(images["perennial-trainer"], network, store.variables, tmp_path)
    job = clicks_job(tmp_path, store.bucket)

    with machines.attempt(job) as containers:
        assert [ended(each) for each in containers] == [0, 0], logs(containers)
    undisturbed = result_of(machines, job)
    assert undisturbed.world_size == 2
    assert undisturbed.strategy == "fsdp"
    assert undisturbed.num_resumes == 0
    expected = final_weights(undisturbed)

    again = job.model_copy(update={"store_uri": f"{job.store_uri}-again"})
    with machines.attempt(again) as (master, worker):
        wait_for_checkpoint(again, [master, worker])
        podman("kill", "--signal=KILL", worker)
        assert ended(worker) == 137
        # The survivor notices by itself: no rank waits for a dead one.
        assert ended(master) == 1, logs([master])
        failure = RankFailure.first_of(machines.disk(again, 0) / "errors")
        assert failure is not None
        assert failure.is_consequence
    with machines.attempt(again) as containers:
        assert [ended(each) for each in containers] == [0, 0], logs(containers)
    resumed = result_of(machines, again)
    assert resumed.num_resumes == 1

    found = final_weights(resumed)
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name
