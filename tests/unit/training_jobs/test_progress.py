"""How long a phase of a job may take before the job is stopped."""

from launching import HOUR, MINUTE
from perennial.training_jobs.config import Budgets
from perennial.training_jobs.status import JobStatus, Progress

QUEUED = JobStatus("queued", "it waits to be admitted")
STUCK = JobStatus("queued", "Kueue has admitted it, but it stays suspended", is_stuck=True)
STARTING = JobStatus("starting", "ContainerCreating")
NO_IMAGE = JobStatus("starting", "ImagePullBackOff", is_stuck=True)
RUNNING = JobStatus("running", "2 pods run")
ENDED = JobStatus("ended", "every pod succeeded")
SECONDS = Budgets(
    queued_hours=100 / HOUR, starting_minutes=50 / MINUTE, stuck_minutes=5 / MINUTE,
    running_hours=200 / HOUR,
)  # fmt: skip


def timeouts_of(*observations):
    progress = Progress(SECONDS, "training")
    return [progress.update(now, float(moment)) for moment, now in observations]


def test_each_phase_has_its_own_budget_from_when_it_was_first_seen():
    assert (
        timeouts_of((0, QUEUED), (99, QUEUED), (140, STARTING), (189, STARTING), (390, RUNNING))
        == [""] * 5
    )
    assert (
        timeouts_of((0, QUEUED), (101, QUEUED))[-1] == "it has been queued for 101 s (queued_hours)"
    )
    assert "starting for 51 s (starting_minutes)" in timeouts_of((0, STARTING), (51, STARTING))[-1]
    assert "running for 201 s (running_hours)" in timeouts_of((0, RUNNING), (201, RUNNING))[-1]


def test_waiting_for_quota_costs_nothing_of_the_budget_of_a_job_that_is_stuck():
    assert timeouts_of((0, QUEUED), (90, QUEUED), (90, STUCK), (95, STUCK))[-1] == ""
    reported = timeouts_of((0, QUEUED), (90, QUEUED), (90, STUCK), (96, STUCK))[-1]
    assert reported == "it could not start for 6 s (stuck_minutes)"


def test_one_late_observation_does_not_count_as_stuck_time():
    """The launcher was itself held up: nobody knows what was between the two observations."""
    assert timeouts_of((0, QUEUED), (60, STUCK)) == ["", ""]
    assert timeouts_of((0, STARTING), (40, NO_IMAGE), (44, NO_IMAGE))[-1] == ""
    assert (
        "a pod could not start for 6 s"
        in timeouts_of((0, STARTING), (40, NO_IMAGE), (46, NO_IMAGE))[-1]
    )


def test_what_goes_on_in_between_is_not_stuck():
    assert timeouts_of((0, NO_IMAGE), (4, STARTING), (8, NO_IMAGE), (12, NO_IMAGE))[-1] == ""


def test_what_has_ended_is_not_late():
    assert timeouts_of((0, RUNNING), (1, ENDED), (10_000, ENDED))[-1] == ""
