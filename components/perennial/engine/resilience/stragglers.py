"""Stragglers: finds the process that all others wait for.

Timers of forward and backward pass do not show it, because every rank waits inside them. The time
spent in collectives does: the rank that waits least is the one waited for.
"""

import logging
import math
import statistics
import time

import torch
from torch.profiler import ProfilerActivity, profile

from perennial.contracts.training import CollectiveWaits
from perennial.engine.config.training import Stragglers
from perennial.engine.world.distributed import World

SAMPLE_STEPS = 4
# Of a step. In 48 samples of healthy trainings (2 and 3 processes, steps of milliseconds, cores
# shared with ten times as many processes) 46 lay below it, and never did two in a row above it name
# one rank; a rank that is 1.5 times as slow as the others gives 0.33.
NOTABLE_SHARE = 0.25
# Of NCCL on the device and of gloo on the host.
COLLECTIVES = ("ncclDevKernel", "ncclKernel", "gloo:")
logger = logging.getLogger(__name__)


class StragglerProbe:
    """Traces a few steps at intervals, and compares the ranks."""

    def __init__(
        self, settings: Stragglers, world: World, samples: tuple[CollectiveWaits, ...]
    ) -> None:
        self._every = settings.every_steps if world.size > 1 else None
        self._world = world
        self._trace: profile | None = None
        self._start = 0.0
        self._seconds: list[float] = []
        self._waits: list[float] = []
        self.samples = samples

    def before(self, step: int) -> None:
        """Begin a trace, if step (counted from 1) belongs to a sample."""
        if self._every is None or step < self._every or step % self._every >= SAMPLE_STEPS:
            return
        self._start = self._now()
        # Two profilers cannot trace one step; missing in the stub.
        if not torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
            activities = [ProfilerActivity.CPU]
            if self._world.device.type == "cuda":
                activities.append(ProfilerActivity.CUDA)
            self._trace = profile(activities=activities)
            self._trace.start()

    def after(self, step: int) -> None:
        """End the trace; after the sample's last step, compare the ranks."""
        if not self._start:
            return
        self._seconds.append(self._now() - self._start)
        self._waits.append(self._waited())
        self._start, self._trace = 0.0, None
        if self._every is not None and step % self._every == SAMPLE_STEPS - 1:
            self._compare(step)
            self._seconds, self._waits = [], []

    def _now(self) -> float:
        """Return the time when the device is done, where waits are measured: a sample may cost."""
        if self._world.device.type == "cuda":
            torch.cuda.synchronize(self._world.device)
        return time.monotonic()

    def _waited(self) -> float:
        """Return the seconds of this step in collectives; NaN when something else traced it."""
        if self._trace is None:
            return math.nan
        self._trace.stop()
        results = self._trace.profiler.kineto_results if self._trace.profiler else None
        events = results.events() if results else []
        return sum(e.duration_ns() for e in events if e.name().startswith(COLLECTIVES)) / 1e9

    def _compare(self, step: int) -> None:
        size, rank = self._world.size, self._world.rank
        measured = torch.zeros(size + 1, dtype=torch.float64, device=self._world.device)
        measured[rank] = statistics.median(self._waits)
        measured[size] = statistics.median(self._seconds) / size
        *waits, seconds = self._world.sum(measured).tolist()
        if not all(map(math.isfinite, waits)):
            return
        sample = CollectiveWaits(
            step=step,
            wait_seconds=tuple(waits),
            step_seconds=seconds,
            slow_rank=slow_rank(waits, seconds),
        )
        before = self.samples[-1].slow_rank if self.samples else None
        self.samples = (*self.samples, sample)
        # One sample may be chance: another program may have used the processor.
        if sample.slow_rank is not None and sample.slow_rank == before and self._world.is_first:
            logger.warning("step=%d %s", step, describe(sample))


def slow_rank(waits: list[float], step_seconds: float) -> int | None:
    """Return the rank that waits least if all others wait clearly longer; else None."""
    least, second = sorted(waits)[:2]
    return waits.index(least) if second - least > NOTABLE_SHARE * step_seconds else None


def describe(sample: CollectiveWaits) -> str:
    """Describe a sample with a slow rank."""
    waits = list(sample.wait_seconds)
    own = waits.pop(sample.slow_rank or 0)
    others = statistics.median(waits)
    return (
        f"rank {sample.slow_rank} is slow: in a step of {sample.step_seconds * 1e3:.1f} ms it "
        f"waits {own * 1e3:.1f} ms for others, the others {others * 1e3:.1f} ms"
    )
