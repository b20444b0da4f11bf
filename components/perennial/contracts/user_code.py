"""User code: however it leaves its caller, the caller gets an error that people can read.

`sys.exit(0)`, `quit()`, `os._exit(0)` or a custom `BaseException` in a task would otherwise end a
process with success before its work is done.
"""

import faulthandler
import importlib
import inspect
import logging
import os
import re
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from traceback import format_exception, walk_stack, walk_tb
from types import FrameType, ModuleType, TracebackType
from typing import NoReturn, ParamSpec, TypeVar

from typing_extensions import override

from perennial.contracts.environment import seconds_of
from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.contracts.old_names import find_old_names

P = ParamSpec("P")
T = TypeVar("T")

IMPORT_SECONDS = "PERENNIAL_IMPORT_SECONDS"
ENCODE_SECONDS = "PERENNIAL_ENCODE_SECONDS"
# Code that catches the first interruption gets two more, then the process ends.
INTERRUPTIONS, INTERRUPTION_SECONDS = 3, 5.0
EXIT_CODE = 2
END_SECONDS = 10.0  # handlers that write what is left, as a tracker's do, take a few
_OWN = Path(__file__).resolve().parents[1]
OWN_NAME = "perennial"
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_MARKS = re.compile(r"\s*[~^][~^\s]*")
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))


class RunStopped(SystemExit):
    """This process was asked to stop, and has saved what another one continues from."""


class Interrupted(KeyboardInterrupt):
    """A person pressed Ctrl-C, or a signal asked for the same: not raised by user code."""


class _Timeout(BaseException):
    """Timeout of user code; not an `Exception`, which modules catch around optional imports."""


@contextmanager
def user_code(place: str, *passing: type[BaseException]) -> Iterator[None]:
    """Turn each attempt of user code to end the process into an error.

    Args:
        place: What is called, for the message.
        passing: Exceptions that the caller answers itself.

    Raises:
        BadTaskError: user code raised `SystemExit` or another exception that is not an `Exception`.
    """
    own = (Exception, RunStopped, Interrupted, GeneratorExit, _Timeout)
    try:
        yield
    except own + passing:
        raise
    except BaseException as error:
        # With Python's own handler, Ctrl-C looks like the task's own KeyboardInterrupt.
        is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if isinstance(error, KeyboardInterrupt) and is_default:
            raise
        raise _ended(place, f"{type(error).__name__}: {error}", error.__traceback__) from error


def guarded(function: Callable[P, T]) -> Callable[P, T]:
    """Return the function of a user's class, called inside `user_code`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        with user_code(function.__qualname__):
            return function(*args, **kwargs)

    return call


def guard_methods(kind: type, *, except_of: type) -> None:
    """Guard each function that a user's class defines, except those taken from another class."""
    for name, value in list(vars(kind).items()):
        if inspect.isfunction(value) and value is not vars(except_of).get(name):
            setattr(kind, name, guarded(value))


@contextmanager
def no_silent_exit() -> Iterator[None]:
    """Refuse `os._exit(0)` in this process: its work is not done before this block ends.

    Raises:
        BadTaskError: where it is called, so that the caller's traceback names the line.
    """
    process, leave = os.getpid(), os._exit

    def refuse(status: int = 0) -> NoReturn:
        if status == 0 and os.getpid() == process:  # a forked child may end as it likes
            raise BadTaskError(
                "os._exit(0) was called before the work was done",
                evidence=f"called at {_place_of(reversed([*walk_stack(sys._getframe(1))]))}",
                action="remove the call: it would end the process with success",
            )
        leave(status)

    os._exit = refuse
    try:
        yield
    finally:
        os._exit = leave


@contextmanager
def ctrl_c_is_known() -> Iterator[None]:
    """Raise `Interrupted` at SIGINT, so that Ctrl-C is not taken for the task's own exception."""
    # What is started in the background ignores the signal, and goes on doing so.
    is_answered = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or not is_answered:
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


