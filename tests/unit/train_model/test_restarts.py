import pytest

from perennial.contracts.data import ModelSection
from perennial.contracts.errors import TrainingFailedError
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import RankFailure, TrainingJob
from perennial.training_jobs.attempts import decide_restart, run_to_end, training_failed
from perennial.training_jobs.launcher import JobResult, JobState, Launcher


def failure(*, is_consequence: bool, time: float = 1.0, rank: int = 0) -> RankFailure:
    return RankFailure(
        rank=rank, step=3, type="ValueError", message="m", traceback="t", time=time,
        is_consequence=is_consequence,
    )  # fmt: skip


def hang() -> RankFailure:
    return failure(is_consequence=False).model_copy(update={"is_hang": True})


@pytest.mark.parametrize(
    ("state", "found", "restarts", "expected", "reason"),
    [
        (JobState.FAILED, hang(), 0, True, "it hung"),
        (JobState.FAILED, hang(), 2, False, "no attempt is left after 2 restarts"),
        (JobState.FAILED, None, 0, True, "a process was killed"),
        (JobState.FAILED, failure(is_consequence=True), 0, True, "a process was killed"),
        (JobState.FAILED, failure(is_consequence=False), 0, False, "rank 0 raised ValueError"),
        (JobState.INTERRUPTED, None, 0, True, "the job was stopped by a signal"),
        (JobState.FAILED, None, 2, False, "no attempt is left after 2 restarts"),
        (JobState.INTERRUPTED, None, 2, False, "no attempt is left after 2 restarts"),
    ],
)
def test_what_was_killed_is_restarted_and_what_raised_is_not(
    state, found, restarts, expected, reason
):
    is_restarted, why = decide_restart(
        state, found, has_stepped=True, restarts=restarts, max_restarts=2
    )
    assert is_restarted is expected
    assert reason in why


@pytest.mark.parametrize("found", [None, failure(is_consequence=True), hang()])
@pytest.mark.parametrize("state", [JobState.FAILED, JobState.INTERRUPTED])
def test_an_attempt_that_never_made_a_step_is_not_repeated(state, found):
    is_restarted, why = decide_restart(state, found, has_stepped=False, restarts=0, max_restarts=2)
    assert not is_restarted
    assert "before its first step" in why


@pytest.mark.parametrize(
    ("failures", "rank"),
    [
        (
            [
                failure(is_consequence=False, rank=0, time=2.0),
                failure(is_consequence=False, rank=1, time=1.0),
            ],
            1,
        ),
        (
            [
                failure(is_consequence=True, rank=0, time=1.0),
                failure(is_consequence=False, rank=1, time=2.0),
            ],
            1,
        ),
        (
            [
                failure(is_consequence=True, rank=0, time=2.0),
                failure(is_consequence=True, rank=1, time=1.0),
            ],
            1,
        ),
    ],
)
def test_the_first_cause_is_found(tmp_path, failures, rank):
    for each in failures:
        (tmp_path / f"rank-{each.rank}.json").write_text(each.to_json())
    assert RankFailure.first_of(tmp_path).rank == rank


def test_no_failure_was_left(tmp_path):
    assert RankFailure.first_of(tmp_path) is None


def test_what_a_rank_that_lost_the_others_said_is_shown():
    lost = failure(is_consequence=True).model_copy(
        update={"type": "DistBackendError", "message": "NCCL error: no socket interface found"}
    )
    shown = training_failed(lost, "killed before its first step", "job.log")
    assert "DistBackendError: NCCL error: no socket interface found" in shown.evidence
    assert "fix the network" in shown.action
    assert "NCCL" not in training_failed(None, "killed", "job.log").evidence


class ScriptedLauncher(Launcher):
    """Ends its attempts with the given states."""

    def __init__(self, *states: JobState) -> None:
        self.log = "job.log"
        self.states = list(states)
        self.started = 0
        self.is_closed = False

    def start(self, job):
        assert not self.is_closed
        self.started += 1
        job.first_step.touch()

    def wait(self):
        return JobResult(self.states.pop(0))

    def close(self):
        self.is_closed = True

    def stop(self):
        raise AssertionError("nobody asked")


def job(tmp_path) -> TrainingJob:
    model = ModelSection(name="m", task="a:B")
    return TrainingJob(
        fingerprint="f", snapshot="s", model=model, training=TrainingSection(), num_processes=2,
        folder=str(tmp_path),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("states", "attempts"),
    [
        ([JobState.SUCCEEDED], 1),
        ([JobState.FAILED, JobState.SUCCEEDED], 2),
        ([JobState.INTERRUPTED, JobState.FAILED, JobState.SUCCEEDED], 3),
    ],
)
def test_runs_until_it_succeeds(tmp_path, states, attempts):
    launcher = ScriptedLauncher(*states)
    run_to_end(job(tmp_path), launcher, max_restarts=2)
    assert launcher.started == attempts
    assert launcher.is_closed


def test_gives_up_after_the_budget(tmp_path):
    launcher = ScriptedLauncher(*[JobState.FAILED] * 3)
    with pytest.raises(TrainingFailedError, match="no attempt is left after 2 restarts"):
        run_to_end(job(tmp_path), launcher, max_restarts=2)
    assert launcher.started == 3
    assert launcher.is_closed
