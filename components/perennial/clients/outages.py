"""Outages: which errors of a service pass, and how long it is waited for.

One policy for object store, MLflow and API server. A run waits out an outage of
`PERENNIAL_OUTAGE_SECONDS`; a command at a prompt reports it at once.
"""

import inspect
import logging
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import wraps
from types import MappingProxyType
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from perennial.contracts.environment import seconds_of
from perennial.contracts.errors import OutageError, PerennialError

P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")
Kind = TypeVar("Kind", bound=type)

OUTAGE_SECONDS = "PERENNIAL_OUTAGE_SECONDS"
LOG_EVERY_SECONDS = 30.0
TOO_MANY, SERVER_ERROR = 429, 500
# By code: S3 answers RequestTimeout with status 400.
THROTTLED = frozenset({"SlowDown", "Throttling", "ThrottlingException", "RequestTimeout"})
# By name: to import boto3 takes more than a second, which only stores behind S3 need.
UNANSWERED: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "botocore.exceptions": frozenset({"ConnectionError", "HTTPClientError"}),
        "urllib3.exceptions": frozenset({"HTTPError"}),
        "requests.exceptions": frozenset({"ConnectionError", "Timeout"}),
        "builtins": frozenset({"ConnectionError", "TimeoutError"}),
    }
)
# How MLflow's client and databases report that there was no answer.
SILENCE = re.compile(
    r"API request to \S+ failed with (timeout )?exception"
    r"|API request to .* failed with error code (429|5\d\d)"
    r"|database is locked|server closed the connection|[Cc]onnection (refused|reset)"
)
# An MLflow server's code where its database does not answer.
NO_DATABASE = "TEMPORARILY_UNAVAILABLE"
# Of our own making: a wrong address, a certificate that is not trusted, a key with a line's end.
PERMANENT = re.compile(
    r"CERTIFICATE_VERIFY_FAILED|Name or service not known|nodename nor servname"
    r"|Invalid header value"
)
logger = logging.getLogger(__name__)
_is_run = False
# Of one thread only: the other threads of a run go on waiting.
_is_single: ContextVar[bool] = ContextVar("single attempt", default=False)


def outage_seconds() -> float:
    """Return the seconds that a run waits for a service that does not answer."""
    return seconds_of(OUTAGE_SECONDS, default=600.0, is_zero_allowed=True)


@dataclass(frozen=True)
class Persistence:
    """Retry budget for errors that pass."""

    budget_seconds: float = field(default_factory=outage_seconds)
    first_pause_seconds: float = 0.5
    longest_pause_seconds: float = 15.0

    def pauses(self) -> Iterator[float]:
        """Yield seconds: twice as long each time, and never in step with other clients."""
        pause = self.first_pause_seconds
        while True:
            yield pause * random.uniform(0.5, 1.0)
            pause = min(2 * pause, self.longest_pause_seconds)


class Clock(Protocol):
    """Time, as `time` has it."""

    def monotonic(self) -> float:
        """Return a time in seconds."""

    def sleep(self, seconds: float, /) -> None:
        """Wait."""


@contextmanager
def waiting_out_outages() -> Iterator[None]:
    """This process belongs to a run, which outlasts an outage."""
    global _is_run  # noqa: PLW0603 - of the process, with all its threads
    before, _is_run = _is_run, True
    try:
        yield
    finally:
        _is_run = before


@contextmanager
def errors_logged(problem: str, kind: type[Exception] = Exception) -> Iterator[None]:
    """Try each call of the block once; log an error with what it means instead of raising it."""
    try:
        with single_attempts():
            yield
    except kind as error:
        logger.warning("%s: %s", problem, error)


@contextmanager
def single_attempts() -> Iterator[None]:
    """Try each call in this block once, without waiting for outages."""
    token = _is_single.set(True)
    try:
        yield
    finally:
        _is_single.reset(token)


def waits() -> bool:
    """Whether an outage is waited out here."""
    return _is_run and not _is_single.get()


