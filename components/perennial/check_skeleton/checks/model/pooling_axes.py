"""Find weights that are normalised over one axis of the inputs and summed over another."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from perennial.check_skeleton.free_outputs import probe
from perennial.check_skeleton.models import FunctionWatch, build_noisy_model, run_model
from perennial.check_skeleton.subject import Subject, select_head
from perennial.engine.task import Batch, inputs_of

PROBED_ROWS = 8
SOFTMAXES = (torch.softmax, Tensor.softmax, functional.softmax)
MATRIX_PRODUCTS = (torch.matmul, torch.bmm, Tensor.matmul, Tensor.bmm, Tensor.__matmul__)
PRODUCTS = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
TRANSPOSITIONS = (torch.transpose, Tensor.transpose)
SUMS = (torch.sum, Tensor.sum)


class Weights(NamedTuple):
    """A tensor that a softmax has made, as it is or reshaped, or its product with values."""

    tensor: Tensor  # kept, so that nothing else gets its identity
    axis: int  # of the softmax
    shape: tuple[int, ...]  # of the weights; ones where only the values have an axis
    softmax: tuple[tuple[int, ...], int]  # the shape and the axis when they were made


def describe_other_axis(subject: Subject) -> str:
    """Describe weights over one axis that are summed over another; empty if there are none.

    Both axes are those of an input, as turns and words are, and the values have both. Weights
    over clusters, which no input has, may be summed over the rows that they are shared among.
    """
    rows = PROBED_ROWS * subject.task.scored_together
    batch = select_head(probe(subject), rows)
    watch = _Watch(batch)
    with watch:
        run_model(build_noisy_model(subject), batch)
    return watch.found


class _Watch(FunctionWatch):
    """Follows weights from the softmax to the sum."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.found = ""
        # The last axis of numbers is no position: as many clusters as it has may be a coincidence.
        self._positions = [
            tuple(each.shape[1:-1] if each.is_floating_point() else each.shape[1:])
            for each in inputs_of(batch).values()
        ]
        self._weights: dict[int, Weights] = {}

    @override
    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: object
    ) -> None:
        if not (isinstance(result, Tensor) and args):
            return
        named = [given[name] for name in ("dim", "axis") if name in given]
        dims = named or list(args[1:])
        if func in SOFTMAXES and dims and isinstance(dims[0], int):
            shape, axis = tuple(result.shape), dims[0] % result.ndim
            self._weights[id(result)] = Weights(result, axis, shape, (shape, axis))
        elif func is torch.einsum and isinstance(args[0], str):
            self._note_sum_of_letters(args[0].replace(" ", ""), args[1:])
        elif func in MATRIX_PRODUCTS:
            self._note_matrices(args[0], args[1])
        elif func in PRODUCTS:
            self._note_product(args[0], args[1], result)
        elif (own := self._weights.get(id(args[0]))) is None:
            return
        elif func in SUMS and dims:
            axes = dims[0] if isinstance(dims[0], list | tuple) else dims[:1]
            # The sum of weights alone, as of how much attention each word gets, pools nothing.
            if own.tensor.numel() > math.prod(own.shape):
                self._judge(own, [each % own.tensor.ndim for each in axes], own.tensor.shape)
        elif func in TRANSPOSITIONS:
            first, second = (each % result.ndim for each in args[1:3])
            axis = {first: second, second: first}.get(own.axis, own.axis)
            self._weights[id(result)] = Weights(result, axis, tuple(result.shape), own.softmax)
        elif result.numel() == own.tensor.numel() and result.shape[-1:] != ():
            self._note_reshaped(own, result)

    def _note_reshaped(self, own: Weights, result: Tensor) -> None:
        """Follow weights whose numbers stay in order while axes of one number come or go."""
        sizes = [size for size in own.tensor.shape if size > 1]
        if [size for size in result.shape if size > 1] != sizes or own.shape[own.axis] == 1:
            return
        if not torch.equal(result.flatten(), own.tensor.flatten()):
            return
        place = sum(size > 1 for size in own.tensor.shape[: own.axis])
        axis = [axis for axis, size in enumerate(result.shape) if size > 1][place]
        self._weights[id(result)] = Weights(result, axis, tuple(result.shape), own.softmax)

    def _note_product(self, first: object, second: object, result: Tensor) -> None:
        for one, other in ((first, second), (second, first)):
            own = self._weights.get(id(one))
            if own is not None and isinstance(other, Tensor) and result.ndim == own.tensor.ndim:
                offset = result.ndim - other.ndim
                has_axis = own.axis >= offset and other.shape[own.axis - offset] > 1
                if has_axis:
                    self._weights[id(result)] = Weights(result, own.axis, own.shape, own.softmax)

    def _note_matrices(self, first: object, second: object) -> None:
        for one, other, summed in ((first, second, -1), (second, first, -2)):
            own = self._weights.get(id(one))
            if own is None or not isinstance(other, Tensor) or own.tensor.ndim != other.ndim:
                continue
            if own.axis < other.ndim - 2:
                self._judge(own, [other.ndim + summed], other.shape)

    def _note_sum_of_letters(self, equation: str, operands: Sequence[object]) -> None:
        taken, _, kept = equation.partition("->")
        letters = taken.split(",")
        for own_letters, operand in zip(letters, operands, strict=False):
            own = self._weights.get(id(operand))
            if own is None or len(own_letters) != own.tensor.ndim:
                continue
            letter = own_letters[own.axis]
            if letter in kept and sum(letter in each for each in letters) > 1:
                summed = [place for place, each in enumerate(own_letters) if each not in kept]
                self._judge(own, summed, own.tensor.shape)

    def _judge(self, own: Weights, summed: Sequence[int], values: Sequence[int]) -> None:
        """Note weights that are summed over other axes than their own, all of them the inputs'."""
        others = [axis for axis in summed if axis > 0 and own.shape[axis] > 1]
        if own.axis in summed or not others or own.axis == 0 or values[own.axis] == 1:
            return
        sizes = [own.shape[axis] for axis in sorted((own.axis, *others))]
        if any(list(shape[: len(sizes)]) == sizes for shape in self._positions):
            shape, axis = own.softmax
            size = own.shape[others[0]]
            self.found = (
                f"weights that add up to 1 over axis {axis} of {list(shape)} are summed over "
                f"another one, of {size}"
            )
