"""Run lease: every process of a local run ends when its supervisor does, whatever killed it.

The supervisor holds an exclusive lock on `lease`; the operating system drops it when the process
dies, even by SIGKILL. Every process of the run holds a shared lock on `members` and watches the
lease, so a new supervisor can wait until nobody of the old run writes any more. Locks, unlike
process ids, are never reused, and see through the sessions of a training's ranks.
"""

import fcntl
import os
import sys
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import IO

from perennial.contracts.environment import LEASE
from perennial.contracts.errors import PerennialError

POLL_SECONDS = 0.3
EXIT_CODE = 75  # EX_TEMPFAIL of sysexits.h: try again later

_memberships: list[IO[str]] = []
_followers: set[int] = set()


class RunLease:
    """The supervisor's side of a lease: only one run at a time may use the folder.

    Errors name the subject: what is run there; the folder itself if it is empty.
    """

    def __init__(self, folder: Path, subject: str = "") -> None:
        self.path = folder / "lease"
        self._subject = subject or str(folder)
        self.token = f"{os.getpid()}-{time.time_ns()}"
        self._stream: IO[str] | None = None

    def variables(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return this process's environment variables, adapted for processes of the run."""
        return {
            # Set by KFP's executor; with it, importing kfp fails in child processes.
            **{name: value for name, value in environment.items() if name != "_KFP_RUNTIME"},
            # They import what this process can import: the task may lie beside the contract.
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            LEASE: self.address,
        }

    def acquire(self, timeout_seconds: float = 20.0) -> None:
        """Become the supervisor, after the processes of a dead one have ended.

        Raises:
            PerennialError: another supervisor is alive, or its processes do not end.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # Not "w", which would erase the token of the run that holds the lock.
        stream = self.path.open("a+")
        # A dying member may hold the lock for the instant between noticing and ending.
        if not _lock_within(stream, 2 * POLL_SECONDS):
            stream.seek(0)
            pid, holder = _describe_holder(stream.read(), self._holder)
            stream.close()
            raise PerennialError(
                f"another run is active for {self._subject}",
                evidence=holder,
                action=f"wait for it, or stop it with Ctrl-C or `kill {pid}`",
            )
        self._stream = stream
        stream.truncate(0)
        stream.write(self.token)
        stream.flush()
        if not self.wait_for_members(timeout_seconds):
            self.release()
            raise PerennialError(
                "processes of an earlier run are still alive",
                evidence=f"{self.path.with_name('members')} is locked",
                action="wait a little and run again; `fuser` on that file names them",
            )

    def name_work(self, work: str) -> None:
        """Record what is done under this lease, for those who find it taken."""
        self._holder.write_text(f"{self.token} {work}")

    @property
    def _holder(self) -> Path:
        return self.path.with_name("holder")

    def wait_for_members(self, timeout_seconds: float) -> bool:
        """Whether every process of the run has ended within the time."""
        with self.path.with_name("members").open("a+") as members:
            return _lock_within(members, timeout_seconds)

    @property
    def address(self) -> str:
        """Address of the lease for members of this run, and of no later one."""
        return f"{self.path}#{self.token}"

    def release(self) -> None:
        """Give the lease up; members that are still alive end themselves."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def is_held(folder: Path) -> bool:
    """Whether a supervisor is alive that runs something in this folder."""
    if not (folder / "lease").exists():
        return False
    with (folder / "lease").open() as stream:
        return not _try_lock(stream, fcntl.LOCK_SH)


def _describe_holder(token: str, record: Path) -> tuple[str, str]:
    """Return the process that holds a lease, and since when and with what, in words."""
    pid, _, moment = token.partition("-")
    if not moment.isdecimal():
        return "PID", "its process has just started"
    since = datetime.fromtimestamp(int(moment) / 1e9, UTC)
    work = record.read_text() if record.exists() else ""
    known = work.removeprefix(f"{token} ") if work.startswith(f"{token} ") else ""
    return pid, f"process {pid} since {since:%Y-%m-%d %H:%M:%S} UTC{known and f': {known}'}"


def join_lease() -> None:
    """Join the run named by the environment: the next run waits until this process has ended.

    Does nothing outside a local run.
    """
    path, _, token = os.environ.get(LEASE, "").rpartition("#")
    if not path:
        return
    members = Path(path).with_name("members").open("a+")  # held until the process ends
    fcntl.flock(members, fcntl.LOCK_SH)
    _memberships.append(members)
    # A process that was still starting when its supervisor died must not join the next run.
    if Path(path).read_text() != token:
        os._exit(EXIT_CODE)


def follow_lease() -> None:
    """Join the run, and end this process soon after its supervisor; nothing outside a local run."""
    path, _, token = os.environ.get(LEASE, "").rpartition("#")
    if not path or os.getpid() in _followers:
        return
    join_lease()
    _followers.add(os.getpid())  # a fork of this process has no such thread yet
    threading.Thread(target=_end_with_supervisor, args=(Path(path), token), daemon=True).start()


def _end_with_supervisor(lease: Path, token: str) -> None:
    with lease.open("a+") as stream:
        # The next supervisor may lock the file between two checks; then the file has its token.
        while not _try_lock(stream, fcntl.LOCK_SH) and _content(stream) == token:
            time.sleep(POLL_SECONDS)
    os._exit(EXIT_CODE)


def _content(stream: IO[str]) -> str:
    stream.seek(0)
    return stream.read()


def _lock_within(stream: IO[str], timeout_seconds: float) -> bool:
    deadline = time.monotonic() + timeout_seconds
    while not _try_lock(stream, fcntl.LOCK_EX):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS / 3)
    return True


def _try_lock(stream: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(stream, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
