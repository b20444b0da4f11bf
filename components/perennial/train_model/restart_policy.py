"""Restart policy: decide whether to restart an attempt that ended."""

from collections.abc import Mapping
from types import MappingProxyType

from perennial.contracts.section import Section
from perennial.engine.job import RankFailure
from perennial.training_jobs.launcher import JobState

CAUSES: Mapping[JobState, str] = MappingProxyType(
    {
        JobState.INTERRUPTED: "the job was stopped by a signal",
        JobState.DISPLACED: "the job was preempted or lost its machine",
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
    """Restart attempts that were killed from outside; an exception of the code would recur.

    So would the end of an attempt that never finished a step: too little memory, or a misconfigured
    machine or network. Exceptions are a preempted attempt, and a service that did not answer.

    Args:
        state: How the attempt ended, not `SUCCEEDED`.
        failure: The first exception that a rank recorded.
        has_stepped: Whether the attempt finished at least one step.
        restarts: Restarts so far.
        max_restarts: The budget.
    """
    cause = CAUSES[state]
    if failure is not None and failure.is_hang:
        cause = "it hung"
    elif failure is not None and failure.is_outage:
        cause = "a service did not answer"
    elif failure is not None and not failure.is_consequence:
        return RestartDecision(restart=False, reason=f"rank {failure.rank} raised {failure.type}")
    is_outage = failure is not None and failure.is_outage
    if not has_stepped and state is not JobState.DISPLACED and not is_outage:
        return RestartDecision(
            restart=False, reason=f"{cause} before its first step; a restart would not help"
        )
    if restarts >= max_restarts:
        return RestartDecision(
            restart=False, reason=f"{cause} and all {max_restarts} restarts are used up"
        )
    return RestartDecision(restart=True, reason=cause)
