"""Watchdog: detects a hang, where it is, and which rank the others wait for.

A thread of every rank watches how long the current part of a step takes. Ranks exchange their state
by files, because a rank that hangs cannot take part in a collective. The thread needs the
interpreter's lock; a rank whose main thread never releases it writes no file, and is named for
that.
"""

import faulthandler
import logging
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import torch.distributed as dist

from perennial.clients.outages import single_attempts
from perennial.contracts.artifact import write_atomically
from perennial.contracts.section import Section
from perennial.engine.config.training import Watchdog as WatchdogSection
from perennial.engine.handover import deliver, fetch_errors
from perennial.engine.job import RankFailure, TrainingJob
from perennial.engine.world.distributed import World

Phase = Literal["update", "evaluation", "checkpoint"]
REMEMBERED = 50  # durations that the median is taken of
GRACE_SECONDS = 5.0  # for the other ranks' files, whose clocks started within a step
logger = logging.getLogger(__name__)


class Hang(Section):
    """State of one rank."""

    rank: int
    step: int
    """Updates finished."""
    phase: Phase
    """Its current phase."""
    collectives: int
    """Started by this process: of ranks at one step, the one with the fewest is behind."""


class _Current(NamedTuple):
    phase: Phase
    step: int
    since: float


class Watchdog:
    """Watches one rank, and writes the marker of the attempt's first finished step."""

    def __init__(self, settings: WatchdogSection, job: TrainingJob, world: World) -> None:
        self._settings = settings
        self._job = job
        self._world = world
        self._durations: dict[Phase, deque[float]] = {
            phase: deque(maxlen=REMEMBERED) for phase in get_args(Phase)
        }
        self._current: _Current | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        if settings.hang_factor is not None:
            self._thread.start()

    def begin(self, phase: Phase, step: int) -> None:
        """Set the current phase of the loop, after `step` updates."""
        now, before = time.monotonic(), self._current
        if before is not None:
            durations = self._durations[before.phase]
            if before.phase == "update" and not durations:
                self._job.first_step.touch()
                # Beside the loop, which need not wait for a store that does not answer.
                sent = (self._job, self._job.first_step)
                threading.Thread(target=deliver, args=sent, daemon=True).start()
            durations.append(now - before.since)
        self._current = _Current(phase, step, now)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def limit(self, phase: Phase) -> float | None:
        """Return the limit of a phase in seconds; None before one has ended: it may be compiling.

        A checkpoint has no limit. The duration of a write does not predict the next one, and the
        processes wait together: ending them would repeat the same write endlessly.
        """
        durations = list(self._durations[phase])
        if not durations or phase == "checkpoint" or self._settings.hang_factor is None:
            return None
        return max(
            self._settings.minimum_seconds,
            self._settings.hang_factor * statistics.median(durations),
        )

    def _watch(self) -> None:
        reported: _Current | None = None
        while not self._closed.wait(min(1.0, self._settings.minimum_seconds / 4)):
            current = self._current
            limit = current and self.limit(current.phase)
            if current is None or limit is None:
                continue
            seconds = time.monotonic() - current.since
            if seconds > limit and reported is not current:
                reported = current
                self._report(current, limit)
            # Later than the report: `_fail` reads what all ranks have written at the limit.
            elif seconds > 2 * limit and self._settings.on_hang == "fail":
                self._fail(current, seconds)

    def _report(self, current: _Current, limit: float) -> None:
        """Write this rank's state and stack traces, then report which rank is behind."""
        own = Hang(
            rank=self._world.rank,
            step=current.step,
            phase=current.phase,
            collectives=collectives_started(),
        )
        folder = self._job.errors
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"hang-rank-{own.rank}.txt").open("w") as file:
            file.write(f"{_place(own)}, for more than {limit:.1f} s\n\n")
            file.flush()
            faulthandler.dump_traceback(file, all_threads=True)
        write_atomically(folder / f"hang-rank-{own.rank}.json", own.to_json().encode())
        with single_attempts():
            deliver(self._job, *folder.glob(f"hang-rank-{own.rank}.*"))
        self._closed.wait(min(GRACE_SECONDS, limit / 2))
        # A step that was only slow has ended by now: there is no hang to report.
        if self._current is current:
            with single_attempts():
                fetch_errors(self._job)
            logger.error("%s", describe(read_hangs(folder), self._world.size))

    def _fail(self, current: _Current, seconds: float) -> None:
        """End this process, whose main thread does not respond."""
        with single_attempts():
            fetch_errors(self._job)
        seen = read_hangs(self._job.errors)
        late = behind(seen, self._world.size)
        present = sorted(each.rank for each in seen)
        speakers = sorted(late & set(present)) or present
        failure = RankFailure(
            rank=self._world.rank,
            step=current.step + 1,
            type="Hang",
            message=f"no progress for {seconds:.0f} s; {describe(seen, self._world.size)}",
            traceback=(self._job.errors / f"hang-rank-{self._world.rank}.txt").read_text(),
            time=time.time(),
            # All ranks end like this one; the launcher reports one of them, if possible one that is
            # behind.
            is_consequence=self._world.rank != speakers[0],
            is_hang=True,
        )
        write_atomically(
            self._job.errors / f"rank-{self._world.rank}.json", failure.to_json().encode()
        )
        with single_attempts():
            deliver(self._job, self._job.errors / f"rank-{self._world.rank}.json")
        logger.error("ended: %s", failure.message)
        # `sys.exit` would end this thread only; `os._exit` flushes nothing, so the log is closed
        # first.
        logging.shutdown()
        os._exit(1)


def read_hangs(folder: Path) -> list[Hang]:
    """Load the states that ranks have written."""
    return [Hang.from_json(path.read_bytes()) for path in folder.glob("hang-rank-*.json")]


def behind(seen: Iterable[Hang], world_size: int) -> set[int]:
    """Return the ranks that the others wait for; empty when all are equally far."""
    places = {each.rank: (each.step, each.collectives) for each in seen}
    silent = set(range(world_size)) - set(places)
    if silent:
        return silent
    least, most = min(places.values()), max(places.values())
    return {rank for rank, place in places.items() if place == least} if least < most else set()


def describe(seen: list[Hang], world_size: int) -> str:
    """Describe the state of every rank, in one line."""
    late = behind(seen, world_size)
    places = "; ".join(_place(each) for each in sorted(seen, key=lambda each: each.rank))
    if not late:
        return f"all ranks hang at the same place; check network and storage: {places}"
    silent = late - {each.rank for each in seen}
    sign = " and reports no progress" if silent else ""
    names = ", ".join(map(str, sorted(late)))
    return f"rank {names} is behind{sign}, the others wait for it: {places}; stacks are in errors/"


def collectives_started() -> int:
    """Count the collectives that this process started, in all its groups."""
    if not dist.is_initialized():
        return 0
    return sum(
        group._get_sequence_number_for_group()  # type: ignore[attr-defined]  # missing in the stub
        for group in dist.distributed_c10d._world.pg_map
    )


def _place(at: Hang) -> str:
    return (
        f"rank {at.rank} finished step {at.step} and {at.collectives} collectives, then stopped "
        f"in its next {at.phase}"
    )
