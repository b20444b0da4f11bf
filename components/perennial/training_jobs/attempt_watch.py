"""Attempt watch: the pods of an attempt, their logs, its curves and its heartbeat."""

import logging
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from urllib3.exceptions import HTTPError

from perennial.clients.cluster import NOT_FOUND, PODS, ApiError, Cluster, Object
from perennial.clients.object_store import open_store
from perennial.clients.outages import errors_logged
from perennial.contracts.errors import PerennialError
from perennial.engine.handover import (
    CURVES,
    forget_attempt,
    is_rendezvous_complete,
    write_heartbeat,
)
from perennial.engine.job import Job
from perennial.training_jobs.launcher import PollIntervals
from perennial.training_jobs.leftovers import pods_of
from perennial.training_jobs.manifests import JobKind
from perennial.training_jobs.status import DELETED, PodView

logger = logging.getLogger(__name__)


class WatchedPods:
    """The pods of an attempt, deleted ones included, because their end must not be forgotten.

    `earlier` are uids of pods of its job's earlier attempts, which may be slow to leave.
    """

    def __init__(
        self,
        cluster: Cluster,
        kind: JobKind,
        name: str,
        ended: threading.Event,
        earlier: Iterable[str] = (),
    ) -> None:
        self._kind = kind
        self._earlier = frozenset(earlier)
        self._changed = threading.Event()
        self._ended = ended
        # The watching thread replaces it as a whole and never changes it, so readers need no lock.
        self._now: Mapping[str, Object] = {}
        self._last: dict[str, tuple[int, PodView]] = {}
        self.machines: set[int] = set()
        """Machines that ever had a pod."""
        selector = pods_of(kind.resource, name)
        threading.Thread(target=self._watch, args=(cluster, selector), daemon=True).start()

    def wait(self, intervals: PollIntervals) -> None:
        """Wait until something has changed, or the poll interval has passed."""
        self._changed.wait(intervals.poll)
        # Many pods change at once.
        time.sleep(intervals.shortest)
        # Before the caller reads the pods: a change after that sets it again.
        self._changed.clear()

    @property
    def present(self) -> set[str]:
        """Return the uids of existing pods."""
        return {pod["metadata"]["uid"] for pod in self._existing()}

    def seen(self) -> list[PodView]:
        """Return existing pods, and deleted ones that had started."""
        return [pod for _, pod in self.by_machine()]

    def by_machine(self) -> list[tuple[int, PodView]]:
        """Return machine number and view of each of these pods."""
        now = self._existing()
        present = {pod["metadata"]["uid"] for pod in now}
        for pod in now:
            view, machine = PodView.of(pod, self._kind.container), self._kind.rank_of(pod)
            self.machines.add(machine)
            self._last[view.uid] = (machine, view)
        for uid, (machine, view) in list(self._last.items()):
            if uid in present:
                continue
            if not view.has_started:  # it has left no evidence
                del self._last[uid]
            elif not view.has_ended:
                # It ran when it was last seen, and its exit code went with it.
                why = view.disruption or DELETED
                gone = replace(view, phase="Failed", disruption=why, is_leaving=True)
                self._last[uid] = (machine, gone)
        return sorted(self._last.values(), key=lambda each: each[0])

    def _existing(self) -> list[Object]:
        now = self._now.values()
        return [pod for pod in now if pod["metadata"]["uid"] not in self._earlier]

    def _watch(self, cluster: Cluster, selector: str) -> None:
        while not self._ended.is_set():
            try:
                for objects in cluster.watch(PODS, selector, self._ended):
                    self._now = objects
                    self._changed.set()
            except PerennialError as error:
                # The main thread asks the same server, and raises if that keeps failing.
                logger.warning("pods cannot be watched: %s", error)
                self._ended.wait(1.0)


# A machine's log has the lines of all its ranks; people follow the first rank alone.
OTHER_RANK = re.compile(r" rank=[1-9]\d* ")
# The kubelet closes logs soon after their containers ended.
CLOSING_SECONDS = 10.0


