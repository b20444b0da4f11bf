"""Numbers that are not finite and losses that jump, planted in real trainings of two ranks."""

import json

import pytest
import torch

from faulty_training import FaultyOptions, faulty_job, traced
from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.folder import CheckpointManifest, Progress, committed
from perennial.engine.data.batching import GlobalOrder
from perennial.engine.job import RankFailure
from perennial.engine.precision import INITIAL_LOSS_SCALE
from perennial.engine.resilience.not_finite import NotFinite
from perennial.engine.task import LABEL, load_task
from tiny_training import (
    finished,
    largest_difference,
    run_ranks,
    tiny_section,
    weights,
    with_options,
    write_snapshot,
)

BATCH, SPIKE = 32, 20
REWINDING = {
    "steps": 32, "evaluate_every_steps": 8, "log_every_steps": 1,
    "anomalies": {"spike": "rewind", "spike_window_steps": 8},
}  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """So many rows that no batch comes twice."""
    folder = tmp_path_factory.mktemp("training")
    write_snapshot(folder, rows=4000)
    return folder


@pytest.fixture(scope="module")
def batches(root):
    """The labels of every global batch."""
    snapshot = Snapshot.read(root / "snapshot")
    task = load_task("tiny_training:TinyTask", {}, snapshot.task_columns)
    train = Dataset(snapshot).scan(Split.TRAIN)
    task.fit(train)
    labels = task.encode(train.collect())[LABEL]
    order = GlobalOrder(len(labels), tiny_section().seed)
    return [labels[torch.from_numpy(order.indices(at * BATCH, BATCH))].tolist() for at in range(60)]


@pytest.fixture(scope="module")
def poison(batches):
    """The labels of the five batches that are to be a spike."""
    return tuple(label for batch in batches[SPIKE : SPIKE + 5] for label in batch)


def evidence(job) -> list[NotFinite]:
    paths = sorted(job.errors.glob("not-finite-*.json"))
    return [NotFinite.from_json(path.read_bytes()) for path in paths]


def last_progress(job) -> Progress:
    return CheckpointManifest.read(committed(job.checkpoints)[-1]).progress


def message(job) -> str:
    found = RankFailure.first_of(job.errors)
    assert found is not None
    return found.message


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_gradient_that_is_not_finite_is_named(root, strategy):
    options = FaultyOptions(trouble="bad gradient", trouble_rank=1, trouble_from=4)
    job = faulty_job(root, options, strategy=strategy)
    assert run_ranks(job) == [1, 1]
    assert "not finite at or before step 5: every loss is finite" in message(job)
    assert "from the last layer on: head.bias, head.weight" in message(job)
    for rank, seen in enumerate(evidence(job)):
        assert (seen.rank, seen.step, seen.is_loss_finite) == (rank, 5, True)
        assert len(seen.rows) == BATCH // 2


def test_a_loss_that_is_not_finite_is_named_with_its_rank_and_rows(root, batches):
    options = FaultyOptions(trouble="bad loss", trouble_rank=1, trouble_from=4)
    job = faulty_job(root, options)
    assert run_ranks(job) == [1, 1]
    assert "ranks with such a loss: rank 1 nan" in message(job)
    first, second = evidence(job)
    assert (first.is_loss_finite, second.is_loss_finite) == (True, False)
    assert len(set(first.rows) | set(second.rows)) == len(batches[4])
    assert json.loads((job.errors / second.file_name).read_text())["loss"] == "nan"


@pytest.mark.parametrize(("strategy", "trouble"), [("ddp", "bad loss"), ("fsdp", "bad gradient")])
def test_bad_batches_are_left_out_and_counted(root, strategy, trouble):
    options = FaultyOptions(trouble=trouble, trouble_rank=1, trouble_from=4, trouble_until=6)
    anomalies = {"not_finite": "skip", "max_skipped": 2}
    job = faulty_job(root, options, strategy=strategy, anomalies=anomalies)
    result = finished(job)
    assert result.num_skipped == 2
    assert all(torch.isfinite(each).all() for each in weights(result).values())
    assert sorted({seen.step for seen in evidence(job)}) == [5, 6]


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_batch_left_out_leaves_no_trace_in_running_statistics(root, strategy):
    options = FaultyOptions(
        trouble="bad input", trouble_rank=1, trouble_from=4, trouble_until=5, batch_norm=True
    )
    job = faulty_job(root, options, strategy=strategy, anomalies={"not_finite": "skip"})
    result = finished(job)
    assert result.num_skipped == 1
    state = weights(result)
    assert all(torch.isfinite(each).all() for each in state.values())
    assert state["blocks.0.1.num_batches_tracked"] == 19, "of 20 updates"


def test_intervals_whose_updates_were_all_left_out_have_no_training_loss(root):
    """The first evaluation, and a logging interval with an update before a checkpoint only."""
    options = FaultyOptions(trouble="bad loss", trouble_rank=1, trouble_from=0, trouble_until=1)
    settings = {"steps": 4, "evaluate_every_steps": 1, "log_every_steps": 4}
    result = finished(faulty_job(root, options, anomalies={"not_finite": "skip"}, **settings))
    assert [point.train_loss is None for point in result.evaluations] == [True, *[False] * 3]
    late = options.model_copy(update={"trouble_from": 3, "trouble_until": 4})
    result = finished(faulty_job(root, late, anomalies={"not_finite": "skip"}, **settings))
    assert [point.train_loss is None for point in result.evaluations] == [*[False] * 3, True]
    assert result.history[-1].examples_per_second > 0


def test_too_many_bad_batches_fail_the_training(root):
    options = FaultyOptions(trouble="bad loss", trouble_rank=1, trouble_from=4)
    anomalies = {"not_finite": "skip", "max_skipped": 2}
    job = faulty_job(root, options, anomalies=anomalies)
    assert run_ranks(job) == [1, 1]
    assert "at or before step 7 after 2 updates were skipped" in message(job)


