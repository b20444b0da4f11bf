"""Activations at the start: dead, saturated or badly scaled layers, and identical units."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from perennial.check_skeleton.models import (
    is_in_transform,
    run_model,
    shuffle_batches,
    simplify,
    train_model,
    watch_modules,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import Batch, inputs_of

PROBED_ROWS = 64
# An activation whose slope is below this passes a thousandth of the gradient: sigmoid beyond 7,
# tanh beyond 4, GELU below -4, ReLU below 0.
FLAT = 1e-3
ONE_SIDED = frozenset({"relu", "relu_", "relu6", "gelu", "silu", "mish", "hardswish", "threshold"})
TWO_SIDED = frozenset({"sigmoid", "sigmoid_", "tanh", "tanh_", "hardtanh", "hardsigmoid"})
# Over 45 healthy models (tables, ResNets, ViTs, decoders, seven families of transformers) at most
# 52 % of a layer's units were dead, in an MLP of eight layers without normalisation, and no
# sigmoid or tanh was saturated.
DEAD_SHARE = 0.8
SATURATED_SHARE = 0.5
DESTROYED_SHARE = 0.95
# Sixteen units are all dead by chance once in 65,000 draws when half of them die; a few units, as
# in squeeze-and-excitation, may be.
SURE_UNITS = 16
# Deviations of outputs over inputs were 0.05 to 2.9 on the same models; 57 is what weights a
# hundred times too large give.
LARGEST_GAIN = 10.0
# Half precision ends at 65,504, six deviations of this size.
LARGEST_DEVIATION = 1e4
# How much examples differ, as a share of what they have in common: 0.008 in the worst of those
# models. Below 1e-6 it is rounding, as where queries are learned and the same for all examples.
SMALLEST_VARIATION = 1e-3
ROUNDING = 1e-6
# Functions that leave a straight line straight.
STRAIGHT = frozenset(
    {"batch_norm", "dropout", "flatten", "squeeze", "unsqueeze", "view", "reshape", "contiguous"}
)
STEPS = 4
# Identical units get equal updates up to rounding; others differ by as much as they move.
EQUAL_UPDATES = 1e-2
SHOWN_LAYERS = 64


@dataclass(frozen=True)
class Layer:
    """A layer with weights in one forward pass."""

    name: str  # name of the module
    deviation: float  # deviation of its outputs over the examples, root mean square over units
    gain: float  # the same, divided by that of its inputs
    variation: float  # deviation of its inputs over their root mean square


@dataclass(frozen=True)
class Activation:
    """An activation function in one forward pass."""

    name: str  # name of the calling module, and its own
    is_two_sided: bool  # whether it is flat at both ends
    units: int  # number of units
    flat: float  # the share of its units (of its values, if flat at both ends) without slope


@dataclass
class StraightLine:
    """The output of a linear layer, followed through functions that keep it linear."""

    name: str  # name of the layer
    inputs: int  # numbers that the layer reads
    units: int  # numbers that it returns
    readers: list[str]  # modules that read them; empty text for all but linear layers


@check(
    "activations",
    expects=f"finite outputs; below {DEAD_SHARE:.0%} dead units and {SATURATED_SHARE:.0%} "
    f"saturated values; no layer multiplies deviations by {LARGEST_GAIN:g}; "
    "an activation behind each hidden layer",
    source="guides: dead ReLUs, saturation, vanishing and exploding signals; thresholds "
    "measured on 45 healthy models",
    needs_losses=False,
)
def check_activations(subject: Subject, judge: Judge) -> CheckResult:
    """Check that a signal of reasonable scale passes through every layer."""
    batch = subject.balanced(min(PROBED_ROWS, subject.task.scoring_rows))
    seen = _Pass()
    output = seen.run(simplify(subject.build_model()), batch)
    if not isinstance(output, Tensor):
        return judge.skipped("the model does not return a tensor: see per_example_losses")
    if not bool(torch.isfinite(output).all()) and not _is_masked(subject, output, seen.broken):
        return judge.failed(
            f"the output is not finite; the first module to return such values is "
            f"{seen.broken or 'none, so they arise in forward itself'}",
            hint=f"in {seen.broken or 'forward'}, look for a logarithm or root of what is not "
            "positive, a division by zero, an overflow, or NaN among its weights and inputs",
            module=seen.broken,
        )
    floats = [t for t in inputs_of(batch).values() if t.is_floating_point() and t.numel()]
    at_input = max(map(_measure_deviation, floats), default=1.0)
    return (
        _judge_slopes(judge, seen.activations)
        or _judge_straight_lines(judge, seen.lines)
        or _judge_scales(judge, seen.layers, at_input)
    )


@check(
    "symmetric_units",
    expects=f"units of a layer that differ at the start, or after {STEPS} updates",
    source="units with equal weights on both sides always get equal gradients "
    "(Deep Learning, Goodfellow et al., 2016, section 8.4)",
)
def check_symmetric_units(subject: Subject, judge: Judge) -> CheckResult:
    """Check that units do not start as copies of each other and stay so."""
    model = simplify(subject.build_model())
    weights = {
        name: weight
        for name, weight in model.named_parameters()
        if weight.requires_grad and weight.ndim > 1 and _find_equal_axes(weight)
    }
    if not weights:
        return judge.passed("no matrix starts with equal units")
    before = {name: weight.detach().clone() for name, weight in weights.items()}
    constant = [name for name, value in before.items() if _is_constant(model, name, value)]
    train_model(subject, model, shuffle_batches(subject, subject.train, STEPS))
    if alike := [
        name
        for name, weight in weights.items()
        if _is_moving_as_one(weight.detach() - before[name], _find_equal_axes(before[name]))
    ]:
        return judge.failed(
            f"all units of {', '.join(alike[:6])} are equal at the start and move alike in "
            f"{STEPS} updates",
            hint="they act as a single unit: a constant or zero initialisation leaves layers "
            "symmetric. Draw the weights at random (nn.init.kaiming_normal_); zeros are right "
            "only in the last layer of the network or of a residual branch",
            weights=alike,
        )
    if constant:
        return judge.warned(
            f"every weight of {', '.join(constant[:6])} starts with the same value",
            hint="a constant initialisation: its units start equal and differ only through random "
            "layers around them. Draw the weights at random",
            weights=constant,
        )
    return judge.passed(f"{', '.join(list(weights)[:6])} start with equal units, which diverge")


def _is_masked(subject: Subject, output: Tensor, broken: str) -> bool:
    """Whether classes that a row does not have, never the right one, have minus infinity."""
    is_known = output.isfinite() | (output == -torch.inf)
    if broken or subject.task.kind != "multiclass" or not bool(is_known.all()):
        return False
    losses = subject.task.losses(output, subject.balanced(len(output)))
    return bool(losses.isfinite().all())


def _judge_slopes(judge: Judge, found: Sequence[Activation]) -> CheckResult | None:
    """Judge dead and saturated activations; None if nothing is wrong."""
    evidence = {"flat": {each.name: round(each.flat, 4) for each in found[:SHOWN_LAYERS]}}
    for kind, limit, sure, word, cause in (
        (
            False,
            DEAD_SHARE,
            1.0,
            "units are dead: flat for every example",
            "strongly negative biases or inputs keep the activation at zero, where nothing learns",
        ),
        (
            True,
            SATURATED_SHARE,
            DESTROYED_SHARE,
            "values are saturated",
            "weights, biases or inputs before it are too large; gradients vanish there",
        ),
    ):
        doubtful = [each for each in found if each.is_two_sided == kind and each.flat >= limit]
        if not doubtful:
            continue
        # Later layers may be affected by the first, and are clearer evidence where it is small.
        first = doubtful[0]
        is_sure = any(each.flat >= sure and each.units >= SURE_UNITS for each in doubtful)
        more = f"; also in {len(doubtful) - 1} more" if len(doubtful) > 1 else ""
        return (judge.failed if is_sure else judge.warned)(
            f"{first.name}: {first.flat:.0%} of {first.units} {word}{more}",
            hint=f"look at the layer in front of {first.name}: {cause}",
            **evidence,
        )
    return None


def _judge_straight_lines(judge: Judge, lines: Sequence[StraightLine]) -> CheckResult | None:
    """Fail on hidden layers that widen their inputs, and whose only reader is a linear layer.

    Narrow ones are a factorisation on purpose, others repeat a projection without harm.
    """
    found = [
        each
        for each in lines
        if len(each.readers) == 1 and each.readers[0] and each.units > each.inputs
    ]
    if not found:
        return None
    first = found[0]
    return judge.failed(
        f"{first.readers[0]} reads the {first.units} units of {first.name}, which has "
        f"{first.inputs} inputs, with no activation between them",
        hint="two linear layers in a row are one: the hidden units add nothing. Put an activation "
        "between them",
        layers=[[each.name, each.readers[0]] for each in found],
    )


def _judge_scales(judge: Judge, layers: Sequence[Layer], at_input: float) -> CheckResult:
    """Judge the scales of the layers."""
    few = layers[:SHOWN_LAYERS]
    shown = {each.name: [round(each.deviation, 6), round(each.gain, 4)] for each in few}
    evidence = {"deviation_and_gain": shown}
    widest = max(layers, key=lambda each: each.deviation, default=None)
    loud = [each for each in layers if each.gain > LARGEST_GAIN]
    faint = [each for each in layers if ROUNDING < each.variation < SMALLEST_VARIATION]
    if widest and widest.deviation > LARGEST_DEVIATION * max(at_input, 1.0):
        return judge.failed(
            f"outputs of {widest.name} deviate by {widest.deviation:.3g}, inputs of the model by "
            f"{at_input:.3g}",
            hint=f"the signal explodes before {widest.name}"
            + (f", first in {loud[0].name}" if loud else "")
            + ": initialise with smaller weights, or normalise between layers",
            **evidence,
        )
    if loud:
        return judge.warned(
            f"{loud[0].name} multiplies deviations by {loud[0].gain:.3g}",
            hint=f"the initial weights of {loud[0].name} are too large for its number of inputs: "
            "use kaiming or xavier initialisation",
            **evidence,
        )
    if faint:
        return judge.warned(
            f"inputs of {faint[0].name} differ between examples by {faint[0].variation:.2g} of "
            "their size",
            hint=f"the signal vanishes before {faint[0].name}: weights too small, biases too "
            "large, or too many layers without normalisation or shortcuts",
            **evidence,
        )
    gains = [each.gain for each in layers if each.gain > 0] or [1.0]
    return judge.passed(
        f"{len(layers)} layers multiply deviations by {min(gains):.2g} to {max(gains):.2g}",
        **evidence,
    )


class _Pass(TorchFunctionMode):
    """Observes one forward pass: modules by hooks, activations wherever they occur."""

    def __init__(self) -> None:
        super().__init__()
        self.layers: list[Layer] = []
        self.activations: list[Activation] = []
        self.lines: list[StraightLine] = []
        self.broken = ""
        self._inside: list[str] = []
        self._channels = -1
        self._last = torch.empty(0)
        # With the tensors, so that no other gets the address of one that is gone.
        self._followed: dict[int, tuple[Tensor, StraightLine]] = {}
        self._is_measuring = False  # in a hook, whose calls are not the model's

    def run(self, model: nn.Module, batch: Batch) -> object:
        """Run the model on the batch and return its output."""
        enters = watch_modules(model, self._enter, is_before=True)
        with enters, watch_modules(model, self._leave), self:
            output: object = run_model(model, batch)
        self._read((output,), "")
        # Probabilities near 0 are right for rare labels: `output_form` checks outputs.
        is_bounded = bool(self.activations) and self.activations[-1].is_two_sided
        if isinstance(output, Tensor) and is_bounded:
            places = {each.untyped_storage().data_ptr() for each in (output, self._last)}
            self.activations = self.activations[: -1 if len(places) == 1 else None]
        return output

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        """Make the call, and record it if it is an activation."""
        options = dict(kwargs or {})
        if is_in_transform():
            return func(*args, **options)
        name = getattr(func, "__name__", "")
        is_activation = name in ONE_SIDED or name in TWO_SIDED
        # Before the call, which may write over its input.
        inputs = args[0].detach().clone() if is_activation and args else None
        result: object = func(*args, **options)
        if isinstance(result, Tensor) and inputs is not None and inputs.numel():
            self._note(func, name, inputs, args[1:], options)
            self._last = result
        if isinstance(result, Tensor) and not self._is_measuring:
            self._follow(name, (*args, *options.values()), result)
        return result

    def _follow(self, name: str, args: Sequence[object], result: Tensor) -> None:
        """Note which linear layers' outputs are read, and by what."""
        known = self._followed.get(id(args[0])) if args else None
        if name in STRAIGHT and known:
            self._followed[id(result)] = (result, known[1])
            return
        place = self._inside[-1] if self._inside else ""
        weight = args[1] if name == "linear" and len(args) > 1 else None
        # An adapter's second layer starts at zero: it is a low-rank change of what is beside it.
        is_adapter = isinstance(weight, Tensor) and not weight.any()
        self._read(args, place or "the model" if name == "linear" and not is_adapter else "")
        if isinstance(weight, Tensor):
            units, inputs = weight.shape
            self.lines.append(StraightLine(place or "a linear layer", inputs, units, []))
            self._followed[id(result)] = (result, self.lines[-1])

    def _read(self, args: Sequence[object], reader: str) -> None:
        for each in args:
            if isinstance(each, list | tuple):
                self._read(each, reader)
            elif known := self._followed.get(id(each)):
                known[1].readers.append(reader)

    def _note(
        self,
        func: Callable[..., Any],
        name: str,
        inputs: Tensor,
        more: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        with torch.enable_grad():
            free = inputs.requires_grad_()
            # Times one, so that in-place functions do not write into a leaf.
            (slope,) = torch.autograd.grad(func(free * 1.0, *more, **options).sum(), free)
        is_flat = slope.abs() < FLAT
        units = is_flat.movedim(self._channels if inputs.ndim > 2 else -1, -1)
        by_unit = units.reshape(-1, units.shape[-1])
        is_two_sided = name in TWO_SIDED
        flat = is_flat.float().mean() if is_two_sided else by_unit.all(dim=0).float().mean()
        place = self._inside[-1] if self._inside else ""
        title = f"{place or 'the model'} ({name.strip('_')})"
        self.activations.append(Activation(title, is_two_sided, by_unit.shape[-1], float(flat)))

    def _enter(self, name: str, module: nn.Module, args: object) -> None:
        self._inside.append(name)

    def _leave(
        self, name: str, module: nn.Module, args: tuple[object, ...], output: object
    ) -> None:
        self._inside.pop()
        self._is_measuring = True
        self._measure(name, module, args, output)
        self._is_measuring = False

    def _measure(
        self, name: str, module: nn.Module, args: tuple[object, ...], output: object
    ) -> None:
        if not isinstance(output, Tensor) or not output.is_floating_point():
            return
        if not self.broken and not bool(torch.isfinite(output).all()):
            self.broken = name
        weight, inputs = getattr(module, "weight", None), args[0] if args else None
        if not isinstance(weight, Tensor) or weight.ndim < 2 or len(output) < 2:
            return
        self._channels = 1 if weight.ndim > 2 else -1
        if isinstance(inputs, Tensor) and inputs.is_floating_point():
            before, after = _measure_deviation(inputs), _measure_deviation(output)
            size = float(inputs.float().square().mean().sqrt())
            gain = after / before if before > ROUNDING * size else 0.0
            self.layers.append(Layer(name, after, gain, before / size if size else 0.0))


def _measure_deviation(values: Tensor) -> float:
    """Return the deviation over the examples, root mean square over all else."""
    return float(values.float().var(dim=0, correction=0).mean().sqrt())


def _find_equal_axes(weight: Tensor) -> list[int]:
    """Return the first and last axis, if all slices along it are equal and of several numbers."""
    value, axes = weight.detach(), []
    for axis in (0, -1):
        slices = value.movedim(axis, 0).flatten(1)
        if len(slices) < 2 or slices.shape[1] < 2 or not torch.equal(slices[0], slices[1]):
            continue  # nearly all matrices, at low cost
        if bool((slices == slices[:1]).all()):
            axes.append(axis)
    return axes


def _is_constant(model: nn.Module, name: str, value: Tensor) -> bool:
    """Whether it is a whole layer's matrix with one value that is not zero."""
    module = model.get_submodule(name.rpartition(".")[0])
    is_matrix = isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    first = value.flatten()[0]
    is_filter = getattr(module, "groups", 1) > 1  # a mean over neighbours is a filter like others
    return is_matrix and not is_filter and bool(first != 0) and bool((value == first).all())


def _is_moving_as_one(update: Tensor, axes: Sequence[int]) -> bool:
    """Whether all units of an axis got the same update, and it is not zero."""
    largest = float(update.abs().max())
    if largest == 0.0:
        return False  # `parameter_gradients` checks what does not learn
    for axis in axes:
        spread = update - update.mean(dim=axis, keepdim=True)
        if float(spread.abs().max()) < EQUAL_UPDATES * largest:
            return True
    return False
