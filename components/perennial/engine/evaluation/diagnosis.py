"""Diagnosis: findings from a training's curves, with advice for the next training."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from perennial.contracts.training import Advice, Direction, EvaluationPoint
from perennial.engine.evaluation.resampling import Floats, sign_of

# With fewer points a trend cannot be separated from noise: a quarter of eight is two.
MIN_POINTS = 8
# Google's Deep Learning Tuning Playbook, on choosing max_train_steps: a best step in the last
# quarter asks for a longer training, one in the first tenth for a shorter.
LATE_SHARE = 0.75
EARLY_SHARE = 0.10
# A trend counts when it exceeds two standard errors of a mean or slope, the usual 5% level.
CLEAR = 2.0
# The share after the steep start. Three quarters of a curve show a slow improvement at twice the
# noise in 99% of the trainings of benchmarks/selection_regret.py, half of it in 84%.
SETTLED_SHARE = 0.75
# A last quarter that adds less than this share of the whole gain is not worth another.
RELEVANT_GAIN = 0.01
# A length is proposed up to twice the observed training: the curve does not predict further.
LONGEST = 2.0
# The fewest whose median one outlier does not move.
LAST_POINTS = 3


@dataclass(frozen=True)
class Finding:
    """One finding from the curves."""

    text: str
    advice: Advice = "nothing"
    next_steps: int | None = None


@dataclass(frozen=True)
class Diagnosis:
    """Findings from the curves of a training."""

    findings: tuple[str, ...]
    advice: Advice
    next_steps: int | None


@dataclass(frozen=True)
class Curve:
    """One measurement over steps.

    Attributes:
        values: Signed so that higher is better.
        whole: The curve of which this is the end.
    """

    steps: Floats
    values: Floats
    whole: "Curve | None" = None

    @property
    def noise(self) -> float:
        """Return the standard deviation around the trend, from second differences.

        The median resists the steep start of a curve; 0.6745 turns it into a standard deviation,
        and a second difference has six times the variance of a point. A short end has the noise of
        the whole curve: two points have no second difference at all.
        """
        if self.whole is not None and len(self.values) < MIN_POINTS:
            return self.whole.noise
        second = np.diff(self.values, 2)
        return float(np.median(np.abs(second))) / (0.6745 * math.sqrt(6.0))

    @property
    def best(self) -> int:
        """Return the index of the best point, the earliest of equals."""
        return int(np.argmax(self.values))

    def tail(self, share: float) -> "Curve":
        """Return the last share of the points as a curve."""
        start = len(self.steps) - max(2, round(share * len(self.steps)))
        return Curve(self.steps[start:], self.values[start:], self)

    def falls_after_best(self) -> bool:
        """Whether the mean of the points after the best is significantly below it."""
        later = self.values[self.best + 1 :]
        if len(later) < 2:
            return False
        error = self.noise * math.sqrt(1.0 / len(later) + 1.0)
        drop = float(self.values[self.best]) - float(later.mean())
        return _in_errors(drop, error) > _clear_among(len(self.values))

    def slope(self) -> float:
        """Return the slope of the least-squares line, in standard errors."""
        centred = self.steps - self.steps.mean()
        spread = float(np.sum(centred**2))
        gradient = float(np.sum(centred * self.values)) / spread
        return _in_errors(gradient, self.noise / math.sqrt(spread))


def diagnose(
    evaluations: Sequence[EvaluationPoint], metric: str, direction: Direction
) -> Diagnosis:
    """Return findings with advice, the most severe first, and the next training's length."""
    # If no update was applied, the same weights were evaluated again.
    evaluations = [point for point in evaluations if point.train_loss is not None]
    if len(evaluations) < MIN_POINTS:
        text = (
            f"{len(evaluations)} evaluations are too few for a diagnosis: evaluate at least "
            f"{MIN_POINTS} times"
        )
        return Diagnosis((text,), "nothing", None)
    steps = np.array([point.step for point in evaluations], dtype=np.float64)
    sign = sign_of(direction)
    curve = Curve(steps, sign * np.array([point.metrics[metric] for point in evaluations]))
    loss = Curve(steps, -np.array([point.metrics["loss"] for point in evaluations]))
    train = Curve(steps, -np.array([point.train_loss for point in evaluations]))
    flat, noisy = _no_learning(curve, metric), _noisy(curve, metric)
    # If the best point is due to chance, it carries no information on the length.
    by_chance = noisy or (flat and not curve.falls_after_best())
    length = None if by_chance else _length(curve, metric)
    findings = (_rising_train_loss(train), flat, _overfitting(loss, train), noisy, length)
    found = [finding for finding in findings if finding]
    texts = tuple(finding.text for finding in found) or ("no problem found in the curves",)
    for finding in found:
        if finding.advice != "nothing":
            return Diagnosis(texts, finding.advice, finding.next_steps)
    return Diagnosis(texts, "nothing", int(steps[-1]))


def is_still_improving(
    evaluations: Sequence[EvaluationPoint], metric: str, direction: Direction
) -> bool:
    """Whether later weights are significantly better, over the range of the candidates.

    Uses a longer part of the curve than the advice to train longer, which only needs the end.
    """
    if len(evaluations) < MIN_POINTS:
        return False
    values = sign_of(direction) * np.array([point.metrics[metric] for point in evaluations])
    steps = np.array([point.step for point in evaluations], dtype=np.float64)
    return Curve(steps, values).tail(SETTLED_SHARE).slope() > CLEAR


