"""Whatever goes wrong in a training: it continues to the same weights, or reports what is wrong."""

import logging
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perennial.contracts.errors import PerennialError, TrainingFailedError
from perennial.contracts.training import TrainingResult
from perennial.engine.checkpoints.checkpoint_store import CheckpointStore, newest_intact
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.checkpoints.folder import DamagedCheckpointError, committed
from perennial.engine.job import JobFailure, RankFailure
from perennial.steps.lease import RunLease
from perennial.training_jobs.attempts import run_to_end, training_failed
from perennial.training_jobs.launcher import LocalLauncher
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    run_ranks,
    tiny_job,
    weights,
    with_options,
    write_snapshot,
)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("training")
    write_snapshot(folder)
    return folder


@pytest.fixture(scope="module")
def undisturbed(root):
    """The weights when nothing goes wrong."""
    return weights(finished(tiny_job(root, options=TinyOptions(dropout=0.2))))


def failure_of(job) -> RankFailure:
    found = RankFailure.first_of(job.errors)
    assert found is not None
    return found


def stopped_at(root, step: int, **changes):
    """A job that a signal, sent during the step before, stopped with a checkpoint of a step."""
    job = tiny_job(root, options=TinyOptions(dropout=0.2), **changes)
    stopping = TinyOptions(dropout=0.2, fault="terminate", fault_rank=1, fault_call=step - 2)
    assert run_ranks(with_options(job, stopping)) == [75, 75]
    return job


@pytest.mark.parametrize("fault", ["exit", "os._exit"])
def test_a_task_that_ends_its_process_with_success_fails_the_training(root, fault):
    job = tiny_job(root, options=TinyOptions(fault=fault, fault_rank=0, fault_call=4), processes=1)
    assert run_ranks(job) == [1]
    failure = failure_of(job)
    assert failure.type == "BadTaskError"
    assert "tiny_training.py" in failure.message
    assert not (job.root / TrainingResult.file_name).exists()


def test_processes_that_end_with_success_and_leave_no_result_have_failed(root):
    options = TinyOptions(fault="_exit", fault_rank=0, fault_call=4)
    job = tiny_job(root, options=options, processes=1)
    with pytest.raises(TrainingFailedError) as raised:
        run_to_end(job, LocalLauncher(1), max_restarts=0)
    assert "wrote no result" in str(raised.value)


def test_a_killed_rank_is_restarted_and_the_weights_are_the_same(
    root, tmp_path, undisturbed, caplog
):
    killing = TinyOptions(
        dropout=0.2, fault="kill", fault_rank=1, fault_call=12, once=str(tmp_path / "struck")
    )
    job = tiny_job(root, options=killing)
    committed = job.root / "checkpoints" / "step-00000008" / "COMMITTED"
    job = with_options(job, killing.model_copy(update={"after": str(committed)}))
    with caplog.at_level(logging.WARNING):
        run_to_end(job, LocalLauncher(1), max_restarts=1)
    assert "restart=1 of 1" in caplog.text
    result = TrainingResult.read(job.root)
    assert result.num_resumes == 1
    assert largest_difference(weights(result), undisturbed) == 0.0
    assert (job.logs / "rank-0.log").read_text().count("is encoded already") == 2
    assert not job.scratch.exists()


@pytest.mark.parametrize(
    ("call", "max_restarts", "reason"),
    [
        pytest.param(
            3,
            0,
            "a process was killed; no attempt is left after 0 restarts",
            marks=pytest.mark.full,
        ),
        (0, 3, "a process was killed before its first step; a restart would not help"),
    ],
)
def test_what_would_come_again_is_not_restarted(root, call, max_restarts, reason):
    job = tiny_job(root, options=TinyOptions(fault="kill", fault_rank=1, fault_call=call))
    with pytest.raises(TrainingFailedError, match=reason):
        run_to_end(job, LocalLauncher(1), max_restarts=max_restarts)
    failure = JobFailure.read(job.root)
    assert failure.reason == reason
    assert 1 in failure.silent_ranks
    assert not job.scratch.exists()
    assert failure.first is None or failure.first.is_consequence


