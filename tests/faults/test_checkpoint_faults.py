"""Whatever happens to a checkpoint: nothing damaged is loaded, and nobody waits permanently."""

import logging
import shutil
from functools import partial

import pytest

from checkpoint_files import flip_a_bit
from checkpoint_ranks import (
    be_killed_before_the_marker,
    be_killed_while_writing,
    fail_to_write,
    train_with,
    write_slowly,
    write_slowly_without_a_copy,
)
from perennial.contracts.environment import CACHE
from perennial.contracts.training import TrainingResult
from perennial.engine.checkpoints.checkpoint_store import RemoteCheckpointStore
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.checkpoints.folder import DamagedCheckpointError, committed, verify
from perennial.engine.handover import folder_for
from perennial.engine.job import RankFailure
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    run_ranks,
    tiny_job,
    weights,
    with_options,
)

OPTIONS = TinyOptions(dropout=0.2)


@pytest.fixture(scope="module")
def undisturbed(root):
    """A training whose loop waits for each checkpoint."""
    return finished(tiny_job(root, options=OPTIONS, checkpoints={"asynchronous": False}))


@pytest.fixture(scope="module")
def stopped(root):
    """A training with checkpoints of steps 8 and 10, and nothing after."""
    job = tiny_job(root, options=OPTIONS)
    stopping = OPTIONS.model_copy(update={"fault": "terminate", "fault_call": 8})
    assert run_ranks(with_options(job, stopping)) == [75, 75]
    return job


def copied(job, folder):
    shutil.copytree(job.root, folder)
    return job.model_copy(update={"folder": str(folder)})


def all_equal(first: TrainingResult, second: TrainingResult) -> bool:
    steps = [record.step for record in first.checkpoints]
    assert steps == [record.step for record in second.checkpoints]
    return all(
        largest_difference(weights(first, step), weights(second, step)) == 0.0 for step in steps
    )


def test_what_is_saved_is_the_state_of_its_step_though_training_goes_on(root, undisturbed):
    job = tiny_job(root, options=OPTIONS)
    assert run_ranks(job, write_slowly) == [0, 0]
    assert all_equal(TrainingResult.read(job.root), undisturbed)


