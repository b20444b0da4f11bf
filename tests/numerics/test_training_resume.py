"""20 steps in one go and 10 + 10 steps around a signal are the same, bit for bit."""

import pytest

from checkpoint_ranks import stop_after_one_step
from perennial.engine.checkpoints.folder import CheckpointManifest, committed
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    run_ranks,
    tiny_job,
    weights,
    with_options,
)

RANDOM = TinyOptions(dropout=0.2, batch_norm=True, library_random=True)


@pytest.mark.parametrize(
    ("strategy", "processes"),
    [
        ("single", 1),
        ("ddp", 2),
        ("fsdp", 3),
        pytest.param("ddp", 3, marks=pytest.mark.full),
        pytest.param("fsdp", 2, marks=pytest.mark.full),
    ],
)
def test_a_resumed_training_is_bit_identical(root, strategy, processes):
    batch = {"global_batch_size": 48} if processes == 3 else {}
    settings = {"processes": processes, "options": RANDOM, "strategy": strategy, **batch}
    straight = finished(tiny_job(root, **settings))
    job = tiny_job(root, **settings)
    forwards = 2 if strategy == "single" else 1
    stopping = RANDOM.model_copy(update={"fault": "terminate", "fault_call": 8 * forwards})
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


@pytest.mark.parametrize(
    "strategy",
    ["fsdp", *(pytest.param(each, marks=pytest.mark.full) for each in ("single", "ddp"))],
)
def test_a_checkpoint_before_the_first_update_changes_nothing(root, tmp_path, strategy):
    settings = {"strategy": strategy, "anomalies": {"not_finite": "skip"}}

    def job(name):
        left_out = RANDOM.model_copy(update={"fault": "nan", "once": str(tmp_path / name)})
        return tiny_job(root, options=left_out, **settings)

    straight = finished(job("straight"))
    stopped = job("stopped")
    assert run_ranks(stopped, stop_after_one_step) == [75] * stopped.num_processes
    assert [int(path.name[5:]) for path in committed(stopped.checkpoints)] == [1]
    resumed = finished(stopped)
    assert resumed.num_skipped == straight.num_skipped == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
