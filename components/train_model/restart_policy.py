"""Restart policy: is an attempt that ended worth another one?"""

from components.contracts.section import Section
from components.engine.job import RankFailure
from components.train_model.launchers.launcher import JobState


class RestartDecision(Section):
    """Whether to start again, and why."""

    restart: bool
    reason: str


def decide_restart(
    state: JobState, failure: RankFailure | None, *, restarts: int, max_restarts: int
) -> RestartDecision:
    """Restart what was killed from outside; an exception of the code would only come again.

    Args:
        state: How the attempt ended, not `SUCCEEDED`.
        failure: The first exception that a rank left behind.
        restarts: Restarts so far.
        max_restarts: The budget.
    """
    if failure is not None and not failure.is_consequence:
        return RestartDecision(restart=False, reason=f"rank {failure.rank} raised {failure.type}")
    cause = "the job was asked to stop" if state is JobState.INTERRUPTED else "a process was killed"
    if restarts >= max_restarts:
        return RestartDecision(
            restart=False, reason=f"{cause} and all {max_restarts} restarts are spent"
        )
    return RestartDecision(restart=True, reason=cause)
