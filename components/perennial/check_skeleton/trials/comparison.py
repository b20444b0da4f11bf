"""Comparison: differences between trials, the rows of each rank, likely causes of failures."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from perennial.check_skeleton.trials.plan import RankRecord
from perennial.check_skeleton.trials.supervisor import Outcome

# Rounding moves healthy tasks by 1e-6; the smallest planted bug by 1e-2.
TOLERANCE = 1e-3
ROUNDING = 1e-6  # of float32 numbers, after a few sums

DIVERGED = "TrainingFailedError"
CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"finished reduction in the prior iteration|unused parameters|parameter indices which did",
        "a parameter gets no gradient in some updates, and DDP waits for it: use every parameter "
        "in every forward pass (add 0 times its sum where it is not used)",
    ),
    (
        r"not contiguous|non-contiguous|memory format",
        "a weight is not contiguous in memory (channels_last, transpose): call contiguous(), "
        'or set training.strategy = "ddp".',
    ),
    (
        DIVERGED,
        "loss or gradient is not finite within six short updates: look at the scale of inputs and "
        "initial weights, logarithms and divisions",
    ),
    (
        r"lazy|[Uu]ninitialized",
        "parameters are created in the first forward pass: give layers their sizes in build_model",
    ),
    (
        r"asked for, but the model runs as|already wrapped",
        "the task wraps or shards its model itself: leave that to the engine",
    ),
    (
        r"/gloo/|[Cc]onnection (closed|reset)",
        "the ranks exchange tensors that do not match: look for parameters that only some ranks "
        "use in an update, and for torch.distributed in the task's own code",
    ),
    (
        r"backend type|process group|all_reduce|broadcast|has not been initialized",
        "a collective fails: look for torch.distributed in the task's own code",
    ),
    (
        r"state_dict|[Mm]issing key|names differ|size mismatch",
        "the model's state_dict changes while it trains: make every parameter and buffer in "
        "build_model, none in forward",
    ),
    (
        r"view of a leaf|in-?place operation|modified by an inplace",
        "a weight or an input is changed in place: clone it first",
    ),
)
HANGS = (
    "one rank waits for another and hangs: look for a collective that only some ranks call, a "
    "branch on the rank or on the data around a sharded layer, and for locks"
)


@dataclass(frozen=True)
class Difference:
    """The difference between two trials that should be equal.

    Attributes:
        first_step: The first update whose loss differs; 0 if none does.
        loss: The largest difference of a loss, relative to it.
        tensor: The tensor that differs most.
        weight: The difference, relative to the largest change of a parameter.
    """

    first_step: int
    loss: float
    tensor: str
    weight: float

    @property
    def is_large(self) -> bool:
        """Whether the difference is beyond rounding."""
        return self.loss > TOLERANCE or self.weight > TOLERANCE

    def __str__(self) -> str:
        where = f" from update {self.first_step} on" if self.first_step else ""
        return f"losses differ by {self.loss:.1g}{where}, weights by {self.weight:.1g}" + (
            f" ({self.tensor})" if self.is_large else ""
        )


def difference_of(
    one: RankRecord, other: RankRecord, origin: RankRecord | None = None
) -> Difference:
    """Compare two trials of equal length.

    Args:
        one: The first trial; has the initial weights, unless `origin` has.
        other: The other trial.
        origin: Trial with the initial weights and parameters.
    """
    origin = origin or one
    scale = max(abs(step.loss) for step in one.steps) or 1.0
    gaps = {
        step.step: _size(step.loss - twin.loss) / scale
        for step, twin in zip(one.steps, other.steps, strict=True)
    }
    first = next((step for step, gap in gaps.items() if gap > TOLERANCE), 0)
    apart = _weights_apart(one, other, origin)
    worst = max(apart, key=lambda name: apart[name], default="")
    return Difference(first, max(gaps.values()), worst, apart.get(worst, 0.0))


def _weights_apart(one: RankRecord, other: RankRecord, origin: RankRecord) -> dict[str, float]:
    """Return differences by tensor: parameters relative to their change, buffers to their size."""
    moved = [
        _size(origin.weights[name] - start)
        for name, start in origin.start.items()
        if name in origin.parameters and start.numel()
    ]
    way = max(moved, default=0.0) or 1.0
    apart = dict.fromkeys(one.weights.keys() ^ other.weights.keys(), math.inf)
    for name in one.weights.keys() & other.weights.keys():
        tensor = one.weights[name]
        if tensor.is_floating_point() and tensor.numel():
            size, gap = _size(tensor), _size(tensor - other.weights[name])
            # The rounding error of large numbers is not a difference, however little they changed.
            gap = 0.0 if gap <= ROUNDING * size else gap
            apart[name] = gap / (way if name in origin.parameters else max(size, 1e-6))
    return apart


def _size(values: Tensor | float) -> float:
    """Return the largest absolute value; NaN counts as infinite."""
    size = float(torch.as_tensor(values).abs().max())
    return math.inf if math.isnan(size) else size


def shared_order(ranks: Sequence[RankRecord], rows: int) -> list[tuple[int, ...]]:
    """Return the rows that all ranks saw together, cut into whole epochs."""
    stream: list[int] = []
    for steps in zip(*(rank.steps for rank in ranks), strict=True):
        for step in steps:
            stream += step.rows.tolist()
    return [tuple(stream[start : start + rows]) for start in range(0, len(stream) - rows + 1, rows)]


def seen_twice(ranks: Sequence[RankRecord], rows: int) -> tuple[int, int]:
    """Count examples of the first epoch that repeat another's inputs, and the expected count.

    The expected count is a rank's own count of rows with equal inputs in the stored data.
    """
    seen: list[str] = []
    for steps in zip(*(rank.steps for rank in ranks), strict=True):
        for step in steps:
            seen += step.examples
    epoch = seen[:rows]
    return len(epoch) - len(set(epoch)), ranks[0].twins


def cause_of(outcome: Outcome) -> str:
    """Return the likely cause of a trial that raised or hung."""
    if outcome.is_hung:
        return HANGS
    text = f"{outcome.failure.type}: {outcome.failure.message}" if outcome.failure else ""
    trace = outcome.failure.traceback if outcome.failure else ""
    for pattern, cause in CAUSES:
        if re.search(pattern, text):
            return cause
    where = re.findall(r'File "([^"]+)", line (\d+)', trace)
    place = f"{where[-1][0]}, line {where[-1][1]}" if where else "errors/ of the training"
    return f"the exception comes from {place}"
