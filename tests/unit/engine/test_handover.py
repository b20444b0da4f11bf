"""Workers whose machines go away get their job from the store, and leave there what matters."""

import shutil

import pytest

from perennial.clients.object_store import open_store
from perennial.contracts.environment import CACHE
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import TrainingResult
from perennial.engine.handover import fetch_errors, fetch_result, hand_over, read_end, receive_job
from perennial.engine.job import RankFailure
from tiny_training import TinyOptions, run_ranks_at, tiny_job


def on_a_cluster(root, bucket, **changes):
    job = tiny_job(root, **changes)
    return job.model_copy(update={"store_uri": f"{bucket}/training", "attempt": "first"})


def test_a_training_needs_nothing_but_its_address(root, bucket, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    job = on_a_cluster(root, bucket)
    hand_over(job)
    shutil.rmtree(job.root)
    assert run_ranks_at(job.address, job.num_processes) == [0, 0]
    end = read_end(job)
    assert (end.is_finished, end.ranks) == (True, (0, 1))
    assert fetch_result(job)
    result = TrainingResult.read(job.root)
    assert result.steps == 20
    assert all(kept.uri.startswith(bucket) for kept in result.checkpoints)
    left = {item.key for item in open_store(job.attempt_uri).list()}
    assert left == {"job.json", "joined", "first-step", "ended.json", "logs/metrics.jsonl"}


def test_the_exception_of_a_rank_reaches_the_store(root, bucket, tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    job = on_a_cluster(root, bucket, options=TinyOptions(fault="raise", fault_call=3, fault_rank=1))
    hand_over(job)
    assert 1 in run_ranks_at(job.address, job.num_processes)
    fetch_errors(job)
    assert RankFailure.first_of(job.errors) is not None
    assert read_end(job) is None


def test_an_address_without_a_job_is_an_error(bucket):
    with pytest.raises(PerennialError, match="no training job at"):
        receive_job(f"{bucket}/attempts/x/job.json")
