"""A training that starts with stored weights is the same on any processes, and after a signal."""

from pathlib import Path

import pytest
import torch

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.data.batching import GlobalOrder
from perennial.engine.initial_weights import read_weights
from perennial.engine.task import LABEL, load_task
from stored_weights import store_weights
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    require_same_evaluations,
    run_ranks,
    tiny_job,
    weights,
    with_options,
)


@pytest.fixture(scope="module")
def base(root):
    """Weights that another training ended with."""
    return store_weights(
        root / "store", weights(finished(tiny_job(root, strategy="single", seed=3)))
    )


@pytest.fixture
def starting(root, base):
    """A job that starts with them."""

    def make(**changes):
        job = tiny_job(root, options=TinyOptions(dropout=0.2), **changes)
        return job.model_copy(update={"initial": base})

    return make


def test_the_first_loss_is_that_of_the_stored_weights(root, base):
    """Without dropout, one micro-batch: what plain PyTorch gets from the stored file."""
    changes = {"strategy": "single", "micro_batch_size": 32, "log_every_steps": 1}
    job = tiny_job(root, **changes).model_copy(update={"initial": base})
    warm = finished(job)
    snapshot = Snapshot.read(Path(job.snapshot))
    task = load_task(job.model.task, job.model.options, snapshot.task_columns)
    rows = Dataset(snapshot).scan(Split.TRAIN)
    task.fit(rows)
    data, model = task.encode(rows.collect()), task.build_model()
    model.load_state_dict(read_weights(base))
    first = GlobalOrder(len(data[LABEL]), job.training.seed).indices(0, 32)
    batch = {name: tensor[torch.from_numpy(first)] for name, tensor in data.items()}
    expected = task.losses(model(batch["x"]), batch).mean().item()
    assert warm.history[0].loss == pytest.approx(expected, rel=1e-6)
    assert warm.initial == base


@pytest.mark.parametrize(("strategy", "processes"), [("ddp", 2), ("fsdp", 2)])
def test_sharded_trainings_start_alike_and_resume_bit_for_bit(starting, strategy, processes):
    straight = finished(starting(strategy=strategy, processes=processes))
    job = starting(strategy=strategy, processes=processes)
    stopping = TinyOptions(dropout=0.2, fault="terminate", fault_call=8)
    assert run_ranks(with_options(job, stopping)) == [75] * processes
    resumed = finished(with_options(job, TinyOptions(dropout=0.2)))
    assert resumed.num_resumes == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    require_same_evaluations(straight, resumed)


def test_all_strategies_train_the_same(root, base):
    """Losses to 1e-6; `ddp` and `fsdp` bit for bit."""

    def run(strategy):
        job = tiny_job(root, strategy=strategy, log_every_steps=1)
        return finished(job.model_copy(update={"initial": base}))

    single, ddp, fsdp = map(run, ("single", "ddp", "fsdp"))
    assert largest_difference(weights(ddp), weights(fsdp)) == 0.0
    for one, other in zip(single.history, fsdp.history, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-6)