def outlast(
    call: Callable[[], T], persistence: Persistence | None = None, clock: Clock = time
) -> T:
    """Return the result of a call that may be repeated; wait for the end of an outage.

    By default as long as the environment names, and not at all at a prompt.

    Raises:
        OutageError: the service did not answer within the budget; without one, its own error.
    """
    if persistence is None:
        persistence = Persistence() if waits() else Persistence(budget_seconds=0.0)
    begun = clock.monotonic()
    ends = begun + persistence.budget_seconds
    next_log = begun
    for pause in persistence.pauses():
        try:
            return call()
        except OutageError:
            raise  # it has been waited for, further inside
        except Exception as error:
            if not is_outage(error):
                raise
            now = clock.monotonic()
            # Nothing was waited for, so the error itself explains more than a timeout.
            if not persistence.budget_seconds:
                raise
            if now >= ends:
                raise _timed_out(error, persistence.budget_seconds) from error
            if now >= next_log:
                _log(error, ends - now)
                next_log = now + LOG_EVERY_SECONDS
            clock.sleep(min(pause, ends - now))
    raise AssertionError("the pauses never end")


def outlasting(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[S, P], T]:
    """Return a method that may be repeated, which waits for the service behind it."""

    @wraps(method)
    def call(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return outlast(lambda: method(self, *args, **kwargs))

    return call


def each_outlasting(kind: Kind) -> Kind:
    """Return a class whose public methods may be repeated, and wait for the service behind it."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_"):
            setattr(kind, name, outlasting(method))
    return kind


def outlast_once(write: Callable[[], None], is_done: Callable[[], bool]) -> None:
    """Make a write that must not be repeated once it has been made: only its answer may be lost."""
    attempts = 0

    def attempt() -> None:
        nonlocal attempts
        attempts += 1
        if attempts > 1 and is_done():
            return
        try:
            write()
        except Exception:
            # A write without an answer may arrive while the next attempt is under way.
            if attempts == 1 or not is_done():
                raise

    outlast(attempt)


def is_outage(error: BaseException) -> bool:
    """Whether the same call may succeed later, although nothing is fixed here.

    No answer, a broken connection, 5xx and throttling are; a refusal (403, 404) never is.
    """
    chain = list(_chain(error))
    if any(PERMANENT.search(str(each)) for each in chain):
        return False
    return any(isinstance(each, OutageError) or _passes(each) for each in chain)


def _passes(error: BaseException) -> bool:
    response = getattr(error, "response", None)  # of botocore's ClientError
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        code = str(response.get("Error", {}).get("Code", ""))
        # Answers to HEAD have no body, so botocore takes the status as the code.
        is_numbered = code.isdigit() and int(code) >= SERVER_ERROR
        return status == TOO_MANY or status >= SERVER_ERROR or code in THROTTLED or is_numbered
    # Of requests' HTTPError: MLflow's client passes it on where it moves files.
    answered = getattr(response, "status_code", 0)
    status = getattr(error, "status", None)  # of our own ApiError
    is_refused_for_now = isinstance(status, int) and getattr(error, "passes", False)
    if answered == TOO_MANY or answered >= SERVER_ERROR or is_refused_for_now:
        return True
    for kind in type(error).__mro__:
        if kind.__name__ in UNANSWERED.get(kind.__module__, frozenset()):
            return True
        if kind.__name__ == "MlflowException":
            # Of a server; a database that is a file does not come back.
            is_away = getattr(error, "json", {}).get("error_code") == NO_DATABASE
            is_file = "sqlite3" in str(error)
            return (is_away and not is_file) or bool(SILENCE.search(str(error)))
    return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what it came from."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _timed_out(error: Exception, seconds: float) -> OutageError:
    waited = f" after {seconds:g} s of waiting"
    if isinstance(error, PerennialError):
        return OutageError(error.problem + waited, evidence=error.evidence, action=error.action)
    return OutageError(
        f"a service does not answer{waited}",
        evidence=f"{type(error).__name__}: {str(error)[:500]}",
        action=f"check that it runs and is reachable from here; {OUTAGE_SECONDS} sets how long a "
        "run waits",
    )


def _log(error: Exception, rest: float) -> None:
    until = datetime.now(UTC) + timedelta(seconds=rest)
    problem = error.problem if isinstance(error, PerennialError) else type(error).__name__
    evidence = error.evidence if isinstance(error, PerennialError) else str(error)
    logger.warning(
        "waiting until %s UTC: %s (%s)",
        until.strftime("%H:%M:%S"),
        problem,
        " ".join(evidence.split())[:200],
    )
