"""A training that nobody follows any more ends itself, at a checkpoint."""

import threading

import pytest

from faulty_training import FaultyOptions, faulty_job
from perennial.clients.object_store import open_store
from perennial.contracts.environment import CACHE
from perennial.contracts.training import TrainingResult
from perennial.engine.handover import hand_over, read_end, write_heartbeat
from tiny_training import run_ranks_at

SLOW = FaultyOptions(trouble="slow forward", trouble_rank=-1, seconds=0.1)


@pytest.fixture
def job(root, bucket, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    found = faulty_job(root, SLOW, steps=30)
    address = {"store_uri": f"{bucket}/training", "attempt": "first", "unattended_seconds": 1.0}
    return found.model_copy(update=address)


def test_a_training_without_launcher_stops_at_a_checkpoint_and_resumes(job):
    write_heartbeat(job, "the last one")
    hand_over(job)
    assert run_ranks_at(job.address, job.num_processes) == [75, 75]
    end = read_end(job)
    assert end is not None
    assert not end.is_finished
    # The next launcher's attempt; for the test's time, on its own.
    again = job.model_copy(update={"attempt": "second", "unattended_seconds": 0.0})
    hand_over(again)
    assert run_ranks_at(again.address, job.num_processes) == [0, 0]
    content = open_store(job.store_uri).read(TrainingResult.file_name)
    assert TrainingResult.from_json(content).num_resumes == 1


def test_a_training_that_is_followed_goes_on(job):
    ended = threading.Event()

    def follow():
        number = 0
        while not ended.wait(0.2):
            number += 1
            write_heartbeat(job, str(number))

    launcher = threading.Thread(target=follow)
    hand_over(job)
    launcher.start()
    try:
        assert run_ranks_at(job.address, job.num_processes) == [0, 0]
    finally:
        ended.set()
        launcher.join()
