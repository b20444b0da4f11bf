"""Parameters without a gradient, or without dimensions, train alike everywhere and resume."""

import pytest
import torch

from odd_parameters import IDLE, OddOptions, OddTask, odd_job, with_fault
from perennial.engine.checkpoints.folder import committed
from perennial.engine.config.training import TrainingSection
from perennial.engine.reproducibility import seeded_model
from tiny_training import finished, largest_difference, run_ranks, weights


@pytest.mark.parametrize(
    ("strategy", "scalars"),
    [
        ("ddp", False),
        ("fsdp", True),
        pytest.param("ddp", True, marks=pytest.mark.full),
        pytest.param("fsdp", False, marks=pytest.mark.full),
    ],
)
def test_a_killed_training_resumes_bit_for_bit(root, strategy, scalars):
    settings = {"strategy": strategy, "checkpoints": {"asynchronous": False}}
    straight = finished(odd_job(root, scalars=scalars, **settings))
    job = odd_job(root, scalars=scalars, **settings)
    assert -9 in run_ranks(with_fault(job, "kill", 10))
    assert [int(path.name[5:]) for path in committed(job.checkpoints)] == [8]
    resumed = finished(job)
    assert resumed.num_resumes == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    task = OddTask(OddOptions(scalars=scalars), None)
    given = seeded_model(task, TrainingSection().seed).multipliers
    # The mean over the ranks of what is equal on all of them.
    assert torch.equal(weights(straight)["multipliers"], given)


@pytest.mark.parametrize(
    "changes",
    [pytest.param({}, marks=pytest.mark.full), {"micro_batch_size": 4}],
    ids=["one pass", "accumulated"],
)
def test_replicated_and_sharded_learn_what_one_process_learns(root, changes):
    def trained(strategy):
        return weights(finished(odd_job(root, scalars=True, strategy=strategy, **changes)))

    single, ddp, fsdp = (trained(strategy) for strategy in ("single", "ddp", "fsdp"))
    assert largest_difference(single, ddp) < 1e-5
    assert largest_difference(single, fsdp) < 1e-5
    task = OddTask(OddOptions(scalars=True), None)
    start = seeded_model(task, TrainingSection().seed).state_dict()
    for name in ("temperature", "offset"):
        assert abs(float(single[name] - start[name])) > 1e-3
    for name in IDLE:  # neither a gradient nor weight decay moves them
        assert all(torch.equal(each[name], start[name]) for each in (single, ddp, fsdp))
