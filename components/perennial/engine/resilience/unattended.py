"""Unattended: stops a job that no launcher monitors any more.

Its step was killed, and what should have deleted the job did not run: Kubeflow runs no exit task a
second time when a failed run is retried. The launcher writes a heartbeat into the store; when it
stops changing, the first rank makes all ranks stop at a checkpoint.
"""

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from perennial.clients.outages import single_attempts
from perennial.contracts.errors import PerennialError
from perennial.engine.handover import read_heartbeat
from perennial.engine.job import EXIT_INTERRUPTED, Job
from perennial.steps.background import running_beside

POLL_SECONDS = 30.0
LAST_SECONDS = 60.0  # at least, for the step under way and the last checkpoint
logger = logging.getLogger(__name__)


@contextmanager
def ending_unattended(job: Job, rank: int) -> Iterator[None]:
    """Stop this process, as a signal does, when its launcher sent no heartbeat for too long."""
    if rank > 0 or not job.attempt or not job.unattended_seconds:
        yield
        return
    with running_beside(partial(_watch, job), "launcher-watch"):
        yield


def _watch(job: Job, ended: threading.Event) -> None:
    limit = job.unattended_seconds
    latest, since, is_asked = b"", time.monotonic(), False
    while not ended.wait(min(POLL_SECONDS, limit / 4)):
        try:
            # Without retries: the time that an outage is waited for would count as silence of the
            # launcher.
            with single_attempts():
                sign = read_heartbeat(job)
        except PerennialError as error:
            logger.warning("cannot check whether the launcher is alive: %s", error.problem)
            since = time.monotonic()  # it cannot write either
            continue
        if sign != latest:
            latest, since = sign, time.monotonic()
        silent = time.monotonic() - since
        if silent > limit and not is_asked:
            is_asked = True
            logger.error("no launcher has monitored this job for %.0f s: stopping it", silent)
            os.kill(os.getpid(), signal.SIGTERM)
        elif silent > limit + max(limit, LAST_SECONDS):
            logger.error("the job did not stop: ending this process")
            os._exit(EXIT_INTERRUPTED)
