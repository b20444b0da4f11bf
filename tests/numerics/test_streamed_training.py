"""Trainings over streamed rows: the same on any number of ranks and workers, and after a stop."""

import pytest

from perennial.contracts.data import Split
from perennial.contracts.snapshot import Snapshot
from perennial.engine.checkpoints.folder import committed
from perennial.engine.data.preparation import LoadingPlan, encode_ahead
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    run_ranks,
    tiny_job,
    weights,
    with_options,
    write_partitions,
)

RANDOM = TinyOptions(dropout=0.2, batch_norm=True)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """A folder with a snapshot of several partitions and row groups, in which jobs are made."""
    folder = tmp_path_factory.mktemp("streamed")
    write_partitions(folder, [150, 90, 260], group_rows=40)
    return folder


def streamed(root, **changes):
    given = changes.pop("loading", {})
    loading = {"mode": "streaming", "shuffle_rows": 64, "encode_workers": 0, **given}
    return tiny_job(root, loading=loading, **changes)


def with_workers(job, workers):
    loading = job.training.loading.model_copy(update={"encode_workers": workers})
    training = job.training.model_copy(update={"loading": loading})
    return job.model_copy(update={"training": training})


@pytest.mark.parametrize("processes", [2, pytest.param(3, marks=pytest.mark.full)])
def test_ranks_change_a_streamed_training_by_rounding_alone(parts, processes):
    one = finished(streamed(parts, strategy="single"))
    many = finished(streamed(parts, processes=processes, strategy="ddp"))
    assert largest_difference(weights(one), weights(many)) < 1e-6


def test_a_resumed_streamed_training_is_bit_identical_with_another_number_of_workers(parts):
    settings = {"processes": 2, "options": RANDOM, "strategy": "fsdp"}
    straight = finished(streamed(parts, **settings))
    job = streamed(parts, loading={"encode_workers": 1}, **settings)
    stopping = RANDOM.model_copy(update={"fault": "terminate", "fault_call": 8})
    assert run_ranks(with_options(job, stopping)) == [75, 75]
    assert [int(path.name[5:]) for path in committed(job.checkpoints)] == [8, 10]
    resumed = finished(with_workers(job, 0))
    assert resumed.num_resumes == 1
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    assert resumed.evaluations == straight.evaluations


def test_the_evaluation_sample_is_that_of_a_resident_training(parts):
    """The first evaluation of an untrained model, so that the order of batches does not matter."""
    settings = {"strategy": "single", "steps": 1, "optimizer": {"learning_rate": 1e-12}}
    resident = finished(tiny_job(parts, loading={"mode": "resident"}, **settings))
    found = finished(streamed(parts, **settings))
    assert found.evaluations[0].metrics == pytest.approx(resident.evaluations[0].metrics, abs=1e-6)
    assert found.task_state == pytest.approx(resident.task_state)


@pytest.mark.parametrize(
    ("free_bytes", "mode", "reason"),
    [(2**40, "resident", "the partitions have"), (2**14, "streaming", "bytes (measured on")],
)
def test_auto_streams_what_does_not_fit_on_the_disk(parts, monkeypatch, free_bytes, mode, reason):
    from perennial.engine.data import preparation

    monkeypatch.setattr(preparation, "_free_bytes", lambda folder: free_bytes)
    plan = preparation._plan(tiny_job(parts), Snapshot.read(parts / "snapshot"))
    assert (plan.mode, reason in plan.reason) == (mode, True)


def test_a_sample_that_was_cut_short_is_encoded_again(parts):
    # Trials of a study share folder and store: the second training finds the sample of the first.
    shared = {"shared": str(parts / "shared"), "common": str(parts / "common")}
    job = streamed(parts, strategy="single").model_copy(update=shared)
    first, second = (
        job.model_copy(update={"folder": str(parts / name)}) for name in ("first", "second")
    )
    expected = finished(first).evaluations
    (sample,) = (parts / "shared" / "streamed").glob("validation-*")
    sample.write_bytes(sample.read_bytes()[:-8])
    assert finished(second).evaluations == expected


def test_auto_keeps_its_choice_and_reports_why(parts):
    job = tiny_job(parts, strategy="single")
    finished(job)
    plan = LoadingPlan.read(job.root)
    assert plan.mode == "resident"
    assert f"loading=resident: {plan.reason}" in (job.logs / "rank-0.log").read_text()


def test_fit_sees_evenly_spaced_row_groups_within_a_bound(parts):
    result = finished(job := streamed(parts, strategy="single", loading={"fit_rows": 100}))
    total = Snapshot.read(parts / "snapshot").split_rows[Split.TRAIN]
    assert f"of {total} rows, in 5 of" in (job.logs / "rank-0.log").read_text()
    whole = finished(streamed(parts, strategy="single", loading={"fit_rows": None}))
    assert result.task_state != whole.task_state


def test_what_was_encoded_ahead_serves_every_training_of_the_same_task(parts, tmp_path):
    """Another seed finds all blocks; the weights are those of a training that encodes itself."""
    loading = {"encode_ahead": True}
    first, second = (
        streamed(parts, strategy="single", seed=seed, loading=loading).model_copy(
            update={"common": str(tmp_path), "contract": {"code": "one"}}
        )
        for seed in (1, 2)
    )
    assert encode_ahead(first) > 0
    assert encode_ahead(second) == 0
    read = finished(second)
    plain = streamed(parts, strategy="single", seed=2)
    plain = plain.model_copy(update={"common": second.common, "contract": second.contract})
    assert largest_difference(weights(read), weights(finished(plain))) == 0.0