def _rising_train_loss(train: Curve) -> Finding | None:
    best = train.best
    if (
        best >= len(train.steps) - 2
        or not train.falls_after_best()
        or train.tail(0.5).slope() > -CLEAR
    ):
        return None
    return Finding(
        f"the training loss rises from step {train.steps[best]:.0f} on ({-train.values[best]:.4g} "
        f"to {-train.values[-1]:.4g}), which no choice of checkpoint can fix: lower the learning "
        "rate, lengthen its warm-up, clip gradients, and look for a bug in the loss",
        "bug",
    )


def _no_learning(curve: Curve, metric: str) -> Finding | None:
    start, later = float(curve.values[0]), curve.tail(0.5).values
    gain = _in_errors(float(later.max()) - start, curve.noise * math.sqrt(2.0))
    if gain > _clear_among(len(later)):
        return None
    if curve.slope() > CLEAR:
        return None
    return Finding(
        f"{metric} is not better in the second half than at step {curve.steps[0]:.0f}: the model "
        "learned everything before the first evaluation, or nothing; compare it with the baselines"
    )


def _overfitting(loss: Curve, train: Curve) -> Finding | None:
    best = loss.best
    falls_on = train.values[-1] > train.values[best]
    if not falls_on or not loss.falls_after_best() or loss.tail(0.5).slope() > -CLEAR:
        return None
    return Finding(
        f"overfitting from step {loss.steps[best]:.0f} on: the validation loss rises from "
        f"{-loss.values[best]:.4g} to {-loss.values[-1]:.4g} while the training loss still falls; "
        "regularise (dropout, weight decay, augmentation), get more data, or train shorter",
        "regularise",
        _steps_for(float(loss.steps[best]), loss),
    )


def _noisy(curve: Curve, metric: str) -> Finding | None:
    # The last points apart: a training may learn nothing for long, and then all at once.
    ends = curve.tail(0.5).values, curve.values[-LAST_POINTS:]
    gain = float(max(map(np.median, ends)) - curve.values[0])
    if gain <= 0 or curve.noise < 0.25 * gain:
        return None
    return Finding(
        f"{metric} jumps by {curve.noise:.2g} between evaluations, while the whole training gained "
        f"{gain:.2g}: enlarge the validation sample or lower the final learning rate"
    )


def _length(curve: Curve, metric: str) -> Finding | None:
    """Return the advice to train longer or shorter, or None."""
    last = float(curve.steps[-1])
    best = float(curve.steps[curve.best])
    ending = curve.tail(0.25)
    gain = float(ending.values[-1] - ending.values[0])
    is_relevant = gain > RELEVANT_GAIN * float(np.ptp(curve.values))
    if best >= LATE_SHARE * last and ending.slope() > CLEAR and is_relevant:
        return Finding(
            f"{metric} is still improving at the last step: train longer (raise training.steps, "
            "and stretch the schedule with it)",
            "longer",
            _steps_until_saturation(curve),
        )
    if best <= EARLY_SHARE * last:
        return Finding(
            f"the best {metric} is in the first {EARLY_SHARE:.0%} of the training: train shorter, "
            "or lower the learning rate",
            "shorter",
            _steps_for(best, curve),
        )
    saturated = _saturation(curve)
    if saturated <= 0.5 * last:
        enough = _steps_for(saturated, curve)
        return Finding(
            f"{metric} does not improve measurably after step {saturated:.0f} of {last:.0f}: "
            f"{enough} steps would suffice",
            "shorter",
            enough,
        )
    return None


def _steps_for(best: float, curve: Curve) -> int:
    """Return a length in whole evaluations whose last quarter begins at this step."""
    interval = float(np.median(np.diff(curve.steps)))
    steps = math.ceil(best / LATE_SHARE / interval) * interval
    return int(min(steps, float(curve.steps[-1])))


def _steps_until_saturation(curve: Curve) -> int:
    """Return a length with further quarters while each would gain enough at the current decay."""
    last = float(curve.steps[-1])
    interval = float(np.median(np.diff(curve.steps)))
    quarters = [float(part.mean()) for part in np.array_split(curve.values, 4)]
    before, newest = quarters[2] - quarters[1], quarters[3] - quarters[2]
    worthwhile = RELEVANT_GAIN * float(np.ptp(curve.values))
    longest = 4.0 * (LONGEST - 1.0)
    if 0 < newest < before:
        shrinking = newest / before
        more = math.ceil(math.log(worthwhile / newest) / math.log(shrinking))
        longest = min(longest, max(1, more))
    return int(math.ceil(last * (1.0 + longest / 4.0) / interval) * interval)


def _saturation(curve: Curve) -> float:
    """Return the first step whose value the best does not significantly exceed."""
    margin = CLEAR * curve.noise * math.sqrt(2.0)
    reached = np.flatnonzero(curve.values >= curve.values.max() - margin)
    return float(curve.steps[reached[0]])


def _clear_among(count: int) -> float:
    """Return the threshold for the best of many points, by Bonferroni's correction."""
    return -float(ndtri(ndtr(-CLEAR) / count))


def _in_errors(difference: float, error: float) -> float:
    if error > 0:
        return difference / error
    return math.copysign(math.inf, difference) if difference else 0.0
