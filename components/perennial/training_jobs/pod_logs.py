"""Pod logs: follow the logs of every pod of an attempt, show the first rank's, and keep all."""

import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path

from urllib3.exceptions import HTTPError

from perennial.clients.api_server import NOT_FOUND, ApiError
from perennial.clients.cluster import Cluster
from perennial.training_jobs.pods import PodView

OTHER_RANK = re.compile(r" rank=[1-9]\d* ")
# The kubelet closes logs soon after their containers ended.
CLOSING_SECONDS = 10.0
logger = logging.getLogger(__name__)


class PodLogs:
    """One thread and one file for each pod that has started.

    Args:
        cluster: The namespace of the pods.
        container: The container to follow.
        folder: Where `<pod>.log` is written.
        shown: File that also receives the first rank's lines.
        pause_seconds: Pause before a log is requested again.
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
        """Follow the pods that have started.

        Args:
            pods: Machine number and view of each pod.
        """
        for machine, pod in pods:
            if pod.has_ended or pod.is_leaving:
                self._ended.add(pod.uid)
            if pod.has_started and pod.uid not in self._threads:
                file = self._folder / f"pod-{machine}-{pod.uid[:8]}.log"
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
                    if pod.uid in self._ended:
                        return
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
    return moment.strftime("%Y-%m-%dT%H:%M:%S"), stamp[len("2026-01-01T00:00:00") :]
