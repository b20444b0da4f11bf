"""Deadline: limits the time of calls to libraries that limit only the time between two bytes."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
logger = logging.getLogger(__name__)


def run_all_within(
    seconds: float, works: Sequence[Callable[[], T]], *, what: str, log_every_s: float
) -> list[T]:
    """The results of calls that run at once, each in a thread; the first error ends the wait.

    Libraries limit the time between two bytes; a peer that sends one byte a second keeps to that
    limit permanently. A call that is late is abandoned: its thread ends with the process. The log
    shows `what`, such as `waiting to read from s3://bucket`, while it waits.

    Raises:
        TimeoutError: the calls did not end in time.
    """
    started = time.monotonic()
    results: dict[int, T] = {}
    errors: list[BaseException] = []
    changed = threading.Condition()

    def run(index: int) -> None:
        try:
            result = works[index]()
        except BaseException as error:
            with changed:
                errors.append(error)
                changed.notify()
        else:
            with changed:
                results[index] = result
                changed.notify()

    for index in range(len(works)):
        threading.Thread(target=run, args=(index,), name="within-deadline", daemon=True).start()
    with changed:
        next_line = log_every_s
        while not errors and len(results) < len(works):
            passed = time.monotonic() - started
            if passed >= seconds:
                raise TimeoutError(f"timed out after {passed:.0f} s {what}")
            if passed >= next_line:
                logger.warning("still %s after %.0f s of at most %.0f s", what, passed, seconds)
                next_line += log_every_s
            changed.wait(min(next_line, seconds) - passed)
        if errors:
            raise errors[0]
    return [results[index] for index in range(len(works))]