def test_an_overflow_on_one_rank_halves_the_scale_of_all(root):
    """In float16, whose updates are left out without being counted as bad."""
    options = FaultyOptions(trouble="bad gradient", trouble_rank=1, trouble_from=5, trouble_until=6)
    healthy = faulty_job(root, strategy="ddp", precision="fp16")
    halvings = finished(healthy).num_rescaled
    expected = last_progress(healthy)
    assert expected.loss_scale >= INITIAL_LOSS_SCALE / 2, "it overflows once by itself"
    for strategy in ("ddp", "fsdp"):
        job = faulty_job(root, options, strategy=strategy, precision="fp16")
        result = finished(job)
        assert (result.num_skipped, result.num_rescaled) == (0, halvings + 1)
        assert "overflow step=6 " in (job.logs / "rank-1.log").read_text()
        assert all(torch.isfinite(each).all() for each in weights(result).values())
        progress = last_progress(job)
        assert progress.loss_scale == expected.loss_scale / 2
        assert progress.loss_scale_steps == 14
        assert evidence(job) == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_spike_rewinds_the_training_and_leaves_its_batches_out(root, poison, strategy, tmp_path):
    options = FaultyOptions(poison=poison, trace=str(tmp_path / "straight"))
    profile = {"start_step": 25, "steps": 5}
    job = faulty_job(root, options, strategy=strategy, profile=profile, **REWINDING)
    result = finished(job)
    assert (result.num_rewinds, result.num_resumes) == (1, 0)
    assert result.bottleneck.steps == 1, "the rewind ends the trace"
    # Steps 21 to 25 were bad, which is known at 25; the checkpoint of step 24 is in between.
    assert "rewound from=25 to=16 left_out=9" in (job.logs / "rank-0.log").read_text()
    assert [point.step for point in result.history] == list(range(1, 33))
    assert max(point.loss for point in result.history) < 10
    batches_seen = traced(tmp_path / "straight", 0)
    assert len(batches_seen) == len(set(batches_seen)) == 25 + 16, "no batch came twice"


@pytest.fixture(scope="module")
def rewound(root, poison):
    """A training that met one spike, undisturbed otherwise."""
    return finished(faulty_job(root, FaultyOptions(poison=poison), **REWINDING))


BEFORE, WITHIN, BEHIND = (17, 19), (21, 23), (26, 30, 36)


@pytest.mark.parametrize(
    "stop",
    [22, *(pytest.param(at, marks=pytest.mark.full) for at in (*BEFORE, *WITHIN, *BEHIND))],
)
def test_a_training_resumed_around_a_spike_is_bit_identical(root, poison, rewound, stop):
    job = faulty_job(root, FaultyOptions(poison=poison), **REWINDING)
    stopping = FaultyOptions(poison=poison, fault="terminate", fault_call=stop)
    assert run_ranks(with_options(job, stopping)) == [75, 75]
    resumed = finished(job)
    assert (resumed.num_rewinds, resumed.num_resumes) == (1, 1)
    assert largest_difference(weights(rewound), weights(resumed)) == 0.0
    assert [point.loss for point in resumed.history] == [each.loss for each in rewound.history]


def test_a_training_resumed_within_a_second_spike_knows_where_the_first_one_led_it(root, batches):
    """The updates right behind the checkpoint that the first rewind returned to are bad again."""
    poison = tuple(label for batch in batches[16:26] for label in batch)
    straight = finished(faulty_job(root, FaultyOptions(poison=poison), **REWINDING))
    assert straight.num_rewinds == 2
    job = faulty_job(root, FaultyOptions(poison=poison), **REWINDING)
    stopping = FaultyOptions(poison=poison, fault="terminate", fault_call=23)
    assert run_ranks(with_options(job, stopping)) == [75, 75]
    resumed = finished(job)
    assert (resumed.num_rewinds, resumed.num_resumes) == (2, 1)
    assert largest_difference(weights(straight), weights(resumed)) == 0.0


def test_spikes_without_end_fail_the_training(root, batches):
    poison = tuple(label for batch in batches[SPIKE:] for label in batch)
    job = faulty_job(root, FaultyOptions(poison=poison), **REWINDING)
    assert run_ranks(job) == [1, 1]
    assert "the loss jumped again at step 17, after 3 rewinds" in message(job)


def test_a_spike_before_the_first_checkpoint_fails_the_training(root, batches):
    poison = tuple(label for batch in batches[10:15] for label in batch)
    settings = {**REWINDING, "evaluate_every_steps": 16}
    job = faulty_job(root, FaultyOptions(poison=poison), **settings)
    assert run_ranks(job) == [1, 1]
    assert "the loss jumped at step 11, before the first checkpoint" in message(job)


def test_a_healthy_training_is_left_alone(root):
    watched = faulty_job(root, **REWINDING)
    ignored = faulty_job(root, **{**REWINDING, "anomalies": {"spike": "ignore"}})
    result = finished(watched)
    assert (result.num_rewinds, result.num_skipped) == (0, 0)
    assert largest_difference(weights(result), weights(finished(ignored))) == 0.0
    log = (watched.logs / "rank-0.log").read_text()
    assert "rewound" not in log
    assert list(watched.errors.glob("*")) == []


def test_a_spike_is_only_reported_by_default(root, poison):
    settings = {**REWINDING, "anomalies": {"spike_window_steps": 8}}
    job = faulty_job(root, FaultyOptions(poison=poison), **settings)
    assert finished(job).num_rewinds == 0
    assert "far above its recent level since step=21" in (job.logs / "rank-0.log").read_text()
