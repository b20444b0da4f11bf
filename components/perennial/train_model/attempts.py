"""Attempts: run a training job until it is finished, with restarts."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType

from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError, TrainingFailedError
from perennial.contracts.user_code import RunStopped
from perennial.engine.job import EXIT_INTERRUPTED, JobFailure, RankFailure, TrainingJob
from perennial.train_model.restart_policy import decide_restart
from perennial.training_jobs.launcher import JobState, Launcher

logger = logging.getLogger(__name__)
LOG_LINES = 20


def run_to_end(job: TrainingJob, launcher: Launcher, max_restarts: int) -> None:
    """Run the job; return when its result is written.

    Raises:
        TrainingFailedError: with the first exception of a rank, or because no restarts are left.
        RunStopped: with code 75, when this process was stopped; start it again to resume.
    """
    restarts = 0
    with _stopping_on_signals(launcher.stop) as was_stopped, closing(launcher):
        while True:
            launcher.start(job)
            with _failure_kept(job):
                result = launcher.wait()
            if result.state is JobState.SUCCEEDED:
                return
            if was_stopped.is_set():
                logger.warning("stopped by a signal state=%s; run again to resume", result.state)
                raise RunStopped(EXIT_INTERRUPTED)
            failure = RankFailure.first_of(job.errors)
            decision = decide_restart(
                result.state, failure, has_stepped=job.first_step.exists(),
                restarts=restarts, max_restarts=max_restarts,
            )  # fmt: skip
            _keep_failure(job, JobFailure.of(job, decision.reason))
            if not decision.restart:
                raise training_failed(failure, decision.reason, launcher.log, result.cause)
            restarts += 1
            logger.warning(
                "attempt ended: %s; restart=%d of %d", decision.reason, restarts, max_restarts
            )


@contextmanager
def _failure_kept(job: TrainingJob) -> Iterator[None]:
    """Record why the launcher stopped a job."""
    try:
        yield
    except TrainingFailedError as error:
        _keep_failure(job, JobFailure.of(job, error.problem))
        raise


def _keep_failure(job: TrainingJob, failure: JobFailure) -> None:
    """Record why an attempt failed; only log it if that fails."""
    try:
        failure.write(job.root)
        if job.store_uri:
            open_store(job.store_uri).write(JobFailure.file_name, failure.to_json().encode())
    except PerennialError as error:
        logger.warning("the cause of the failure cannot be recorded: %s", error)


def training_failed(
    failure: RankFailure | None, reason: str, log: str, cause: str = ""
) -> TrainingFailedError:
    """Return the error for a job that ended without a result.

    Args:
        failure: The first exception of a rank.
        reason: Why there is no further attempt.
        log: Location of the output.
        cause: The cause observed by the launcher.
    """
    if failure is None or (failure.is_consequence and not failure.is_hang):
        seen = f"{cause}\n" if cause else ""
        remedy = (
            "the most frequent cause of a kill without a message is lack of memory: lower "
            "training.micro_batch_size; run again to resume from the last checkpoint"
        )
        if failure is not None:
            seen += f"rank {failure.rank} lost connection: {failure.type}: {failure.message}\n"
            remedy = f"if the ranks could not connect, fix the network; otherwise, {remedy}"
        return TrainingFailedError(
            f"the training ended without a result: {reason}",
            evidence=f"{seen}last lines of {log}:\n{_tail(Path(log))}",
            action=remedy,
        )
    if failure.is_hang:
        return TrainingFailedError(
            f"the training hangs: {reason}",
            evidence=failure.message,
            action="read the stacks of the rank that is behind in errors/hang-rank-*.txt; raise "
            "training.watchdog.minimum_seconds if the step was only slow",
        )
    frames = failure.traceback.strip().splitlines()
    return TrainingFailedError(
        f"rank {failure.rank} failed at step {failure.step}: {failure.type}: {failure.message}",
        evidence="\n".join(frames[-LOG_LINES:]),
        action=f"read the logs of all ranks, beside {log}",
    )


def _tail(path: Path) -> str:
    if not path.is_file():
        return "(no log)"
    return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:])


@contextmanager
def _stopping_on_signals(stop: Callable[[], None]) -> Iterator[threading.Event]:
    """Pass SIGTERM and SIGINT on to the job, once, while it runs."""
    stopped = threading.Event()

    def forward(signal_number: int, frame: FrameType | None) -> None:
        stop()  # first: with a job on a cluster, this process has no time for anything else
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopped  # outside the main thread no handler can be set
        return
    previous = {
        number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
