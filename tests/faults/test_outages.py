"""An object store or MLflow that does not answer for a while costs a restart at most."""

import shutil
import threading
import time
from functools import partial

import pytest

from faulty_training import FaultyOptions, faulty_job
from perennial.clients.object_store import open_store
from perennial.clients.outages import OUTAGE_SECONDS, Persistence, waiting_out_outages
from perennial.contracts.environment import CACHE
from perennial.contracts.training import TrainingResult
from perennial.engine.handover import folder_for, hand_over, read_end
from perennial.engine.job import RankFailure
from perennial.training_jobs.attempts import decide_restart, run_to_end
from perennial.training_jobs.launcher import JobState, LocalLauncher
from tiny_training import finished, largest_difference, run_ranks_at, weights

# Slow enough for an outage to begin and end within the training.
SLOW = FaultyOptions(dropout=0.2, trouble="slow forward", trouble_rank=-1, seconds=0.05)


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def undisturbed(root):
    return weights(finished(faulty_job(root, FaultyOptions(dropout=0.2))))


def on_store(root, road, attempt="first"):
    job = faulty_job(root, SLOW)
    return job.model_copy(update={"store_uri": f"{road.bucket}/training", "attempt": attempt})


def outage_after(name, job, road, seconds, how):
    """Take the store away once an object of the training is in it."""

    def wait():
        store = open_store(job.store_uri)
        while not any(name in item.key for item in store.list()):
            time.sleep(0.02)
        road.close_for(seconds, how)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


RARE = pytest.mark.full


@pytest.mark.parametrize(
    ("moment", "how"),
    [
        pytest.param("joined", "refuse", marks=RARE),
        ("step-00000008/COMMITTED", "error"),
        pytest.param("joined", "error", marks=RARE),
        pytest.param("first-step", "refuse", marks=RARE),
        pytest.param("first-step", "reset", marks=RARE),
        pytest.param("step-00000008/COMMITTED", "refuse", marks=RARE),
    ],
)
def test_a_training_outlasts_an_outage_of_its_store(root, road, moment, how, request):
    undisturbed = request.getfixturevalue("undisturbed")
    job = on_store(root, road)
    hand_over(job)
    shutil.rmtree(job.root)
    cut = outage_after(moment, job, road, 3.0, how)
    assert run_ranks_at(job.address, job.num_processes) == [0, 0]
    cut.join()
    assert road.refused or how == "refuse"
    assert read_end(job).is_finished
    result = TrainingResult.from_json(open_store(job.store_uri).read(TrainingResult.file_name))
    assert result.num_resumes == 0
    assert largest_difference(weights(result), undisturbed) == 0.0


def test_an_outage_beyond_the_budget_is_no_exception_of_the_task(root, road, monkeypatch):
    monkeypatch.setenv(OUTAGE_SECONDS, "0.5")
    job = on_store(root, road)
    hand_over(job)
    outage_after("step-00000008/COMMITTED", job, road, 4.0, "refuse")
    assert run_ranks_at(job.address, job.num_processes) == [1, 1]
    failure = RankFailure.first_of(folder_for(job.attempt_uri) / "errors")
    assert failure.type == "CheckpointNotWrittenError"
    assert failure.is_outage
    assert decide_restart(
        JobState.FAILED, failure, has_stepped=False, restarts=0, max_restarts=1
    ) == (True, "a service did not answer")


@RARE
def test_after_an_outage_beyond_the_budget_the_training_is_restarted(
    root, road, monkeypatch, undisturbed
):
    monkeypatch.setenv(OUTAGE_SECONDS, "0.5")
    job = on_store(root, road, attempt="")
    outage_after("step-00000008/COMMITTED", job, road, 4.0, "refuse")
    # The launcher itself waits for as long as it takes.
    patient = partial(Persistence, budget_seconds=60.0)
    monkeypatch.setattr("perennial.clients.outages.Persistence", patient)
    with waiting_out_outages():
        run_to_end(job, LocalLauncher(1), max_restarts=1)
    result = TrainingResult.read(job.root)
    assert result.num_resumes == 1
    assert largest_difference(weights(result), undisturbed) == 0.0


@pytest.mark.full
@pytest.mark.timeout(300)
def test_eighty_seconds_without_the_store_cost_nothing_but_time(
    root, road, monkeypatch, undisturbed
):
    monkeypatch.delenv(OUTAGE_SECONDS)
    job = on_store(root, road, attempt="")
    outage_after("step-00000008/COMMITTED", job, road, 80.0, "refuse")
    run_to_end(job, LocalLauncher(1), max_restarts=0)
    result = TrainingResult.read(job.root)
    assert result.num_resumes == 0
    assert largest_difference(weights(result), undisturbed) == 0.0
