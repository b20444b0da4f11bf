"""Profiler: traces a few updates of each rank; the first rank reports the bottleneck."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from perennial.contracts.training import Bottleneck
from perennial.engine.config.training import Profile
from perennial.engine.data.loader import Encoding
from perennial.engine.profiling.bottleneck import Operation, Trace, find_bottleneck

# Parts of the names of operations (CPU) and kernels (GPU) whose work grows faster than their data.
COMPUTING = (
    *("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "conv", "attention", "gemm"),
    *("cutlass", "cudnn", "xmma", "flash", "mkldnn_linear", "_grouped_mm"),
)


class DataClock(Protocol):
    """Measures how long this rank has waited for batches since the training began."""

    @property
    def seconds_waited(self) -> float:
        """Return the seconds spent waiting for batches."""


class Profiler:
    """Traces the updates that `training.profile` names; nothing without it.

    Args:
        encoding: Returns what streamed rows have cost so far; None where none was encoded.
    """

    def __init__(
        self,
        settings: Profile | None,
        folder: Path,
        rank: int,
        clock: DataClock,
        encoding: Callable[[], Encoding | None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._file = folder / f"trace-rank-{rank}.json.gz"
        self._clock = clock
        self._encoding = encoding
        self._profile: profile | None = None
        self._begun = (0, 0.0, 0.0)
        self.bottleneck: Bottleneck | None = None
        """Known once the traced updates are done."""

    def before(self, step: int) -> None:
        """Begin to trace if update `step`, counted from 1, is the first to be traced."""
        settings = self._settings
        if settings is None or step < settings.start_step:
            return
        if self._profile is not None or self.bottleneck is not None:
            return
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(activities=activities)
        self._profile.start()
        self._begun = (step, time.perf_counter(), self._clock.seconds_waited)

    def after(self, step: int, *, is_interrupted: bool) -> None:
        """End the trace after its last update, or before an evaluation or a checkpoint."""
        if self._profile is None or self._settings is None:
            return
        first, start, waited = self._begun
        done = step - first + 1
        if done < self._settings.steps and not is_interrupted:
            return
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        traced, self._profile = self._profile, None
        traced.stop()
        traced.export_chrome_trace(str(self._file))
        operations, busy = _operations(traced)
        trace = Trace(
            steps=done,
            seconds=seconds,
            data_wait=self._clock.seconds_waited - waited,
            operations=operations,
            busy=busy,
            dispatch=_dispatch_seconds(),
            encoding=self._encoding(),
        )
        self.bottleneck = find_bottleneck(trace).model_copy(update={"trace": str(self._file)})


def _operations(traced: profile) -> tuple[list[Operation], float | None]:
    """Kernels of the GPU, where there is one, and its busy time; else operations of the CPU."""
    averages = traced.key_averages()
    kernels = [event for event in averages if event.device_type.name == "CUDA"]
    if kernels:
        spent = {event.key: (event.self_device_time_total, event.count) for event in kernels}
    else:
        spent = {
            event.key: (event.self_cpu_time_total, event.count)
            for event in averages
            if event.key.startswith("aten::")
        }
    operations = [
        Operation(name, microseconds / 1e6, calls, _computes(name))
        for name, (microseconds, calls) in spent.items()
        if microseconds > 0
    ]
    return operations, _busy_seconds(traced) if kernels else None


def _busy_seconds(traced: profile) -> float:
    """Length of the union of the kernels' intervals: streams overlap."""
    recorder = traced.profiler
    events = recorder.function_events if recorder else []
    intervals = sorted(
        (event.time_range.start, event.time_range.end)
        for event in events
        if event.device_type.name == "CUDA"
    )
    busy, reached = 0.0, float("-inf")
    for start, end in intervals:
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return busy / 1e6


def _computes(name: str) -> bool:
    return any(part in name.lower() for part in COMPUTING)


def _dispatch_seconds() -> float:
    """Measure an operation that has next to nothing to do."""
    tensor = torch.zeros(1)
    start = time.perf_counter()
    for _ in range(2000):
        tensor.add_(1.0)
    return (time.perf_counter() - start) / 2000
