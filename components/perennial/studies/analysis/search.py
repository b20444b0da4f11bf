"""Search table: a study's search trials as arrays on each dimension's scale, and its finalists."""

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
from scipy.special import ndtri
from scipy.stats import rankdata

from perennial.studies.records import StudyPlan, Trial
from perennial.studies.space import Axis

Floats: TypeAlias = NDArray[np.float64]
FEW_VALUES = 6  # whole numbers or steps up to here are compared value by value
MOST_FINALISTS = 4
"""Each further finalist costs `confirmations` trainings, and widens the intervals of all."""
THIRDS = 3
"""A range is asked about as its lower, middle and upper third, on its own scale."""


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
    def axes(self) -> dict[str, Axis]:
        """Return option → axis of the dimensions that vary on their own."""
        found = self.plan.study.dimensions.items()
        return {option: Axis(option, each) for option, each in found if each.same_as is None}

    @cached_property
    def ranges(self) -> dict[str, Axis]:
        """Return option → axis of the ranges."""
        found = self.axes.items()
        return {option: axis for option, axis in found if axis.dimension.bounds is not None}

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
        axis = self.ranges[option]
        return np.array([axis.position(trial.values.get(option)) for trial in trials])

    def groups(self, option: str, bins: int = 4) -> dict[str, list[int]]:
        """Return the value, or bin of a range, → indices of the usable trials that have it.

        Few values are groups of their own; others are cut into bins of equal width on their scale.
        """
        axis, found = self.ranges.get(option), dict[str, list[int]]()
        names = [shown_value(value) for value in _single_values(self.axes[option])]
        is_binned = axis is not None and not names
        if axis is not None and is_binned:
            ends = [axis.at(number / bins) for number in range(bins + 1)]
            names = [f"{low:.10g} to {high:.10g}" for low, high in itertools.pairwise(ends)]
        for index, trial in enumerate(self.usable):
            if option not in trial.values:
                continue
            name = shown_value(trial.values[option])
            place = math.nan if axis is None else axis.position(trial.values[option])
            if is_binned and math.isfinite(place):
                name = names[min(max(int(place * len(names)), 0), len(names) - 1)]
            found.setdefault(name, []).append(index)
        order = {name: place for place, name in enumerate(names)}
        return dict(sorted(found.items(), key=lambda item: order.get(item[0], len(order))))


def _single_values(axis: Axis) -> list[JsonValue]:
    """Return the values that are compared one by one; none for a range of many."""
    few = axis.dimension.choices is not None or (axis.levels or math.inf) <= FEW_VALUES
    return axis.values() if few else []


def finalists(plan: StudyPlan, trials: Sequence[Trial]) -> tuple[int, ...]:
    """Return the numbers of the finalists, the best first; none if no trial but the baseline ended.

    The best trial, and the best one of each value, or third of a range, that a scientific
    hyperparameter has, up to four. The baseline, trial 0, is confirmed with them in any case and is
    none of them.
    """
    search = Search.of(plan, trials)
    found = [trial.number for trial in search.ranked if trial.number][:1]
    chosen = best_by_value(search)
    wanted = {number for numbers in chosen.values() for number in numbers.values()}
    rest = [trial.number for trial in search.ranked if trial.number in wanted]
    return tuple(dict.fromkeys([*found, *rest]))[:MOST_FINALISTS]


def best_by_value(search: Search) -> dict[str, dict[str, int]]:
    """Return scientific option → value, or third of a range → number of the best trial that has it.

    The baseline stands for none: its other values may lie outside of what was searched for all.
    """
    found: dict[str, dict[str, int]] = {}
    for option in search.plan.study.scientific:
        if option not in search.axes:  # it is tied to another one
            continue
        groups = search.groups(option, bins=THIRDS)
        names = {search.usable[i].number: name for name, group in groups.items() for i in group}
        best: dict[str, int] = {}
        for trial in search.ranked:
            if trial.number and trial.number in names:
                best.setdefault(names[trial.number], trial.number)
        found[option] = best
    return found


def normal_scores(values: Floats) -> Floats:
    """Return the normal quantiles of the values' ranks (Blom, 1958): no outlier dominates them."""
    return np.asarray(ndtri((rankdata(values) - 0.375) / (len(values) + 0.25)))


def shown_value(value: JsonValue) -> str:
    """Return a value as people write it; equal values give equal texts."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:.10g}"
    return json.dumps(value)