def import_user_module(name: str, place: str = "") -> ModuleType:
    """Import a user's module, within the time that `PERENNIAL_IMPORT_SECONDS` allows.

    Raises:
        BadTaskError: the module raised, ended the process, or did not return in time.
    """
    if name in sys.modules:
        return sys.modules[name]
    find_old_names()
    what = f"importing {name!r}"
    limit = time_limit(
        seconds_of(IMPORT_SECONDS, default=120.0),
        what,
        f"move work out of the module's top level; {IMPORT_SECONDS} sets the limit",
    )
    try:
        with limit, user_code(what):
            return importlib.import_module(name)
    except BadTaskError:
        raise
    except Exception as error:  # user code may raise anything while it is imported
        raise BadTaskError(
            f"{place}: importing {name!r} failed".removeprefix(": "),
            evidence=f"{type(error).__name__}: {error}",
            action="put the module beside the contract or install its package; "
            f"`python -c 'import {name}'` must work",
        ) from error


def forget_user_modules(folder: Path) -> dict[str, ModuleType]:
    """Let modules that lie in a folder be imported from it again, whatever was imported before.

    Modules of other names, of Python, of installed packages and of Perennial stay. Returns those
    that were forgotten.
    """
    # A folder is a package whatever lies directly in it: its modules may be in folders of its own.
    names = {each.stem for each in folder.iterdir() if each.suffix == ".py" or each.is_dir()}
    names -= {"__main__", OWN_NAME}
    modules = {n: m for n, m in sys.modules.items() if n.partition(".")[0] in names}
    # A package without `__init__.py` has no file, and no path once the one around it is deleted.
    places = {
        name: getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), "")
        for name, module in modules.items()
    }
    forgotten = [name for name, place in places.items() if place and _is_users(place)]
    for name in forgotten:
        del sys.modules[name]
    importlib.invalidate_caches()
    return {name: modules[name] for name in forgotten}


@contextmanager
def time_limit(seconds: float, what: str, action: str) -> Iterator[None]:
    """Interrupt user code when its time is over; only the main thread can be interrupted.

    Raises:
        BadTaskError: the time is over. Code that catches this, or never returns to the
            interpreter, ends the process.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interruptions, pause = 0, min(seconds, INTERRUPTION_SECONDS)

    def too_slow(place: str) -> BadTaskError:
        return BadTaskError(
            f"{what} did not end within {seconds:g} s",
            evidence=f"it was at {place}",
            action=action,
        )

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interruptions
        interruptions += 1
        if interruptions < INTERRUPTIONS:
            raise _Timeout
        place = _place_of(reversed([*walk_stack(frame)]))
        sys.stderr.write(f"perennial: {too_slow(place)}\n")
        sys.stderr.flush()
        os._exit(EXIT_CODE)

    handler = signal.signal(signal.SIGALRM, interrupt)
    begun = time.monotonic()
    before = signal.setitimer(signal.ITIMER_REAL, seconds, pause)
    # For code that never returns to the interpreter: writes where it is, and ends the process.
    last_resort = seconds + INTERRUPTIONS * pause + INTERRUPTION_SECONDS
    if sys.__stderr__ is not None:
        faulthandler.dump_traceback_later(last_resort, exit=True, file=sys.__stderr__)
    try:
        yield
    except _Timeout as error:
        raise too_slow(_place_of(walk_tb(error.__traceback__))) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, handler)
        # A limit around this one goes on with what is left of its time; 0 would switch it off.
        if before[0]:
            rest = max(before[0] - (time.monotonic() - begun), 1e-3)
            signal.setitimer(signal.ITIMER_REAL, rest, before[1])


def _ended(place: str, what: str, trace: TracebackType | None) -> BadTaskError:
    return BadTaskError(
        f"{place} tried to end the process: {what}",
        evidence=f"raised at {_place_of(walk_tb(trace))}",
        action="raise an ordinary exception instead: remove sys.exit, exit or quit",
    )


def place_of(error: BaseException) -> str:
    """Return where the user's own code raised an exception, as `cancer.py:29 in fit`; or empty."""
    seen: BaseException | None = error
    while seen is not None:
        frames = [_named(frame, line) for frame, line in walk_tb(seen.__traceback__)]
        if own := [each for each in frames if _is_users(each[0])]:
            return _format_place(*own[-1])
        seen = seen.__cause__ or seen.__context__
    return ""