def test_the_real_exception_of_another_rank_reaches_the_user(root):
    job = tiny_job(root, options=TinyOptions(fault="raise", fault_rank=1, fault_call=4))
    with pytest.raises(TrainingFailedError) as raised:
        run_to_end(job, LocalLauncher(1), max_restarts=3)
    text = str(raised.value)
    assert text.startswith('rank 1 failed at step 5: KeyError: "the user\'s own mistake"')
    assert "tiny_training.py" in text
    assert str(job.logs) in text
    assert "Connection" not in text
    failure = JobFailure.read(job.root)
    assert failure.first is not None
    assert (failure.first.rank, failure.first.step, failure.first.type) == (1, 5, "KeyError")
    assert failure.reason == "rank 1 raised KeyError"


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_loss_that_is_not_finite_is_named(root, strategy):
    job = tiny_job(
        root, strategy=strategy, options=TinyOptions(fault="nan", fault_rank=1, fault_call=6)
    )
    assert run_ranks(job) == [1, 1]
    message = failure_of(job).message
    assert "not finite at or before step 7" in message
    assert "ranks with such a loss: rank 1 nan" in message
    assert "from the last layer on: head.bias" in message
    assert [path.name for path in committed(job.checkpoints)] == []


def test_a_task_that_averages_its_losses_is_refused(root):
    job = tiny_job(root, options=TinyOptions(fault="averaged"))
    assert run_ranks(job) == [1, 1]
    assert "one loss per example" in failure_of(job).message


def test_a_flipped_bit_is_found_and_the_checkpoint_before_is_used(root, undisturbed):
    job = stopped_at(root, 10)
    newest = committed(job.checkpoints)[-1]
    flip_a_bit(next(newest.glob("*.distcp")))
    result = finished(job)
    assert largest_difference(weights(result), undisturbed) == 0.0
    log = (job.logs / "rank-0.log").read_text()
    assert "WARNING" in log
    assert "step-00000010 is damaged" in log
    assert "resumed_from" in log
    assert "step=8" in log
    assert newest.with_suffix(".damaged").is_dir()


@pytest.mark.parametrize("damage", ["tensors", "listing", "marker", "missing"])
def test_a_damaged_checkpoint_is_never_loaded(root, damage):
    result = finished(tiny_job(root, steps=2, evaluate_every_steps=2))
    checkpoint = Path(result.checkpoints[-1].uri)
    load_checkpoint_model(checkpoint, result)
    if damage == "missing":
        next(checkpoint.glob("*.distcp")).unlink()
    else:
        names = {"tensors": "*.distcp", "listing": "checkpoint.json", "marker": "COMMITTED"}
        flip_a_bit(next(checkpoint.glob(names[damage])))
    with pytest.raises(DamagedCheckpointError, match="damaged"):
        load_checkpoint_model(checkpoint, result)


def test_a_half_written_checkpoint_is_ignored(root, undisturbed):
    job = stopped_at(root, 10)
    newest = committed(job.checkpoints)[-1]
    newest.rename(newest.with_suffix(".partial"))
    result = finished(job)
    assert largest_difference(weights(result), undisturbed) == 0.0
    assert not list(job.checkpoints.glob("*.partial"))


def test_checkpoints_of_another_training_are_refused(root):
    job = stopped_at(root, 8)
    with pytest.raises(PerennialError, match="another training"):
        newest_intact(CheckpointStore(job.checkpoints), "other", {})


def test_sigterm_stops_all_ranks_behind_a_checkpoint(root, tmp_path):
    """The step's process gets the signal, as from a preempting cluster."""
    job = tiny_job(root, options=TinyOptions(dropout=0.2), steps=20_000)
    code = (
        "import sys; from pathlib import Path; sys.path[:0] = sys.argv[2:]\n"
        "from perennial.engine.job import read_job\n"
        "from perennial.training_jobs.attempts import run_to_end\n"
        "from perennial.training_jobs.launcher import LocalLauncher\n"
        "run_to_end(read_job(Path(sys.argv[1])), LocalLauncher(1), 3)\n"
    )
    path = tmp_path / "job.json"
    path.write_text(job.to_json())
    process = subprocess.Popen([sys.executable, "-c", code, str(path), *filter(None, sys.path)])
    while process.poll() is None and not committed(job.checkpoints):
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75
    lease = RunLease(job.root)
    lease.acquire(5)
    lease.release()
    newest = committed(job.checkpoints)[-1]
    assert int(newest.name[5:]) < 20_000
    assert job.interrupted.exists()
    assert not job.scratch.exists()
    log = (job.logs / "rank-0.log").read_text()
    assert f"step={int(newest.name[5:])} finished=False" in log


def test_without_a_message_the_log_is_shown(tmp_path):
    log = tmp_path / "job.log"
    log.write_text("last words\n")
    assert "last words" in str(training_failed(None, "a process was killed", str(log)))


def flip_a_bit(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 4
    file.write_bytes(bytes(content))