def test_without_the_copy_it_would_not_be(root, undisturbed):
    job = tiny_job(root, options=OPTIONS)
    assert run_ranks(job, write_slowly_without_a_copy) == [0, 0]
    assert not all_equal(TrainingResult.read(job.root), undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_killed_while_it_writes_costs_that_checkpoint_alone(root, undisturbed, rank):
    job = tiny_job(root, options=OPTIONS)
    codes = run_ranks(job, partial(be_killed_while_writing, 16, rank))
    assert codes[rank] == -9
    assert [path.name for path in committed(job.checkpoints)] == ["step-00000008"]
    result = finished(job)
    assert result.num_resumes == 1
    assert all_equal(result, undisturbed)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_full_disk_ends_the_training_with_rank_and_step(root, rank):
    job = tiny_job(root, options=OPTIONS)
    assert run_ranks(job, partial(fail_to_write, 16, rank)) == [1, 1]
    failure = RankFailure.first_of(job.errors)
    assert failure.type == "CheckpointNotWrittenError"
    assert "checkpoint of step 16" in failure.message
    assert f"rank {rank}: OSError: [Errno 28] No space left on device" in failure.message
    assert not failure.is_consequence
    assert [path.name for path in job.checkpoints.iterdir()] == ["step-00000008"]


def test_an_exception_in_the_loop_does_not_cost_the_checkpoint_before_it(root):
    raising = OPTIONS.model_copy(update={"fault": "raise", "fault_rank": 1, "fault_call": 8})
    job = tiny_job(root, options=raising)
    assert run_ranks(job, write_slowly) == [1, 1]
    assert RankFailure.first_of(job.errors).type == "KeyError"
    assert [path.name for path in committed(job.checkpoints)] == ["step-00000008"]


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp", ".metadata", "checkpoint.json"])
def test_damage_to_any_file_of_the_newest_falls_back(stopped, tmp_path, undisturbed, name):
    job = copied(stopped, tmp_path / "job")
    flip_a_bit(committed(job.checkpoints)[-1] / name)
    result = finished(job)
    assert all_equal(result, undisturbed)
    log = (job.logs / "rank-0.log").read_text()
    assert "step-00000010 is damaged" in log
    assert "falling back to the previous checkpoint" in log


def test_a_flipped_bit_anywhere_in_any_file_is_found(stopped, tmp_path):
    checkpoint = committed(copied(stopped, tmp_path / "job").checkpoints)[-1]
    for file in sorted(checkpoint.iterdir()):
        healthy = file.read_bytes()
        for position in range(0, len(healthy), max(1, len(healthy) // 25)):
            flip_a_bit(file, position)
            with pytest.raises(DamagedCheckpointError):
                verify(checkpoint)
        file.write_bytes(healthy)
    verify(checkpoint)


def test_checkpoints_of_every_so_many_steps_are_kept(root):
    settings = {"keep_best": 1, "keep_every_steps": 8}
    result = finished(tiny_job(root, evaluate_every_steps=4, checkpoints=settings))
    kept = {record.step: record.kept_as for record in result.checkpoints}
    assert {step for step, reasons in kept.items() if "interval" in reasons} == {8, 16}
    assert "last" in kept[20]
    assert len(kept) <= 4


class TestStore:
    """Checkpoints in an object store."""

    @pytest.fixture
    def cache(self, tmp_path, monkeypatch):
        monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
        return tmp_path / "cache"

    @pytest.fixture
    def job(self, root, bucket, cache):
        """A training on this machine whose checkpoints live in a bucket."""
        uri = f"{bucket}/training/tiny"
        job = tiny_job(root, options=OPTIONS, evaluate_every_steps=4)
        return job.model_copy(update={"store_uri": uri, "folder": str(folder_for(uri))})

    @pytest.fixture
    def settings(self, s3_endpoint, cache):
        return {
            "AWS_ENDPOINT_URL_S3": s3_endpoint, "AWS_ACCESS_KEY_ID": "nobody",
            "AWS_SECRET_ACCESS_KEY": "nothing", "AWS_DEFAULT_REGION": "us-east-1",
            CACHE: str(cache),
        }  # fmt: skip

    def test_a_machine_that_lost_its_disk_continues_from_the_store(
        self, root, job, settings, cache
    ):
        straight = finished(tiny_job(root, options=OPTIONS, evaluate_every_steps=4))
        stopping = OPTIONS.model_copy(update={"fault": "terminate", "fault_call": 8})
        job.root.mkdir(parents=True)
        assert run_ranks(with_options(job, stopping), partial(train_with, settings)) == [75, 75]
        store = RemoteCheckpointStore(job.checkpoints_uri)
        assert store.steps() == [4, 8, 10]
        shutil.rmtree(cache)
        job.root.mkdir(parents=True)
        assert run_ranks(job, partial(train_with, settings)) == [0, 0]
        result = TrainingResult.read(job.root)
        assert result.num_resumes == 1
        assert all(record.uri.startswith(job.store_uri) for record in result.checkpoints)
        assert store.steps() == [record.step for record in result.checkpoints]
        assert len(store.steps()) <= 4, "superfluous ones are deleted from the store"
        shutil.rmtree(cache)
        for record, other in zip(result.checkpoints, straight.checkpoints, strict=True):
            found = load_checkpoint_model(record.uri, result)[1].state_dict()
            expected = load_checkpoint_model(other.uri, straight)[1].state_dict()
            assert largest_difference(found, expected) == 0.0

    def test_killed_before_the_marker_the_upload_is_invisible(self, job, settings, caplog):
        job.root.mkdir(parents=True)
        codes = run_ranks(job, partial(be_killed_before_the_marker, settings, 8))
        assert codes[0] == -9
        store = RemoteCheckpointStore(job.checkpoints_uri)
        assert store.steps() == [4]
        assert "checkpoint.json" in store._names()[8], "all but the marker is there"
        with caplog.at_level(logging.WARNING):
            store.discard_uncommitted()
        assert set(store._names()) == {4}
        assert "step-00000008 was never finished" in caplog.text
        assert run_ranks(job, partial(train_with, settings)) == [0, 0]
        assert TrainingResult.read(job.root).num_resumes == 1