def place_in(trace: str) -> str:
    """Return the innermost place in the user's own code of a traceback's text; or empty."""
    own = [each for each in _FRAME.findall(trace) if _is_users(each[0])]
    return _format_place(*own[-1]) if own else ""


def explain(error: BaseException) -> str:
    """Return an error for people: its message, and where the user's own code raised it."""
    place = place_of(error)
    if isinstance(error, PerennialError):
        known = not place or place in str(error)
        return str(error) if known else f"{error}\n  raised:   {place}"
    text = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{text}, raised at {place}" if place else text


def format_traceback(error: BaseException) -> str:
    """Return an exception's traceback, for a log."""
    return without_marks("".join(format_exception(error)))


def shorten_trace(text: str, most: int) -> str:
    """Return the message at the end of a process's output, and the place in the user's own code."""
    lines = [line.rstrip() for line in without_marks(text).splitlines() if line.strip()]
    frames = [number for number, line in enumerate(lines) if _FRAME.search(line)]
    after = lines[frames[-1] + 1 :] if frames else lines
    message = [line for line in after if not (frames and line.startswith("    "))]
    place = place_in(text)
    shown = " / ".join(line.strip() for line in message[-most:])
    return f"{shown} (raised at {place})" if place else shown


def without_marks(trace: str) -> str:
    """Return a traceback without the lines that only underline the one above."""
    return "".join(line for line in trace.splitlines(keepends=True) if not _MARKS.fullmatch(line))


class LogFormatter(logging.Formatter):
    """Formats log records; tracebacks without underlined lines."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        """Return a record's text."""
        return without_marks(super().format(record))


def _place_of(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Return the innermost frame of the user's own; else the innermost."""
    named = [_named(frame, line) for frame, line in frames]
    own = [each for each in named if _is_users(each[0])]
    return _format_place(*(own or named)[-1]) if named else "an unknown place"


def _named(frame: FrameType, line: int) -> tuple[str, int, str]:
    return frame.f_code.co_filename, line, frame.f_code.co_name


def _format_place(file: str, line: int | str, function: str) -> str:
    """Return `cancer.py:29 in fit`; the file as it is imported, so with its packages' folders."""
    path = Path(file)
    roots = [Path(root) for root in sys.path if root and path.is_relative_to(root)]
    root = max(roots, key=lambda each: len(each.parts), default=path.parent)
    return f"{path.relative_to(root)}:{line} in {function}"


def _is_users(file: str) -> bool:
    """Whether a file is neither of Python, nor of an installed package, nor of Perennial."""
    if file.startswith("<") or "site-packages" in file or file.startswith(_LIBRARIES):
        return False
    path = Path(file).resolve()
    roots = [Path(root).resolve() for root in sys.modules[OWN_NAME].__path__]
    inner = next((path.relative_to(root).parts for root in roots if path.is_relative_to(root)), ())
    # A registered model carries a copy of Perennial, whose reference tasks are examples for users.
    if not inner and OWN_NAME in path.parts:
        after = path.parts[len(path.parts) - path.parts[::-1].index(OWN_NAME) :]
        inner = after if len(after) > 1 and (_OWN / after[0]).is_dir() else ()
    return not inner or inner[0] == "tasks"


def end_soon(code: int) -> None:
    """End this process within seconds, whatever threads and exit handlers the task has left.

    For a process whose work is done and written. Python waits without limit for threads that are
    not daemons and for handlers of `atexit`, so a module that starts one would never let it end.
    """
    threading.Thread(target=_end, args=(code, os._exit), daemon=True).start()


def _end(code: int, end: Callable[[int], NoReturn]) -> None:
    time.sleep(END_SECONDS)
    main = threading.main_thread()
    names = [each.name for each in threading.enumerate() if not each.daemon and each is not main]
    left = f"the threads {', '.join(names)}" if names else "handlers of atexit"
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            if stream is sys.stderr:
                stream.write(
                    f"perennial: the work is done, but {left} of the task did not end within "
                    f"{END_SECONDS:g} s: the process is ended\n"
                )
            stream.flush()
    end(code)
