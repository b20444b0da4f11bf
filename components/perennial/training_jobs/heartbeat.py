"""Heartbeat: signals to the pods of a training that its launcher is alive."""

import logging
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from perennial.clients.outages import single_attempts
from perennial.contracts.errors import PerennialError
from perennial.engine.handover import write_heartbeat
from perennial.engine.job import TrainingJob

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
