"""Attempts: run a training job until it is finished, with restarts."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType

from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError, TrainingFailedError
from perennial.contracts.training import Halving
from perennial.contracts.user_code import RunStopped, place_in, without_marks
from perennial.engine.handover import load_decision, save_decision
from perennial.engine.job import (
    EXIT_INTERRUPTED,
    JobFailure,
    PassSize,
    RankFailure,
    TrainingJob,
)
from perennial.reports.text import counted
from perennial.training_jobs.launcher import JobState, Launcher

logger = logging.getLogger(__name__)
LOG_LINES = 20
MORE_MEMORY = (
    "raise resources.cluster.memory_gib_per_process or, where the model runs on CPUs, lower "
    "training.micro_batch_size"
)
CAUSES: Mapping[JobState, str] = MappingProxyType(
    {
        JobState.INTERRUPTED: "the job was stopped by a signal",
        JobState.DISPLACED: "the job was preempted or lost its machine",
        JobState.FAILED: "a process was killed",
    }
)


def run_to_end(
    job: TrainingJob,
    launcher: Launcher,
    max_restarts: int,
    stopped: threading.Event | None = None,
) -> None:
    """Run the job; return when its result is written.

    Args:
        job: The training.
        launcher: Runs its attempts.
        max_restarts: How often an attempt that was killed is followed by another.
        stopped: Set by another thread before it stops the launcher.

    Raises:
        TrainingFailedError: with the first exception of a rank, or because no restarts are left.
        RunStopped: with code 75, when the training was stopped; start it again to resume.
    """
    restarts = 0
    size = pass_size(job)
    was_stopped = stopped or threading.Event()

    def stop() -> None:
        launcher.stop()  # first: with a job on a cluster, this process has no time for more
        was_stopped.set()

    with stopping_on_signals(stop), closing(launcher):
        while True:
            launcher.start(size.applied(job))
            try:
                result = launcher.wait()
            except TrainingFailedError as error:
                _keep_failure(job, error.problem)
                raise
            # Before `was_stopped`: a training that finished in spite of the signal has its result.
            if result.state is JobState.SUCCEEDED:
                return
            if result.state is JobState.TOO_LARGE and not was_stopped.is_set():
                logger.warning("attempt ended: %s", result.evidence)
                continue
            if was_stopped.is_set():
                logger.warning("stopped by a signal state=%s; run again to resume", result.state)
                raise RunStopped(EXIT_INTERRUPTED)
            failure = RankFailure.first_of(job.errors)
            if failure is not None and failure.halving is not None:
                size = halve(job, size, failure.halving)
                continue
            is_restarted, reason = decide_restart(
                result.state,
                failure,
                has_stepped=job.first_step.exists(),
                restarts=restarts,
                max_restarts=max_restarts,
            )
            _keep_failure(job, reason)
            if not is_restarted:
                raise training_failed(failure, reason, launcher.log, result.evidence)
            restarts += 1
            logger.warning("attempt ended: %s; restart=%d of %d", reason, restarts, max_restarts)


def pass_size(job: TrainingJob) -> PassSize:
    """Return the size of passes that earlier attempts and runs have come to."""
    stored, asked = load_decision(job, PassSize), job.training.micro_batch_size
    # Another value in the contract is a new request: it is tried before it is halved again.
    if stored is not None and stored.asked == asked:
        return stored
    return PassSize(fingerprint=job.fingerprint, asked=asked)


def halve(job: TrainingJob, size: PassSize, halving: Halving) -> PassSize:
    """Record smaller passes for all later attempts and runs.

    `max_restarts` does not count it: halving ends at one row by itself.
    """
    logger.warning(
        "attempt ended: out of memory in a pass of %d rows, at step %d on rank %d; the training "
        "goes on from its last checkpoint with passes of up to %d rows: the same batches, their "
        "sums rounded in another order",
        *(halving.rows, halving.step, halving.rank, halving.next_rows),
    )
    smaller = size.model_copy(update={"halvings": (*size.halvings, halving)})
    save_decision(job, smaller)
    return smaller


def decide_restart(
    state: JobState,
    failure: RankFailure | None,
    *,
    has_stepped: bool,
    restarts: int,
    max_restarts: int,
) -> tuple[bool, str]:
    """Decide whether to restart an attempt that ended in `state`, and why.

    Attempts that were killed from outside are restarted; an exception of the code would recur. So
    would the end of an attempt that never finished a step: too little memory, or a misconfigured
    machine or network. Exceptions are a preempted attempt, and a service that did not answer.
    """
    cause = CAUSES[state]
    is_outage = failure is not None and failure.is_outage
    if failure is not None and failure.is_hang:
        cause = "it hung"
    elif is_outage:
        cause = "a service did not answer"
    elif failure is not None and not failure.is_consequence:
        # A lost connection would only follow another rank's end: then CAUSES has the cause.
        return False, f"rank {failure.rank} raised {failure.type}"
    if not has_stepped and state is not JobState.DISPLACED and not is_outage:
        return False, f"{cause} before its first step; a restart would not help"
    if restarts >= max_restarts:
        return False, f"{cause}; no attempt is left after {counted(max_restarts, 'restart')}"
    return True, cause


def _keep_failure(job: TrainingJob, reason: str) -> None:
    """Record why an attempt failed; only log it if that fails."""
    failure = JobFailure.of(job, reason)
    try:
        failure.write(job.root)
        if job.store_uri:
            open_store(job.store_uri).write(JobFailure.file_name, failure.to_json().encode())
    except PerennialError as error:
        logger.warning("the cause of the failure cannot be recorded: %s", error)


def training_failed(
    failure: RankFailure | None, reason: str, log: str, evidence: str = ""
) -> TrainingFailedError:
    """Return the error for a job that ended without a result: why no further attempt follows.

    `failure` is the first exception of a rank; `evidence` is what the launcher observed.
    """
    # No rank stored the cause, as after a SIGKILL: the end of the log is all the evidence there is.
    if failure is None or (failure.is_consequence and not failure.is_hang):
        lines = [evidence] if evidence else []
        remedy = (
            f"the most frequent cause of a kill without a message is lack of memory: {MORE_MEMORY}"
            "; run again to resume from the last checkpoint"
        )
        if failure is not None:
            lines += [f"rank {failure.rank} lost connection: {failure.type}: {failure.message}"]
            remedy = f"if the ranks could not connect, fix the network; otherwise, {remedy}"
        return TrainingFailedError(
            f"the training ended without a result: {reason}",
            evidence="\n".join([*lines, f"last lines of {log}:", _tail(Path(log))]),
            action=remedy,
        )
    if failure.is_hang:
        return TrainingFailedError(
            f"the training hangs: {reason}",
            evidence=failure.message,
            action="read the stacks of the rank that is behind in errors/hang-rank-*.txt; raise "
            "training.watchdog.minimum_seconds if the step was only slow",
        )
    frames = without_marks(failure.traceback).strip().splitlines()
    place = place_in(failure.traceback)
    return TrainingFailedError(
        f"rank {failure.rank} failed at step {failure.step}: {failure.type}: {failure.message}",
        evidence=f"raised at {place}" if place else "\n".join(frames[-LOG_LINES:]),
        action=f"read the logs of all ranks, beside {log}",
    )


def _tail(path: Path) -> str:
    if not path.is_file():
        return "(no log)"
    text = without_marks(path.read_text(errors="replace"))
    return "\n".join(text.splitlines()[-LOG_LINES:])


@contextmanager
def stopping_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call a function on SIGTERM and SIGINT while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # outside the main thread no handler can be set
        return
    previous = {
        number: signal.signal(number, lambda *_: stop())
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
