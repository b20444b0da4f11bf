"""What a training leaves in the store while it runs elsewhere, and what it costs when that is away."""

import dataclasses

import pytest

from launching import INTERVALS, SHORT, eventually, launcher_for, training_job
from perennial.clients.object_store import open_store
from perennial.contracts.errors import TrainingFailedError
from perennial.engine.handover import announce_end, announce_rendezvous
from perennial.training_jobs.attempt_watch import AttemptFiles
from perennial.training_jobs.attempts import run_to_end


@pytest.fixture
def job(tmp_path, bucket):
    found = training_job(tmp_path, bucket).model_copy(update={"attempt": "first"})
    found.logs.mkdir(parents=True)
    return found


def test_the_rendezvous_is_complete_when_the_first_rank_reports_it(job):
    files = AttemptFiles(job, INTERVALS)
    assert not files.is_rendezvous_complete()
    announce_rendezvous(job)
    assert files.is_rendezvous_complete()


def test_the_rendezvous_is_complete_too_once_an_older_trainer_has_made_a_step(job):
    open_store(job.attempt_uri).write(job.first_step.name, b"")
    assert AttemptFiles(job, INTERVALS).is_rendezvous_complete()


def test_pods_after_a_suspension_do_not_inherit_the_markers_of_earlier_ones(job):
    announce_rendezvous(job)
    announce_end(job, [0, 1], is_finished=False)
    store = open_store(job.attempt_uri)
    store.write("errors/rank-1.json", b"{}")
    store.write("job.json", b"{}")
    AttemptFiles(job, INTERVALS).forget()
    assert [item.key for item in store.list()] == ["job.json"]


def test_a_store_that_is_away_is_no_reason_to_give_up(job, monkeypatch):
    elsewhere = job.model_copy(update={"store_uri": "s3://no-such-bucket/training"})
    files = AttemptFiles(elsewhere, INTERVALS)
    assert files.is_rendezvous_complete()
    files.fetch_curves()
    (job.logs / "pod-0-a.log").write_text("a line\n")
    files.keep_logs([job.logs / "pod-0-a.log"], is_last=True)


def test_logs_are_kept_while_they_grow_and_at_the_end(job):
    kept, log = open_store(job.attempt_uri), job.logs / "pod-0-a.log"
    rarely = dataclasses.replace(INTERVALS, logs=3600.0)
    files = AttemptFiles(job, rarely)
    log.write_text("first\n")
    files.keep_logs([log])
    assert kept.read("logs/pod-0-a.log") is None
    files.keep_logs([log], is_last=True)
    assert kept.read("logs/pod-0-a.log") == b"first\n"
    often = AttemptFiles(job, dataclasses.replace(INTERVALS, logs=0.0))
    log.write_text("first\nsecond\n")
    often.keep_logs([log])
    assert kept.read("logs/pod-0-a.log") == b"first\nsecond\n"


def test_why_a_job_was_given_up_is_on_record_until_the_next_attempt(cluster, launched):
    job = launched("image_pull_error", "success")
    with pytest.raises(TrainingFailedError):
        run_to_end(job, launcher_for(budgets=SHORT), max_restarts=0)
    assert eventually(lambda: not cluster.active_jobs())
    assert b"a pod could not start" in open_store(job.store_uri).read("error.json")
    run_to_end(job, launcher_for(), max_restarts=0)
    assert open_store(job.store_uri).read("error.json") is None