class PodLogs:
    """One thread and one file, `<pod>.log` in `folder`, for each pod that has started.

    `shown` receives the first rank's lines as well; after a pause, a lost log is requested again.
    """

    def __init__(
        self, cluster: Cluster, container: str, folder: Path, shown: Path, pause_seconds: float
    ) -> None:
        self._cluster = cluster
        self._container = container
        self._folder = folder
        self._shown = shown
        self._pause_seconds = pause_seconds
        self._threads: dict[str, threading.Thread] = {}
        self.files: list[Path] = []
        """The log files, one per pod."""
        self._ended: set[str] = set()
        self._closed = threading.Event()

    def follow(self, pods: Iterable[tuple[int, PodView]]) -> None:
        """Follow those of the pods that have started, given by machine number and view."""
        for machine, pod in pods:
            if pod.has_ended or pod.is_leaving:
                self._ended.add(pod.uid)
            if pod.has_started and pod.uid not in self._threads:
                file = self._folder / f"pod-{machine}-{pod.uid[:8]}.log"
                # `keep_logs` may ask for its size before the thread has opened it.
                file.touch()
                self.files.append(file)
                thread = threading.Thread(target=self._copy, args=(machine, pod, file), daemon=True)
                self._threads[pod.uid] = thread
                thread.start()

    def close(self) -> None:
        """Read the rest of the logs, then stop."""
        self._ended.update(self._threads)
        deadline = time.monotonic() + CLOSING_SECONDS
        for thread in self._threads.values():
            thread.join(max(0.0, deadline - time.monotonic()))
        self._closed.set()

    def _copy(self, machine: int, pod: PodView, path: Path) -> None:
        last = ("", "")
        with path.open("a") as file:
            while not self._closed.is_set():
                known = last
                try:
                    since = f"{known[0]}Z" if known[0] else ""
                    for line in self._cluster.log_lines(pod.name, self._container, since):
                        stamp, _, text = line.partition(" ")
                        moment = _moment(stamp)
                        if moment is None:
                            continue  # a line of the kubelet
                        last = moment
                        # Resume at the second in which the connection was lost.
                        if last > known:
                            self._take(file.write, machine, text)
                            file.flush()
                except ApiError as error:
                    if error.status == NOT_FOUND:
                        return
                except HTTPError as error:
                    logger.debug("following the log of %s again: %s", pod.name, error)
                else:
                    # A stream that closes while the pod runs is a lost connection, not an end.
                    if pod.uid in self._ended:
                        return
                # The connection may be lost again while repeated lines are skipped.
                last = max(last, known)
                self._closed.wait(self._pause_seconds)

    def _take(self, write: Callable[[str], int], machine: int, text: str) -> None:
        write(f"{text}\n")
        if machine == 0 and not OTHER_RANK.search(text):
            logger.info("%s", text)
            with self._shown.open("a") as shown:
                shown.write(f"{text}\n")


def _moment(stamp: str) -> tuple[str, str] | None:
    """Parse a line's time stamp into second, in UTC, and fraction; None if it is not a time.

    The machine's time need not be UTC, and has more digits than Python keeps.
    """
    try:
        moment = datetime.fromisoformat(stamp).astimezone(UTC)
    except ValueError:
        return None
    # The kubelet writes nine digits in every fraction, so texts compare as the times do.
    return moment.strftime("%Y-%m-%dT%H:%M:%S"), stamp[len("2026-01-01T00:00:00") :]


@contextmanager
def heartbeats(job: Job, every_seconds: float) -> Iterator[None]:
    """Write heartbeats periodically, in a thread, while the block runs."""
    ended = threading.Event()

    def write() -> None:
        is_over = False
        while not is_over:
            with errors_logged("the heartbeat cannot be written", PerennialError):
                # Not a time: the ranks look for a change, so that clocks need not agree.
                write_heartbeat(job, secrets.token_hex(8))
            is_over = ended.wait(every_seconds)

    thread = threading.Thread(target=write, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()  # not joined: the store may be unavailable, and the thread is a daemon


class AttemptFiles:
    """Files of one attempt. If the store is unavailable, they are late; the training goes on."""

    def __init__(self, job: Job, intervals: PollIntervals) -> None:
        self._job = job
        self._intervals = intervals
        self._is_complete: bool | None = None  # None: unknown
        self._num_bytes = 0
        self._sizes: dict[Path, int] = {}
        self._next_curves = 0.0
        self._next_logs = time.monotonic() + intervals.logs

    def is_rendezvous_complete(self) -> bool:
        """Whether the rendezvous of all ranks is complete; the last answer if it is unknown."""
        if not self._is_complete:
            with errors_logged("cannot check whether the rendezvous is complete", PerennialError):
                self._is_complete = is_rendezvous_complete(self._job)
        # Unknown counts as complete: an outage of the store must not use up `starting_minutes`.
        return self._is_complete is not False

    def fetch_curves(self) -> None:
        """Append new curve points of the attempt to the local file."""
        if time.monotonic() < self._next_curves:
            return
        self._next_curves = time.monotonic() + self._intervals.curves
        with errors_logged("curves cannot be read at present", PerennialError):
            content = open_store(self._job.attempt_uri).read(f"logs/{CURVES}") or b""
            with (self._job.logs / CURVES).open("ab") as file:
                # Objects cannot be appended to: the first rank uploads the whole file each time.
                file.write(content[self._num_bytes :])
            self._num_bytes = len(content)

    def keep_logs(self, files: Iterable[Path], *, is_last: bool = False) -> bool:
        """Upload the pods' logs that have grown, so that they outlive the pods and this step.

        True when all that was read of them is in the store.
        """
        if time.monotonic() < self._next_logs and not is_last:
            return False
        self._next_logs = time.monotonic() + self._intervals.logs
        with errors_logged(
            f"logs cannot be uploaded and are only in {self._job.logs}", PerennialError
        ):
            for file in files:
                size = file.stat().st_size
                if size != self._sizes.get(file):
                    open_store(self._job.attempt_uri).upload(f"logs/{file.name}", file)
                    self._sizes[file] = size
            return True
        return False

    def forget(self) -> None:
        """Delete the markers of earlier pods, which would be taken for those of the next ones."""
        try:
            forget_attempt(self._job)
        except PerennialError as error:
            logger.warning("markers of earlier pods cannot be deleted: %s", error)
