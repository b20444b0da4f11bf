"""Processes from the standard library's fork server, which has imported the engine already.

A new interpreter imports for three seconds. A fork of a step would lose the threads that PyTorch
and Polars have started in it. The fork server has imported the engine and done nothing else, so
that its forks are safe, also where they use CUDA.
"""

import gc
import importlib
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from perennial.contracts.errors import PerennialError

# It imports the worker, too. A string, because this module is imported without PyTorch.
PRELOADED = "perennial.check_skeleton.trials.rank"
# One for each process, which its functions of the same names use.
_SERVER: Any = forkserver._forkserver
_CHILDREN: set[Any] = multiprocessing.process._children  # type: ignore[attr-defined]
_starting = threading.Lock()  # held while the variables and the main module are others
MAX_SOCKET_FOLDER, SHORT_TEMPORARY_FOLDER = 75, "/tmp"
# Keeps glibc from returning every large tensor to the system and faulting it in again: 5 to 16 %
# of a step on a CPU. It is read when an interpreter starts.
MALLOC = {
    "MALLOC_MMAP_THRESHOLD_": "1073741824",
    "MALLOC_TRIM_THRESHOLD_": "4294967296",
    "MALLOC_TOP_PAD_": "67108864",
}


def start_fork_server() -> None:
    """Start the fork server if it is not running; it imports in the background.

    A socket's path has at most 107 bytes, 32 of which the standard library uses for its own names;
    in a longer TMPDIR the socket could not be made, so it lies in `/tmp` then.
    """
    forkserver.set_forkserver_preload([PRELOADED])
    usual = tempfile.gettempdir()
    if len(os.fsencode(usual)) > MAX_SOCKET_FOLDER:
        tempfile.tempdir = SHORT_TEMPORARY_FOLDER
    before = {name: os.environ.get(name) for name in MALLOC}
    os.environ.update(MALLOC)
    try:
        _SERVER.ensure_running()
    finally:
        tempfile.tempdir = usual
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def share_fork_server() -> None:
    """Use the running fork server in a fork of the process that started it.

    The standard library looks for its server among the children of this process only.
    """
    if _SERVER._forkserver_address is not None:
        _SERVER.ensure_running = lambda: None


def start_processes(
    target: Callable[..., None], arguments: Sequence[tuple[object, ...]]
) -> list[ForkServerProcess]:
    """Start a process of the fork server for each tuple of arguments; all of them, or none.

    Several threads may start processes; each thread waits for its own.

    Raises:
        PerennialError: the fork server that this process shares was killed.
    """
    with _starting:
        start_fork_server()
        context = multiprocessing.get_context("forkserver")
        processes = [context.Process(target=target, args=each) for each in arguments]
        # Children would run the user's script again, which may lack `if __name__ == "__main__"`.
        main, sys.modules["__main__"] = sys.modules["__main__"], ModuleType("__main__")
        try:
            for process in processes:
                process.start()
                # The next start would ask after it, in its own thread, and take its exit code from
                # the thread that waits for it.
                _CHILDREN.discard(process)
        except BaseException as error:
            for process in processes:
                kill_process(process)
            if isinstance(error, ConnectionError | EOFError):
                raise PerennialError(
                    "no process can be started: the fork server was killed",
                    evidence=str(error),
                    action="run the command again, which starts another one",
                ) from error
            raise
        finally:
            sys.modules["__main__"] = main
        return processes


def run_module(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
) -> None:
    """Do what `python -m MODULE ARGUMENTS` does, in a process of the fork server.

    The process leads its own session: Ctrl-C reaches the whole foreground group.

    Args:
        module: Name of a module with a function `main`, which returns the exit code.
        arguments: `sys.argv` behind the module's name.
        environment: All environment variables of the process.
        log: File to which its output is appended.
    """
    enter_process(environment, log)
    sys.argv = [module, *arguments]
    code = importlib.import_module(module).main()
    # As these modules end by themselves. A usual exit would wait for their own processes, such as
    # those that encode rows, which end after this one.
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def enter_process(environment: Mapping[str, str], log: Path) -> None:
    """Give this process a session, an environment and a file for its output of its own."""
    # The collector would visit all that the fork server imported, and so copy its pages: measured
    # at half of the CPU time of a training of 20 steps.
    gc.freeze()
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)


def name_process(name: str) -> None:
    """Set the name that `ps`, `top` and `pgrep` show for this process: 15 letters, on Linux."""
    if sys.platform == "linux":
        Path("/proc/self/comm").write_text(name)


def wait_for_processes(
    processes: Sequence[ForkServerProcess], grace_seconds: float
) -> dict[int, int]:
    """Wait until processes that need each other have ended.

    When one fails, the others get SIGTERM and, after `grace_seconds`, SIGKILL.

    Returns: The exit codes by the number of the process, in the order in which they ended.
    """
    alive = dict(enumerate(processes))
    codes: dict[int, int] = {}
    deadline: float | None = None
    while alive:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        connection.wait([each.sentinel for each in alive.values()], left)
        ended = {number: p.exitcode for number, p in alive.items() if p.exitcode is not None}
        codes |= ended
        alive = {number: process for number, process in alive.items() if number not in ended}
        if deadline is None and any(ended.values()):
            deadline = time.monotonic() + grace_seconds
            send_signal(list(alive.values()), signal.SIGTERM)
        elif deadline is not None and time.monotonic() >= deadline:
            send_signal(list(alive.values()), signal.SIGKILL)
            deadline = time.monotonic() + grace_seconds
    return codes


def send_signal(processes: Sequence[ForkServerProcess], number: signal.Signals) -> None:
    """Send a signal to those of the processes that have not ended."""
    for process in processes:
        if process.pid is not None and process.is_alive():
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(process.pid, number)


@contextmanager
def running_processes(
    target: Callable[..., None], arguments: Sequence[tuple[object, ...]]
) -> Iterator[list[ForkServerProcess]]:
    """Start a process for each tuple of arguments; kill what is left of them at the end."""
    processes = start_processes(target, arguments)
    try:
        yield processes
    finally:
        for process in processes:
            kill_process(process)


def kill_process(process: ForkServerProcess) -> None:
    """Kill a process and those that it has started; it leads its own session."""
    if process.pid is None:  # not started
        return
    with suppress(ProcessLookupError):  # all have ended
        os.killpg(process.pid, signal.SIGKILL)
    # It leads no session before `enter_process`: until then there was no group to kill.
    process.kill()
    process.join()
