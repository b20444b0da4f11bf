"""Search table: the trials of a study's search as arrays, on each dimension's own scale."""

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue

from perennial.studies.config import Dimension
from perennial.studies.records import StudyPlan, Trial

Floats: TypeAlias = NDArray[np.float64]
FEW_VALUES = 6  # whole numbers or steps up to here are compared value by value


@dataclass(frozen=True)
class Scale:
    """A dimension's own scale, from 0 at its smallest value to 1 at its largest.

    Attributes:
        low: Smallest value.
        high: Largest value.
        is_log: Whether equal distances are equal factors.
        whole: Whether values are whole numbers.
        step: Distance of the allowed values; None where all are allowed.
    """

    low: float
    high: float
    is_log: bool
    whole: bool
    step: float | None = None

    @classmethod
    def of(cls, dimension: Dimension) -> "Scale | None":
        """Return a range's scale; None for choices and for values that follow another's."""
        for name in ("log", "linear", "integer", "log_integer"):
            limits = getattr(dimension, name)
            if limits is not None:
                whole = "integer" in name
                step = dimension.step or (1.0 if name == "integer" else None)
                return cls(float(limits[0]), float(limits[1]), "log" in name, whole, step)
        return None

    def position(self, value: float) -> float:
        """Return where a value lies; beyond 0 and 1 outside of the range."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def place(self, value: JsonValue) -> float:
        """Return where any value lies; NaN for one without a place, as zero on a log scale.

        The baseline's value may lie outside of the space.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return math.nan
        return math.nan if self.is_log and value <= 0 else self.position(float(value))

    def value(self, position: float) -> float:
        """Return the value at a position, rounded to what the dimension allows."""
        if self.is_log:
            found = self.low * (self.high / self.low) ** position
        else:
            found = self.low + position * (self.high - self.low)
        if self.step is not None and not self.is_log:
            found = self.low + round((found - self.low) / self.step) * self.step
        return float(round(found)) if self.whole else float(f"{found:.3g}")

    @property
    def levels(self) -> int | None:
        """Return the number of allowed values; None for a continuous scale."""
        if self.is_log or self.step is None:
            return None
        return int((self.high - self.low) / self.step + 1e-9) + 1


@dataclass(frozen=True)
class Search:
    """The trials that searched; confirmations are not among them."""

    plan: StudyPlan
    trials: tuple[Trial, ...]

    @classmethod
    def of(cls, plan: StudyPlan, trials: Sequence[Trial]) -> "Search":
        """Return the search trials in the order of their numbers."""
        searched = (trial for trial in trials if trial.stage != "confirm")
        return cls(plan, tuple(sorted(searched, key=lambda trial: trial.number)))

    @property
    def sign(self) -> float:
        """Return what turns the metric into a number of which more is better."""
        return 1.0 if self.plan.direction == "maximize" else -1.0

    @cached_property
    def dimensions(self) -> dict[str, Dimension]:
        """Return option → space of the dimensions that vary on their own."""
        found = self.plan.study.dimensions
        return {option: each for option, each in found.items() if each.same_as is None}

    @cached_property
    def scales(self) -> dict[str, Scale]:
        """Return option → scale of the ranges."""
        found = {option: Scale.of(each) for option, each in self.dimensions.items()}
        return {option: scale for option, scale in found.items() if scale is not None}

    @cached_property
    def usable(self) -> tuple[Trial, ...]:
        """Return the trials whose values can be compared."""
        return tuple(trial for trial in self.trials if trial.is_usable)

    @cached_property
    def values(self) -> Floats:
        """Return the usable trials' values, signed so that more is better, shape [N]."""
        return self.sign * np.array([trial.value for trial in self.usable], dtype=np.float64)

    @cached_property
    def ranked(self) -> tuple[Trial, ...]:
        """Return the usable trials, the best first and the earliest of equals."""
        order = np.argsort(-self.values, kind="stable")
        return tuple(self.usable[index] for index in order)

    def positions(self, option: str, trials: Sequence[Trial]) -> Floats:
        """Return where trials lie in a range, shape [N]; NaN where it has no meaning."""
        scale = self.scales[option]
        return np.array([scale.place(trial.values.get(option)) for trial in trials])

    def groups(self, option: str, bins: int = 4) -> dict[str, list[int]]:
        """Return the value, or bin of a range, → indices of the usable trials that have it.

        Few values are groups of their own; others are cut into bins of equal width on their scale.
        """
        scale, found = self.scales.get(option), dict[str, list[int]]()
        is_binned = scale is not None and (scale.levels is None or scale.levels > FEW_VALUES)
        for index, trial in enumerate(self.usable):
            if option not in trial.values:
                continue
            name = shown_value(trial.values[option])
            place = math.nan if scale is None else scale.place(trial.values[option])
            if is_binned and scale is not None and math.isfinite(place):
                number = min(max(int(place * bins), 0), bins - 1)
                ends = scale.value(number / bins), scale.value((number + 1) / bins)
                name = f"{ends[0]:.3g} to {ends[1]:.3g}"
            found.setdefault(name, []).append(index)
        order = self._order(option, bins)
        return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))

    def _order(self, option: str, bins: int) -> dict[str, int]:
        scale, dimension = self.scales.get(option), self.dimensions[option]
        if scale is None:
            names = [shown_value(choice) for choice in dimension.choices or ()]
        elif scale.levels is not None and scale.levels <= FEW_VALUES:
            values = [scale.low + (scale.step or 1.0) * each for each in range(scale.levels)]
            names = [shown_value(int(each) if scale.whole else each) for each in values]
        else:
            ends = [scale.value(number / bins) for number in range(bins + 1)]
            names = [f"{low:.3g} to {high:.3g}" for low, high in itertools.pairwise(ends)]
        return {name: place for place, name in enumerate(names)}


def shown_value(value: JsonValue) -> str:
    """Return a value as people write it; equal values give equal texts."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value)
