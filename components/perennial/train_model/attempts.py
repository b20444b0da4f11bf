"""Attempts: runs a training job until it is finished, over as many attempts as that may take."""

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
    """Run the job; returns when its result is written.

    Raises:
        TrainingFailedError: with the first exception of a rank, or because restarts are spent.
        RunStopped: with code 75, when this process was asked to stop; start it again to resume.
    """
    restarts = 0
    with _stopping_on_signals(launcher.stop) as was_stopped, closing(launcher):
        while True:
            launcher.start(job)
            with _failure_kept(job):
                state = launcher.wait()
            if state is JobState.SUCCEEDED:
                return
            if was_stopped.is_set():
                logger.warning("stopped by a signal state=%s; run again to resume", state)
                raise RunStopped(EXIT_INTERRUPTED)
            failure = RankFailure.first_of(job.errors)
            decision = decide_restart(
                state, failure, has_stepped=job.first_step.exists(),
                restarts=restarts, max_restarts=max_restarts,
            )  # fmt: skip
            _keep_failure(job, JobFailure.of(job, decision.reason))
            if not decision.restart:
                raise training_failed(failure, decision.reason, launcher.log, launcher.cause)
            restarts += 1
            logger.warning(
                "attempt ended: %s; restart=%d of %d", decision.reason, restarts, max_restarts
            )


@contextmanager
def _failure_kept(job: TrainingJob) -> Iterator[None]:
    """Put on record why the launcher gave a job up."""
    try:
        yield
    except TrainingFailedError as error:
        _keep_failure(job, JobFailure.of(job, error.problem))
        raise


def _keep_failure(job: TrainingJob, failure: JobFailure) -> None:
    """Put on record why an attempt failed; what cannot be written costs the record alone."""
    try:
        failure.write(job.root)
        if job.store_uri:
            open_store(job.store_uri).write(JobFailure.file_name, failure.to_json().encode())
    except PerennialError as error:
        logger.warning("why the attempt failed is not on record: %s", error)


def training_failed(
    failure: RankFailure | None, reason: str, log: str, cause: str = ""
) -> TrainingFailedError:
    """What a person needs to see of a job that ended without a result.

    Args:
        failure: The first exception of a rank.
        reason: Why there is no other attempt.
        log: Where the output is.
        cause: What was seen from outside.
    """
    if failure is None or (failure.is_consequence and not failure.is_hang):
        seen = f"{cause}\n" if cause else ""
        remedy = (
            "a kill without a message is most often out of memory: lower "
            "training.micro_batch_size; run again to resume from the last checkpoint"
        )
        if failure is not None:
            seen += f"rank {failure.rank} lost the others: {failure.type}: {failure.message}\n"
            remedy = f"if they could not reach each other, mend the network; else {remedy}"
        return TrainingFailedError(
            f"the training ended without a result: {reason}",
            evidence=f"{seen}last lines of {log}:\n{_tail(Path(log))}",
            action=remedy,
        )
    if failure.is_hang:
        return TrainingFailedError(
            f"the training stands still: {reason}",
            evidence=failure.message,
            action="read the stacks of the rank that is behind in errors/hang-rank-*.txt; raise "
            "training.watchdog.minimum_seconds if the step was only slow",
        )
    frames = failure.traceback.strip().splitlines()
    return TrainingFailedError(
        f"rank {failure.rank} failed at step {failure.step}: {failure.type}: {failure.message}",
        evidence="\n".join(frames[-LOG_LINES:]),
        action=f"the logs of all ranks lie beside {log}",
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
        stop()  # first: where the job is on a cluster, this process has no time for anything else
        stopped.set()

    if threading.current_thread() is not threading.main_thread():
        yield stopped  # signals go to the main thread, whose business they are then
        return
    previous = {
        number: signal.signal(number, forward) for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        yield stopped
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
