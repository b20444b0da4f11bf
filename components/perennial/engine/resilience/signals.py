"""Signals: episodes of a training that its curves show while it runs. Imports no torch.

Gradients that are too long, vanish or are always clipped, a loss that stands or swings, a device
that idles. An episode begins where its sign has shown, is logged once, and ends where it has gone.
None of them changes what is computed.
"""

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean, median
from types import MappingProxyType

import numpy as np

from perennial.contracts.training import EvaluationPoint, Signal, SignalKind, StepPoint

# Logging intervals that are looked at, and that an episode's end takes: fewer are unreliable, more
# react slowly.
INTERVALS = 5
# The guides: set the limit near the 90th percentile of the norms, so that one update in ten is
# clipped; constant clipping hides another fault. More often than not is taken for constantly.
CONSTANTLY = 0.5
# The guides' bands of the gradient norm: 0.1 to 2 is typical, above 10 is unstable, towards 0 the
# gradients vanish. The examples train well at norms of 0.02 to 1, so that a hundredth of the lower
# end is taken for "towards 0".
HEALTHY_NORMS = (0.1, 2.0)
LARGEST_NORM = 10.0
SMALLEST_NORM = 1e-3
# A loss that has come down to a tenth of its start may have small gradients: there is little left.
LEARNED_SHARE = 0.1
# Two of five interval means above the limit: one alone may be a single batch.
TOO_LARGE = 2
# A plateau: over the last third of the points the loss does not clearly fall, and, at the 5% level,
# by less than a hundredth of itself, or of what it had fallen before. Of 200 simulated losses that
# fall to a floor like a power of the step, 6 stand by this rule, at their end; of flat ones, all.
# The fewest points that are judged: a third of them is ten, which are two means of five.
PLATEAU_POINTS = 30
PLATEAU_SHARE = 1 / 3
RELEVANT_GAIN = 0.01
# Below this share of its peak the rate is what lets the loss stand: a schedule ends like that.
DECAYED = 0.1
# Two standard errors: the usual 5% level. Four for the fall since the first point, because it is
# looked at again with each point: that a loss has fallen at all must not be chance.
CLEAR = 2.0
FELL = 4.0
# An oscillation: the loss of the fixed validation sample differs by a tenth from one evaluation to
# the next, up and down, without a trend. Its rows are the same each time, so that no sampling noise
# enters, as it does in training losses: those of small batches swing by halves while they learn.
# In the examples, neighbouring evaluations that turn differ by 2% at most.
OSCILLATION_POINTS = 8
SWING = 0.10
# The guides: below 70% the device waits for something else than arithmetic.
IDLE_BELOW = 0.70

REMEDIES: Mapping[SignalKind, str] = MappingProxyType(
    {
        "clipping": "raise the limit to near the 90th percentile of the gradient norms, or lower "
        "the learning rate; if norms are high from the start, look at initialisation, data and "
        "loss scale",
        "exploding": "lower the learning rate or lengthen its warm-up, clip by the norm "
        "(training.clipping, usually 1.0), look at initialisation and at normalisation layers; "
        "where the loss itself is large, scale the labels",
        "vanishing": "look at saturated activations (ReLU or GELU in the place of sigmoid and "
        "tanh), add residual connections and normalisation, look at initialisation, and at whether "
        "the loss has reached its floor",
        "plateau": "where it stands from the first steps: raise the learning rate, look at loss, "
        "labels and frozen parameters; where it fell before: let the rate decay from here on "
        "(training.schedule), train shorter, or give the model more capacity or features",
        "oscillation": "halve the learning rate, raise the momentum or the global batch size, and "
        "look at batch normalisation over few rows",
        "idle_device": "look at the data wait (training.loading.workers, encode_workers), raise "
        "training.micro_batch_size, try training.compile = true, and trace a few steps with "
        "training.profile = {}",
    }
)


@dataclass
class Curve:
    """Logged points, and what a point is compared with without a look at all of them.

    Attributes:
        points: In the order of their steps.
        losses: Of the points.
        peak_rate: The highest learning rate so far.
    """

    points: list[StepPoint] = field(default_factory=list)
    losses: "array[float]" = field(default_factory=lambda: array("d"))
    peak_rate: float = 0.0

    def append(self, point: StepPoint) -> None:
        """Add the next point."""
        self.points.append(point)
        self.losses.append(point.loss)
        self.peak_rate = max(self.peak_rate, point.learning_rate)


@dataclass
class SignalWatch:
    """Follows the curves of a training and notes episodes; a function of the curves alone."""

    curve: Curve = field(default_factory=Curve)
    evaluations: list[EvaluationPoint] = field(default_factory=list)
    _noted: list[Signal] = field(default_factory=list)
    _open: dict[SignalKind, int] = field(default_factory=dict)
    _calm: dict[SignalKind, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, history: Iterable[StepPoint], evaluations: Iterable[EvaluationPoint]
    ) -> "SignalWatch":
        """Return the watch that has seen these points."""
        watch = cls()
        for point in history:
            watch.log(point)
        for evaluation in evaluations:
            watch.evaluate(evaluation)
        return watch

    @property
    def episodes(self) -> tuple[Signal, ...]:
        """Return the episodes in the order in which they began."""
        return tuple(sorted(self._noted, key=lambda each: each.from_step))

    def log(self, point: StepPoint) -> list[Signal]:
        """Take in the next logged point; return the episodes that begin with it."""
        self.curve.append(point)
        found = {kind: look(self.curve) for kind, look in SIGNS.items()}
        return self._note(point.step, found)

    def evaluate(self, point: EvaluationPoint) -> list[Signal]:
        """Take in the next evaluation; return the episodes that begin with it."""
        self.evaluations.append(point)
        return self._note(point.step, {"oscillation": _oscillation(self.evaluations)})

    def _note(self, step: int, found: Mapping[SignalKind, str]) -> list[Signal]:
        """Begin, continue or end the episode of each kind, by its evidence."""
        begun = []
        for kind, evidence in found.items():
            if kind in self._open:
                self._follow(kind, step, is_there=bool(evidence))
            elif evidence:
                self._open[kind], self._calm[kind] = len(self._noted), 0
                remedy = REMEDIES[kind]
                begun.append(Signal(kind=kind, from_step=step, evidence=evidence, remedy=remedy))
                self._noted.append(begun[-1])
        return begun

    def _follow(self, kind: SignalKind, step: int, *, is_there: bool) -> None:
        """Note that an open episode goes on, or end it after some points without its sign."""
        self._calm[kind] = 0 if is_there else self._calm[kind] + 1
        if self._calm[kind] < INTERVALS:
            return
        number = self._open.pop(kind)
        self._noted[number] = self._noted[number].model_copy(update={"to_step": step})


