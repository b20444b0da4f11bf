"""Restart policy: is an attempt that ended worth another one?"""

from collections.abc import Mapping
from types import MappingProxyType

from perennial.contracts.section import Section
from perennial.engine.job import RankFailure
from perennial.training_jobs.launcher import JobState

CAUSES: Mapping[JobState, str] = MappingProxyType(
    {
        JobState.INTERRUPTED: "the job was asked to stop",
        JobState.DISPLACED: "the cluster took its place away",
        JobState.FAILED: "a process was killed",
    }
)


class RestartDecision(Section):
    """Whether to start again, and why."""

    restart: bool
    reason: str


def decide_restart(
    state: JobState,
    failure: RankFailure | None,
    *,
    has_stepped: bool,
    restarts: int,
    max_restarts: int,
) -> RestartDecision:
    """Restart what was killed from outside; an exception of the code would only come again.

    So would the end of an attempt that never made a step: too little memory for the model, a
    machine or a network that is set up wrongly. Not so if the cluster took its place away, or if a
    service did not answer.

    Args:
        state: How the attempt ended, not `SUCCEEDED`.
        failure: The first exception that a rank left behind.
        has_stepped: Whether the attempt finished at least one step.
        restarts: Restarts so far.
        max_restarts: The budget.
    """
    cause = CAUSES[state]
    if failure is not None and failure.is_hang:
        cause = "it stood still"
    elif failure is not None and failure.is_outage:
        cause = "a service did not answer"
    elif failure is not None and not failure.is_consequence:
        return RestartDecision(restart=False, reason=f"rank {failure.rank} raised {failure.type}")
    is_outage = failure is not None and failure.is_outage
    if not has_stepped and state is not JobState.DISPLACED and not is_outage:
        return RestartDecision(
            restart=False, reason=f"{cause} before its first step; it would be again"
        )
    if restarts >= max_restarts:
        return RestartDecision(
            restart=False, reason=f"{cause} and all {max_restarts} restarts are spent"
        )
    return RestartDecision(restart=True, reason=cause)
