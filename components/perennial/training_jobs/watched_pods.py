"""Watched pods: current and last observed views of one job's pods."""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from perennial.clients.api_server import PODS
from perennial.clients.cluster import Cluster, Object
from perennial.contracts.errors import PerennialError
from perennial.training_jobs.job_kind import JobKind
from perennial.training_jobs.pods import PodView
from perennial.training_jobs.poll_intervals import PollIntervals
from perennial.training_jobs.selectors import pods_of
from perennial.training_jobs.status import DELETED

logger = logging.getLogger(__name__)


class WatchedPods:
    """The pods of a job, deleted ones included, because their end must not be forgotten."""

    def __init__(self, cluster: Cluster, kind: JobKind, name: str, ended: threading.Event) -> None:
        self._kind = kind
        self._changed = threading.Event()
        self._ended = ended
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
        self._changed.clear()

    @property
    def present(self) -> set[str]:
        """Return the uids of existing pods."""
        return {pod["metadata"]["uid"] for pod in self._now.values()}

    def seen(self) -> list[PodView]:
        """Return existing pods, and deleted ones that had started."""
        return [pod for _, pod in self.by_machine()]

    def by_machine(self) -> list[tuple[int, PodView]]:
        """Return machine number and view of each of these pods."""
        now = dict(self._now)
        present = {pod["metadata"]["uid"] for pod in now.values()}
        for pod in now.values():
            view, machine = self._kind.pod_view(pod), self._kind.rank_of(pod)
            self.machines.add(machine)
            self._last[view.uid] = (machine, view)
        for uid, (machine, view) in list(self._last.items()):
            if uid in present:
                continue
            if not view.has_started:
                del self._last[uid]
            elif not view.has_ended:
                why = view.disruption or DELETED
                gone = replace(view, phase="Failed", disruption=why, is_leaving=True)
                self._last[uid] = (machine, gone)
        return sorted(self._last.values(), key=lambda each: each[0])

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
