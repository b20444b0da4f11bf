"""A pass that runs out of memory is made smaller; the training goes on to the same weights."""

import logging

import pytest
import torch
from torch import nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import TrainingFailedError
from perennial.contracts.training import Halving, TrainingResult, describe_parts
from perennial.engine.config.training import TrainingSection
from perennial.engine.data.batching import BatchPlan
from perennial.engine.resilience.out_of_memory import (
    PassOutOfMemoryError,
    find_obstacle,
    is_out_of_memory,
)
from perennial.engine.task import NoOptions, Task
from perennial.training_jobs.attempts import pass_size, run_to_end
from perennial.training_jobs.launcher import (
    JobResult,
    JobState,
    Launcher,
    LocalLauncher,
    forget_last_attempt,
)
from tiny_training import (
    TinyOptions,
    TinyTask,
    finished,
    largest_difference,
    require_same_evaluations,
    run_ranks,
    tiny_job,
    weights,
    with_options,
    write_snapshot,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("memory")
    write_snapshot(folder)
    return folder


class RanksLauncher(Launcher):
    """Runs the ranks of an attempt without the seconds that new processes take."""

    log = "job.log"

    def start(self, job):
        forget_last_attempt(job)
        self._codes = run_ranks(job)

    def wait(self):
        return JobResult(JobState.FAILED if any(self._codes) else JobState.SUCCEEDED)

    def close(self):
        pass

    def stop(self):
        pass


def run(job, launcher=None) -> TrainingResult:
    run_to_end(job, launcher or RanksLauncher(), max_restarts=0)
    return TrainingResult.read(job.root)


@pytest.mark.parametrize(
    ("strategy", "fits", "halvings"),
    [
        ("single", 8, [(0, 32, 16), (0, 16, 8)]),
        # Rank 1 alone: rank 0 waits in the collectives of its backward pass.
        ("ddp", 8, [(1, 16, 8)]),
        ("fsdp", 8, [(1, 16, 8)]),
    ],
)
def test_the_weights_are_those_of_small_passes_from_the_start(
    root, caplog, strategy, fits, halvings
):
    rank, rows, _ = halvings[0]
    options = TinyOptions(memory_rows=fits, fault_rank=rank)
    job = tiny_job(root, options=options, strategy=strategy, micro_batch_size=rows)
    with caplog.at_level(logging.WARNING):
        result = run(job, LocalLauncher(1) if strategy == "fsdp" else None)
    small = finished(tiny_job(root, strategy=strategy, micro_batch_size=fits))
    assert largest_difference(weights(result), weights(small)) == 0.0
    require_same_evaluations(result, small)
    assert [(each.rank, each.rows, each.next_rows) for each in result.halvings] == halvings
    assert {each.step for each in result.halvings} == {1}
    assert [part.micro_batch_size for part in result.parts] == [fits]
    assert f"passes of up to {fits} rows" in caplog.text


def test_a_later_batch_that_does_not_fit_divides_the_training_in_two_parts(root):
    job = tiny_job(root, strategy="ddp", options=TinyOptions())
    undisturbed = finished(job)
    job = tiny_job(root, strategy="ddp", options=TinyOptions(memory_rows=8, fault_call=12))
    result = run(job)
    assert result.halvings == (Halving(step=13, rank=0, rows=16, next_rows=8),)
    assert describe_parts(result.parts) == (
        "2 processes (ddp) on CPU, passes of 16 rows, "
        "2 processes (ddp) on CPU, passes of 8 rows from step 8"
    )
    assert "resharded" in (job.logs / "rank-0.log").read_text()
    # Rounded in another order from step 8 on; batches and their order are the same.
    assert largest_difference(weights(result), weights(undisturbed)) < 1e-6
    losses = [[point.loss for point in each.history] for each in (result, undisturbed)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_another_run_begins_with_the_passes_that_fit_and_another_size_is_tried_again(root, caplog):
    options = TinyOptions(memory_rows=8, fault="raise", fault_call=26)
    job = tiny_job(root, strategy="single", options=options)
    with pytest.raises(TrainingFailedError, match="the user's own mistake"):
        run(job)
    caplog.clear()
    assert pass_size(job).halvings[-1].next_rows == 8
    larger = job.training.model_copy(update={"micro_batch_size": 24})
    assert pass_size(job.model_copy(update={"training": larger})).halvings == ()
    result = run(with_options(job, TinyOptions(memory_rows=8)))
    assert "out of memory" not in caplog.text
    assert len(result.halvings) == 1


@pytest.mark.parametrize(
    ("options", "changes", "reason"),
    [
        ({"batch_norm": True}, {}, r"the batch normalisation blocks.0.1 takes"),
        ({}, {"memory": {"on_out_of_memory": "fail"}}, 'on_out_of_memory = "fail"'),
    ],
)
def test_where_smaller_passes_would_be_another_training_it_fails_with_the_reason(
    root, options, changes, reason
):
    options = TinyOptions(memory_rows=8, fault_call=1, **options)
    job = tiny_job(root, strategy="single", options=options, **changes)
    with pytest.raises(TrainingFailedError, match=reason) as raised:
        run(job)
    text = str(raised.value)
    assert "out of memory in a pass of 16 rows" in text
    assert "tried to allocate 20.00 GiB" in text
    assert "activation_checkpointing" in text


@pytest.mark.parametrize(
    ("plan", "next_rows"),
    [
        (BatchPlan(32, 512, 1), 16),
        (BatchPlan(32, 512, 2), 8),  # a share of 16, whatever the contract allows
        (BatchPlan(64, 12, 2), 6),  # passes of 11, 11 and 10
        (BatchPlan(5, 2, 1), 1),
        (BatchPlan(8, 1, 2), None),
    ],
)
def test_halving_begins_with_the_rows_that_a_pass_really_has_and_ends_at_one(plan, next_rows):
    section = TrainingSection(
        global_batch_size=plan.global_size, micro_batch_size=plan.micro_size, strategy="ddp"
    )
    obstacle = find_obstacle(Plain(NoOptions(), COLUMNS), nn.Linear(2, 2), plan, section)
    halving = PassOutOfMemoryError(plan, "no memory", obstacle).halving(3, 1)
    assert (halving.next_rows if halving else None) == next_rows
    assert (obstacle == "a pass of one row is the smallest") == (next_rows is None)
    if halving:
        smaller = BatchPlan(plan.global_size, halving.next_rows, plan.data_size)
        assert smaller.pass_rows < plan.pass_rows
        assert smaller.share(0) == plan.share(0)


class Plain(TinyTask):
    def __init__(self, options, columns):
        Task.__init__(self, options, columns)


class Contrastive(Plain):
    needs_whole_batch = True


COLUMNS = TaskColumns(label="y", features={"x": "Float64"})


@pytest.mark.parametrize(
    ("task", "model", "reason"),
    [
        (Contrastive, nn.Linear(2, 2), "the loss of Contrastive compares the rows of a pass"),
        (Plain, nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), "batch normalisation 1 takes"),
        (Plain, nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2).eval()), ""),  # frozen
        (Plain, nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.GroupNorm(1, 2)), ""),
    ],
)
def test_what_compares_the_rows_of_a_pass_is_an_obstacle(task, model, reason):
    found = find_obstacle(
        task(NoOptions(), COLUMNS), model, BatchPlan(32, 16, 1), TrainingSection()
    )
    assert reason in found if reason else found == ""


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 8 bytes"), True),
        (MemoryError(), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_the_errors_of_all_allocators_are_known(error, is_memory):
    assert is_out_of_memory(error) is is_memory


def test_a_real_allocation_beyond_the_host_is_recognised():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert is_out_of_memory(raised.value)
