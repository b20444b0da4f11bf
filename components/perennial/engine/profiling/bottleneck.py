"""Bottleneck: whether a step is limited by data, host, memory or computing."""

from collections.abc import Sequence
from dataclasses import dataclass

from perennial.contracts.training import Bottleneck, Limit
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


@dataclass(frozen=True)
class Operation:
    """Statistics of one kind of operation in the trace.

    Attributes:
        name: As in the trace.
        seconds: Time of its own, without operations inside.
        calls: How often it ran.
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
        steps: Traced updates.
        seconds: Wall time.
        data_wait: Seconds waiting for batches.
        operations: On the device that computes.
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
    if trace.busy is not None:
        overhead = max(0.0, 1.0 - trace.busy / trace.seconds - waits)
        limit = OVERHEAD_SHARE
    else:
        calls = sum(operation.calls for operation in trace.operations)
        overhead, limit = calls * trace.dispatch / trace.seconds, DISPATCH_SHARE
    if waits >= INPUT_SHARE and waits >= overhead * INPUT_SHARE / limit:
        verdict: Limit = "input-bound"
    elif overhead >= limit:
        verdict = "overhead-bound"
    else:
        verdict = "compute-bound" if computes >= COMPUTING_SHARE else "memory-bound"
    largest = sorted(trace.operations, key=lambda operation: -operation.seconds)[:10]
    return Bottleneck(
        verdict=verdict,
        remedy=_input_remedy(trace) if verdict == "input-bound" else REMEDIES[verdict],
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
    needed = encoding.workers_for(computes)
    if needed <= encoding.workers:
        return generic
    milliseconds = encoding.seconds_per_row * encoding.rows_per_step * 1e3
    return (
        f"set training.loading.encode_workers = {needed} (now {encoding.workers}): one process "
        f"takes {milliseconds:,.1f} ms to read and encode the rows of a step, which computes for "
        f"{computes * 1e3:,.1f} ms"
    )
