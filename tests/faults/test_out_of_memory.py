"""A pass that runs out of memory is made smaller; the training goes on to the same weights."""

import logging

import pytest

from perennial.contracts.errors import TrainingFailedError
from perennial.contracts.training import Halving, TrainingResult
from perennial.training_jobs.attempts import pass_size, run_to_end
from perennial.training_jobs.launcher import LocalLauncher
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    require_same_evaluations,
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


def run(job) -> TrainingResult:
    run_to_end(job, LocalLauncher(1), max_restarts=0)
    return TrainingResult.read(job.root)


@pytest.mark.parametrize(
    ("strategy", "rows", "fits", "halvings"),
    [
        ("single", 32, 8, [(0, 32, 16), (0, 16, 8)]),
        # Rank 1 alone: rank 0 waits in the collectives of its backward pass.
        ("ddp", 16, 8, [(1, 16, 8)]),
        ("fsdp", 16, 8, [(1, 16, 8)]),
    ],
)
def test_the_weights_are_those_of_small_passes_from_the_start(
    root, caplog, strategy, rows, fits, halvings
):
    options = TinyOptions(memory_rows=fits, fault_rank=halvings[0][0])
    job = tiny_job(root, options=options, strategy=strategy, micro_batch_size=rows)
    with caplog.at_level(logging.WARNING):
        result = run(job)
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
    assert [(part.from_step, part.micro_batch_size) for part in result.parts] == [(0, 16), (8, 8)]
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
        (TinyOptions(batch_norm=True), {}, r"the batch normalisation blocks.0.1 takes"),
        (TinyOptions(), {"memory": {"on_out_of_memory": "fail"}}, 'on_out_of_memory = "fail"'),
        (TinyOptions(), {"micro_batch_size": 1, "global_batch_size": 2}, "row is the smallest"),
    ],
)
def test_where_smaller_passes_would_be_another_training_it_fails_with_the_reason(
    root, options, changes, reason
):
    options = options.model_copy(update={"fault_call": 1, "fault": "memory"})
    job = tiny_job(root, strategy="single", options=options, **changes)
    with pytest.raises(TrainingFailedError, match=reason) as raised:
        run(job)
    text = str(raised.value)
    assert "out of memory in a pass of" in text
    assert "tried to allocate 20.00 GiB" in text
    assert "activation_checkpointing" in text
