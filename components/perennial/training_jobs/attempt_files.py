"""Attempt files: heartbeat, curves and logs of an attempt, exchanged through the object store."""

import logging
import secrets
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.clients.outages import single_attempts
from perennial.contracts.errors import PerennialError
from perennial.engine.handover import (
    CURVES,
    forget_attempt,
    is_rendezvous_complete,
    write_heartbeat,
)
from perennial.engine.job import TrainingJob
from perennial.training_jobs.launcher import PollIntervals

logger = logging.getLogger(__name__)


@contextmanager
def heartbeats(job: TrainingJob, every_seconds: float) -> Iterator[None]:
    """Write heartbeats periodically, in a thread, while the block runs."""
    ended = threading.Event()

    def write() -> None:
        is_over = False
        while not is_over:
            try:
                with single_attempts():
                    write_heartbeat(job, secrets.token_hex(8))
            except PerennialError as error:
                logger.warning("the heartbeat cannot be written: %s", error.problem)
            is_over = ended.wait(every_seconds)

    thread = threading.Thread(target=write, name="sign-of-life", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()  # not joined: the store may be unavailable, and the thread is a daemon


class AttemptFiles:
    """Files of one attempt. If the store is unavailable, they are late; the training goes on.

    Args:
        job: The attempt's job.
        intervals: How often to poll.
    """

    def __init__(self, job: TrainingJob, intervals: PollIntervals) -> None:
        self._job = job
        self._intervals = intervals
        self._have_joined: bool | None = None  # None: unknown
        self._num_bytes = 0
        self._sizes: dict[Path, int] = {}
        self._next_curves = 0.0
        self._next_logs = time.monotonic() + intervals.logs

    def is_rendezvous_complete(self) -> bool:
        """Whether the rendezvous of all ranks is complete; the last answer if it is unknown."""
        if not self._have_joined:
            try:
                with single_attempts():
                    self._have_joined = is_rendezvous_complete(self._job)
            except PerennialError as error:
                logger.warning("cannot tell whether the rendezvous is complete: %s", error)
        return self._have_joined is not False

    def fetch_curves(self) -> None:
        """Append new curve points of the attempt to the local file."""
        if time.monotonic() < self._next_curves:
            return
        self._next_curves = time.monotonic() + self._intervals.curves
        try:
            with single_attempts():
                content = open_store(self._job.attempt_uri).read(f"logs/{CURVES}") or b""
        except PerennialError as error:
            logger.warning("curves cannot be read at present: %s", error)
            return
        with (self._job.logs / CURVES).open("ab") as file:
            file.write(content[self._num_bytes :])
        self._num_bytes = len(content)

    def keep_logs(self, files: Iterable[Path], *, is_last: bool = False) -> None:
        """Upload the pods' logs that have grown, so that they outlive the pods and this step."""
        if time.monotonic() < self._next_logs and not is_last:
            return
        self._next_logs = time.monotonic() + self._intervals.logs
        try:
            for file in files:
                size = file.stat().st_size
                if size != self._sizes.get(file):
                    with single_attempts():
                        open_store(self._job.attempt_uri).upload(f"logs/{file.name}", file)
                    self._sizes[file] = size
        except PerennialError as error:
            logger.warning("logs cannot be uploaded and are only in %s: %s", self._job.logs, error)

    def forget(self) -> None:
        """Delete the markers of earlier pods, which would be taken for those of the next ones."""
        try:
            forget_attempt(self._job)
        except PerennialError as error:
            logger.warning("markers of earlier pods cannot be deleted: %s", error)
