"""Find losses that compare one output with several labels: a shape that is broadcast unnoticed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from perennial.check_skeleton.free_outputs import compute_output, probe
from perennial.check_skeleton.models import FunctionWatch, Losses
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL

COMPARING = frozenset(
    {
        "sub", "rsub", "subtract", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "mul",
        "multiply", "gaussian_nll_loss", "poisson_nll_loss", "div", "true_divide",
    }
)  # fmt: skip
# Several readings of one amount have about the same mean; two may differ by a person's habit.
FEWEST_LABELS = 3
CLEAR_ERRORS = 8.0


@dataclass(frozen=True)
class Comparison:
    """Shapes of an output and of the labels that it is compared with."""

    output: tuple[int, ...]
    labels: tuple[int, ...]
    count: int  # of the labels along the axis where there is one output


class _Watch(FunctionWatch):
    """Records comparisons of the output with labels, whatever either went through before."""

    def __init__(self, output: Tensor, labels: Tensor) -> None:
        super().__init__()
        self.pairs: list[tuple[Tensor, Tensor]] = []
        self._sources = output, labels
        # Tensors that depend on one of the two alone; kept, so that no other gets their id.
        self._derived: tuple[dict[int, Tensor], dict[int, Tensor]] = {}, {}

    @override
    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: object
    ) -> None:
        tensors = [each for each in (*args, *given.values()) if isinstance(each, Tensor)]
        sides = [[each for each in tensors if self._is_from(each, side)] for side in (0, 1)]
        if all(sides):
            if getattr(func, "__name__", "").strip("_") in COMPARING:
                self.pairs.append((sides[0][0], sides[1][0]))
        elif isinstance(result, Tensor):
            for side, known in zip(sides, self._derived, strict=True):
                if side:
                    known[id(result)] = result

    def _is_from(self, tensor: Tensor, side: int) -> bool:
        return tensor is self._sources[side] or id(tensor) in self._derived[side]


@torch.no_grad()
def find_shared_output(subject: Subject, losses: Losses) -> Comparison | None:
    """Find one output per example that is compared with labels of different means, if any."""
    batch = probe(subject)
    output = compute_output(subject, batch)
    with _Watch(output, batch[LABEL]) as watch:
        losses(output, batch)
    for own, labels in watch.pairs:
        for axis in range(-1, -min(own.ndim, labels.ndim), -1):
            count = labels.shape[axis]
            is_shared = own.shape[axis] == 1 and count >= FEWEST_LABELS
            if is_shared and len(labels) == len(output) and _have_different_means(labels, axis):
                return Comparison(tuple(own.shape), tuple(labels.shape), count)
    return None


def _have_different_means(labels: Tensor, axis: int) -> bool:
    """Whether the labels along an axis have means that clearly differ over the examples."""
    columns = labels.double().movedim(axis, -1).reshape(len(labels), -1, labels.shape[axis])
    apart = (columns - columns.mean(dim=-1, keepdim=True)).mean(dim=1)
    errors = apart.std(dim=0) / len(apart) ** 0.5
    return bool((apart.mean(dim=0).abs() > CLEAR_ERRORS * errors.clamp_min(1e-12)).any())
