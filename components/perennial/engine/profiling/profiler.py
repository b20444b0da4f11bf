"""Profiler: traces a few updates of each rank; the first rank reports what limits a step."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch.profiler import ProfilerActivity, profile

from perennial.contracts.training import Bottleneck, Limit
from perennial.engine.config.training import MOST_ENCODE_WORKERS, Profile
from perennial.engine.data.loader import Encoding

# Waiting for more than this share of a step is worth tuning: below, timer noise of a busy machine
# is as large (measured on the reference tasks: 0.2 to 4 %).
INPUT_SHARE = 0.10
# A device that idles for a fifth of the step has gaps that its timeline shows to the eye.
OVERHEAD_SHARE = 0.20
# On a CPU, dispatching runs on the computing core itself; half of the step is the point at which
# doubling the batch costs less than half as much again.
DISPATCH_SHARE = 0.50
COMPUTING_SHARE = 0.50

REMEDIES: dict[Limit, str] = {
    "input-bound": "raise training.loading.prefetch_batches; make `augment` cheaper or move its "
    "fixed part into `encode`, which runs once",
    "overhead-bound": "raise training.micro_batch_size, so that each operation does more; on a GPU "
    "try training.compile = true, which fuses small operations",
    "memory-bound": "training.precision = 'bf16' halves the bytes; training.compile = true fuses "
    "element-wise operations; fewer and wider layers move less per product",
    "compute-bound": "computing is the limit: training.precision = 'bf16' (or allow_tf32) uses "
    "faster units, more processes divide the work",
}
OUTSIDE = (
    "most of a step passes outside of PyTorch's operations: write loops of Python or NumPy in the "
    "model or the losses as operations on tensors; with several processes, it may be waiting for "
    "another one"
)


@dataclass(frozen=True)
class Operation:
    """Statistics of one kind of operation in the trace.

    Attributes:
        seconds: Time of its own, without operations inside.
        computes: Whether it is a product of matrices, a convolution or attention.
    """

    name: str
    seconds: float
    calls: int
    computes: bool


@dataclass(frozen=True)
class Trace:
    """Sums over the traced steps of one rank.

    Attributes:
        busy: Seconds in which the device computed; None on a CPU, where computing and dispatching
            share the core.
        dispatch: Seconds that dispatching one empty operation takes, on a CPU.
        encoding: Cost of streamed rows; None where rows are resident or none was encoded.
    """

    steps: int
    seconds: float
    data_wait: float
    operations: Sequence[Operation]
    busy: float | None
    dispatch: float
    encoding: Encoding | None = None


def find_bottleneck(trace: Trace) -> Bottleneck:
    """Name the bottleneck, with the shares that it follows from and what helps."""
    waits = trace.data_wait / trace.seconds
    in_operations = sum(operation.seconds for operation in trace.operations)
    computing = sum(operation.seconds for operation in trace.operations if operation.computes)
    computes = computing / in_operations if in_operations else 0.0
    is_dispatching = True
    if trace.busy is not None:
        overhead = max(0.0, 1.0 - trace.busy / trace.seconds - waits)
        limit = OVERHEAD_SHARE
    else:
        calls = sum(operation.calls for operation in trace.operations)
        dispatching = calls * trace.dispatch / trace.seconds
        is_dispatching = dispatching >= DISPATCH_SHARE
        overhead = max(dispatching, 1.0 - in_operations / trace.seconds - waits)
        limit = DISPATCH_SHARE
    # Each share is compared by its own threshold: the one that exceeds it by more is the limit.
    if waits >= INPUT_SHARE and waits >= overhead * INPUT_SHARE / limit:
        verdict: Limit = "input-bound"
    elif overhead >= limit:
        verdict = "overhead-bound"
    else:
        verdict = "compute-bound" if computes >= COMPUTING_SHARE else "memory-bound"
    remedy = REMEDIES[verdict] if is_dispatching or verdict != "overhead-bound" else OUTSIDE
    largest = sorted(trace.operations, key=lambda operation: -operation.seconds)[:10]
    return Bottleneck(
        verdict=verdict,
        remedy=_input_remedy(trace) if verdict == "input-bound" else remedy,
        steps=trace.steps,
        seconds_per_step=trace.seconds / trace.steps,
        data_wait_share=waits,
        overhead_share=min(overhead, 1.0),
        computing_share=computes,
        operations={
            operation.name: operation.seconds / max(in_operations, 1e-12) for operation in largest
        },
    )


def _input_remedy(trace: Trace) -> str:
    """Return what shortens the wait for batches: processes that encode, where rows are streamed."""
    encoding, generic = trace.encoding, REMEDIES["input-bound"]
    if encoding is None:
        return generic
    computes = max(trace.seconds - trace.data_wait, 1e-9) / trace.steps
    encodes = encoding.seconds_per_row * encoding.rows_per_step
    # So many processes encode the rows of a step while the step before computes.
    needed = math.ceil(encodes / computes)
    if needed <= encoding.workers:
        return generic
    ahead = "training.loading.encode_ahead = true, which encodes all rows before the training"
    most = MOST_ENCODE_WORKERS
    return (
        f"set training.loading.encode_workers = {needed} (now {encoding.workers}), or {ahead}"
        if needed <= most
        else f"set {ahead}; it would take {needed} processes to keep up, and {most} are allowed"
    ) + (
        f": one process takes {encodes * 1e3:,.1f} ms to read and encode the rows of a step, which "
        f"computes for {computes * 1e3:,.1f} ms"
    )


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

    `encoding` returns what streamed rows have cost so far; None where none was encoded.
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
    """Return kernels of the GPU, where there is one, and its busy time; else CPU operations."""
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
        Operation(name, microseconds / 1e6, calls, any(part in name.lower() for part in COMPUTING))
        for name, (microseconds, calls) in spent.items()
        if microseconds > 0
    ]
    return operations, _busy_seconds(traced) if kernels else None


def _busy_seconds(traced: profile) -> float:
    """Return the length of the union of the kernels' intervals: streams overlap."""
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


def _dispatch_seconds() -> float:
    """Measure an operation that has next to nothing to do."""
    tensor = torch.zeros(1)
    start = time.perf_counter()
    for _ in range(2000):
        tensor.add_(1.0)
    return (time.perf_counter() - start) / 2000