def _clipping(curve: Curve) -> str:
    last = curve.points[-INTERVALS:]
    share = fmean(point.clipped_share for point in last)
    if len(last) < INTERVALS or share <= CONSTANTLY:
        return ""
    return (
        f"clipping constantly: {share:.0%} of the updates of the last {INTERVALS} logging "
        "intervals were clipped, so that the limit, not the learning rate, sets the step"
    )


def _exploding(curve: Curve) -> str:
    large = [point for point in curve.points[-INTERVALS:] if point.gradient_norm > LARGEST_NORM]
    if len(large) < TOO_LARGE:
        return ""
    norm = max(point.gradient_norm for point in large)
    return f"large gradients: norm {norm:.3g}, usual are {_band()}, above {LARGEST_NORM:g} unstable"


def _vanishing(curve: Curve) -> str:
    last = curve.points[-INTERVALS:]
    if len(last) < INTERVALS or any(point.gradient_norm > SMALLEST_NORM for point in last):
        return ""
    loss, first = fmean(point.loss for point in last), curve.losses[0]
    if abs(loss) < LEARNED_SHARE * abs(first):
        return ""
    norm = fmean(point.gradient_norm for point in last)
    return f"vanishing gradients: norm {norm:.2g}, usual are {_band()}, at a loss of {loss:.4g}"


def _plateau(curve: Curve) -> str:
    count, rate = len(curve.points), curve.points[-1].learning_rate
    if count < PLATEAU_POINTS or rate < DECAYED * curve.peak_rate:
        return ""
    last = np.array(curve.losses[-round(PLATEAU_SHARE * count) :])
    before, after = np.array_split(last, 2)
    level = float(after.mean())
    gain = float(before.mean()) - level
    # From second differences, which a trend does not enter: 6 is their variance for noise of 1.
    noise = float(np.sqrt(np.mean(np.diff(last, 2) ** 2) / 6.0))
    error = CLEAR * noise * math.sqrt(1.0 / len(before) + 1.0 / len(after))
    first = curve.losses[0]
    fall = first - level
    scale = abs(level)
    if fall > FELL * noise:  # a gain is measured by what was gained before
        scale = max(min(scale, fall), LEARNED_SHARE * scale)
    is_small = abs(level) < RELEVANT_GAIN * abs(first)
    is_falling = gain > error  # slowly, as curves do at their end
    if is_small or is_falling or abs(gain) + error >= RELEVANT_GAIN * scale:
        return ""
    return (
        f"the loss stands at {level:.4g}: {gain:+.2g} ± {error:.1g} over the last "
        f"{len(last)} logging intervals, at {rate / curve.peak_rate:.0%} of the peak rate"
    )


def _oscillation(evaluations: Sequence[EvaluationPoint]) -> str:
    losses = [point.metrics["loss"] for point in evaluations[-OSCILLATION_POINTS:]]
    if len(losses) < OSCILLATION_POINTS:
        return ""
    moves = [after - before for before, after in pairwise(losses)]
    turns = sum(one * other < 0 for one, other in pairwise(moves))
    swing, level = median(map(abs, moves)), median(map(abs, losses))
    half = OSCILLATION_POINTS // 2
    trend = abs(fmean(losses[:half]) - fmean(losses[half:]))
    is_small = level < LEARNED_SHARE * abs(evaluations[0].metrics["loss"])
    if is_small or swing < SWING * level or 2 * turns < len(moves) or trend > swing:
        return ""
    return (
        f"the loss of the same validation rows swings by {swing:.3g} around {level:.4g} from one "
        "evaluation to the next, without a trend"
    )


def _idle_device(curve: Curve) -> str:
    last = curve.points[-INTERVALS:]
    busy = [point.device_busy for point in last if point.device_busy is not None]
    if len(busy) < INTERVALS or fmean(busy) >= IDLE_BELOW:
        return ""
    waiting = fmean(point.data_wait_share for point in last)
    return f"the GPU computes {fmean(busy):.0%} of the time; {waiting:.0%} is a wait for data"


def _band() -> str:
    return f"{HEALTHY_NORMS[0]:g} to {HEALTHY_NORMS[1]:g}"


SIGNS: Mapping[SignalKind, Callable[[Curve], str]] = MappingProxyType(
    {
        "clipping": _clipping,
        "exploding": _exploding,
        "vanishing": _vanishing,
        "plateau": _plateau,
        "idle_device": _idle_device,
    }
)
"""Kind → what tells from the logged points that it is there: its evidence, else an empty text."""
