"""20 steps in one go and 10 + 10 steps around a signal are the same, bit for bit."""

import pytest

from components.engine.checkpoints.folder import CheckpointManifest, committed
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    run_ranks,
    tiny_job,
    weights,
    with_options,
)

RANDOM = TinyOptions(dropout=0.2, batch_norm=True)


@pytest.mark.parametrize(
    ("strategy", "processes"), [("single", 1), ("ddp", 2), ("fsdp", 2), ("ddp", 3), ("fsdp", 3)]
)
def test_a_resumed_training_is_bit_identical(root, strategy, processes):
    batch = {"global_batch_size": 48} if processes == 3 else {}
    settings = {"processes": processes, "options": RANDOM, "strategy": strategy, **batch}
    straight = finished(tiny_job(root, **settings))
    job = tiny_job(root, **settings)
    forwards = 2 if strategy == "single" else 1
    stopping = RANDOM.model_copy(update={"fault": "terminate", "fault_call": 9 * forwards})
    assert run_ranks(with_options(job, stopping)) == [75] * job.num_processes
    assert [int(path.name[5:]) for path in committed(job.checkpoints)] == [8, 10]
    resumed = finished(job)
    assert resumed.num_resumes == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    assert resumed.evaluations == straight.evaluations
    assert [(p.step, p.loss, p.gradient_norm, p.learning_rate) for p in resumed.history] == [
        (p.step, p.loss, p.gradient_norm, p.learning_rate) for p in straight.history
    ]
    manifests = [CheckpointManifest.read(path) for path in committed(job.checkpoints)]
    assert [manifest.step for manifest in manifests] == [8, 16, 20]
