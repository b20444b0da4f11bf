"""Search space: points of the unit cube to values of hyperparameters, and back."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from pydantic import JsonValue, ValidationError

from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, with_values
from perennial.studies.config import Dimension

MOST_COMPARED = 100_000
"""Of more points of a grid, equal ones are counted too."""
Checked = TypeVar("Checked", bound=Section)
DIGITS = 4
"""Significant digits of a searched value: finer steps are below what any training can tell apart,
and equal values on every machine make equal trainings."""


def canonical(value: JsonValue) -> str:
    """Return a value's text, by which values are compared: 1, 1.0 and true differ."""
    return json.dumps(value, sort_keys=True)


def is_among(value: JsonValue, values: Iterable[JsonValue]) -> bool:
    """Whether a value is one of these."""
    return canonical(value) in map(canonical, values)


def is_met(when: Mapping[str, Iterable[JsonValue]], values: Mapping[str, JsonValue]) -> bool:
    """Whether values meet every condition: option → the values that it may have."""
    return all(parent in values and is_among(values[parent], held) for parent, held in when.items())


@dataclass(frozen=True)
class Axis:
    """One hyperparameter that is searched."""

    option: str
    dimension: Dimension

    @property
    def bounds(self) -> tuple[float, float]:
        """Return smallest and largest value of a range; choices have none, and no use for any."""
        return self.dimension.bounds or (0.0, 0.0)

    @property
    def is_log(self) -> bool:
        """Whether it is searched on a logarithmic scale."""
        return self.dimension.log is not None or self.dimension.log_integer is not None

    @property
    def size(self) -> int | None:
        """Return the number of its values; None for a range of real numbers."""
        found = self.dimension
        if found.choices is not None:
            return len(found.choices)
        if found.linear is not None:
            return None if found.step is None else self._steps + 1
        if found.integer is not None:
            return self._steps + 1
        return (
            None if found.log_integer is None else found.log_integer[1] - found.log_integer[0] + 1
        )

    @property
    def levels(self) -> int | None:
        """Return the number of evenly spaced values; None on a continuous or logarithmic scale."""
        return None if self.is_log else self.size

    def position(self, value: JsonValue) -> float:
        """Return where a value lies between the ends of a range, 0 to 1; beyond them outside.

        NaN for a value without a place, such as zero on a logarithmic scale. Unlike `unit`, whole
        numbers have no width: both ends are 0 and 1.
        """
        if isinstance(value, bool) or not isinstance(value, int | float):
            return math.nan
        low, high = self.bounds
        if self.is_log:
            return math.log(value / low) / math.log(high / low) if value > 0 else math.nan
        return (value - low) / (high - low)

    def at(self, position: float) -> float:
        """Return the value at a position, also beyond the ends, rounded for people."""
        low, high = self.bounds
        found = low * (high / low) ** position if self.is_log else low + position * (high - low)
        if self.levels is not None:
            found = low + round((found - low) / self._step) * self._step
        if self.dimension.log_integer is not None:
            return max(round(found), 1)  # zero has no place on a logarithmic scale
        if self.dimension.is_whole:
            return round(found)
        if self.is_log:
            return float(f"{found:.3g}")
        # Relative to the width: 0.999 and 0.9999 differ as much as 0.1 and 0.01 from 1.
        return float(f"{found:.10g}") if self.levels else round(found, self._decimals - 1)

    @property
    def _steps(self) -> int:
        low, high = self.bounds
        return math.floor((high - low) / self._step + 1e-9)

    @property
    def _step(self) -> float:
        return self.dimension.step or 1.0

    @property
    def _decimals(self) -> int:
        # Relative to the width of the range: near zero, significant digits would be too fine.
        low, high = self.bounds
        return DIGITS - math.floor(math.log10(high - low))

    def value(self, u: float) -> JsonValue:
        """Return the value at a place of the axis, `u` from 0 to 1; both ends are reached."""
        found = self.dimension
        if found.choices is not None:
            return found.choices[min(int(u * len(found.choices)), len(found.choices) - 1)]
        return self.number(u)

    def number(self, u: float) -> float:
        """Return the number at a place of a range."""
        found, (low, high) = self.dimension, self.bounds
        if found.integer is not None or (found.linear is not None and found.step is not None):
            place = min(int(u * (self._steps + 1)), self._steps)
            stepped = low + place * self._step
            return round(stepped) if found.integer is not None else float(f"{stepped:.10g}")
        if found.log_integer is not None:
            # Half a number beyond both ends, so that the ends are as likely as their neighbours.
            first, last = math.log(low - 0.5), math.log(high + 0.5)
            return int(min(max(round(math.exp(first + u * (last - first))), low), high))
        if found.log is not None:
            real = low * math.exp(u * math.log(high / low))
            return min(max(float(f"{real:.{DIGITS}g}"), low), high)
        return min(max(round(low + u * (high - low), self._decimals), low), high)

    def unit(self, value: JsonValue) -> float | None:
        """Return the place of a value from 0 to 1; beyond them if it is outside the range.

        None for a value that is not on the axis: not a number, or none of the choices. A choice
        and a whole number have the middle of their interval.
        """
        if self.dimension.choices is not None:
            known = [canonical(each) for each in self.dimension.choices]
            found = canonical(value)
            return (known.index(found) + 0.5) / len(known) if found in known else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        low, high = self.bounds
        if self.dimension.log_integer is not None:
            low, high = low - 0.5, high + 0.5
        if self.is_log:
            return math.log(value / low) / math.log(high / low) if value > 0 else -math.inf
        if self.size is not None:
            return ((value - low) / self._step + 0.5) / self.size
        return (value - low) / (high - low)

    def values(self) -> list[JsonValue]:
        """Return all values, in their order; none of a range of real numbers."""
        return [self.value((i + 0.5) / (self.size or 1)) for i in range(self.size or 0)]

    def grid_values(self) -> list[JsonValue]:
        """Return the values of a grid: all of them, or `grid_points` spread over the range."""
        count = self.dimension.grid_points or self.size
        if self.dimension.choices is not None or count is None or count == self.size:
            return self.values()
        return [self.value(i / (count - 1)) for i in range(count)]


class Space:
    """All hyperparameters that vary: those searched, and those tied to others.

    `baseline` has the contract's values of each dimension and of what one is tied to.
    """

    def __init__(
        self, dimensions: Mapping[str, Dimension], baseline: Mapping[str, JsonValue]
    ) -> None:
        self._dimensions = dimensions
        self._baseline = baseline
        self._order = in_order(dimensions)
        self.axes = tuple(
            Axis(name, dimensions[name]) for name in self._order if dimensions[name].same_as is None
        )
        """The axes of the unit cube; one that others depend on comes before them."""

    @property
    def free(self) -> tuple[str, ...]:
        """Return the options that are searched, in the order of the axes."""
        return tuple(axis.option for axis in self.axes)

    def axis(self, option: str) -> Axis:
        """Return the axis of an option that is searched."""
        return next(axis for axis in self.axes if axis.option == option)

    def is_active(self, option: str, values: Mapping[str, JsonValue]) -> bool:
        """Whether an option has a meaning beside the values of those that come before it."""
        return is_met(self._dimensions[option].when, values)

    def decode(
        self, point: Sequence[float], chosen: Mapping[str, JsonValue] | None = None
    ) -> dict[str, JsonValue]:
        """Return the values at a point of the unit cube; those without a meaning are left out.

        `chosen` values take the place of the point's.
        """
        places = dict(zip(self.free, point, strict=True))
        searched = {option: self.axis(option).value(place) for option, place in places.items()}
        return self.complete({**searched, **(chosen or {})})

    def complete(self, searched: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Return searched values without those that have no meaning, with those tied to them."""
        values: dict[str, JsonValue] = {}
        for option in self._order:
            if not self.is_active(option, values):
                continue
            is_tied = self._dimensions[option].same_as is not None
            values[option] = self.tied(option, values) if is_tied else searched[option]
        return values

    def tied(self, option: str, values: Mapping[str, JsonValue]) -> JsonValue:
        """Return the value of an option that is tied to another."""
        dimension = self._dimensions[option]
        target = dimension.same_as or ""
        found = values[target] if target in values else self._baseline[target]
        return _times(found, dimension.times)

    def grid(self) -> list[dict[str, JsonValue]]:
        """Return each different combination of the axes' levels, in the order of the options."""
        combinations = product(*(axis.grid_values() for axis in self.axes))
        found = (self.complete(dict(zip(self.free, each, strict=True))) for each in combinations)
        return list({canonical(dict(values)): values for values in found}.values())

    @property
    def grid_size(self) -> int:
        """Return the number of the grid's points; of very many, with those that are equal."""
        size = math.prod(axis.dimension.grid_points or axis.size or 1 for axis in self.axes)
        return len(self.grid()) if size <= MOST_COMPARED else size

    def contains(self, values: Mapping[str, JsonValue]) -> bool:
        """Whether all values of the axes that have a meaning are inside their ranges."""
        return all(
            axis.option in values
            and (place := axis.unit(values[axis.option])) is not None
            and -1e-9 <= place <= 1 + 1e-9
            for axis in self.axes
            if self.is_active(axis.option, values)
        )


def _times(value: JsonValue, factor: float) -> JsonValue:
    if factor == 1.0 or isinstance(value, bool) or not isinstance(value, int | float):
        return value
    result = value * factor
    return int(result) if isinstance(value, int) and result.is_integer() else result


def in_order(dimensions: Mapping[str, Dimension]) -> list[str]:
    """Return the options so that each comes after those that it depends on.

    Raises:
        PerennialError: they depend on each other in a circle.
    """
    waiting = {
        option: {
            other
            for other in (*dimension.when, dimension.same_as)
            if other in dimensions and other is not None
        }
        for option, dimension in dimensions.items()
    }
    ordered: list[str] = []
    while waiting:
        ready = [option for option, others in waiting.items() if others <= set(ordered)]
        if not ready:
            raise PerennialError(
                "the study's hyperparameters depend on each other in a circle",
                evidence="; ".join(
                    f"{option} depends on {', '.join(sorted(others))}"
                    for option, others in waiting.items()
                ),
                action="remove one `when` or `same_as` of the circle",
            )
        ordered += ready
        waiting = {option: rest for option, rest in waiting.items() if option not in ready}
    return ordered


def option_value(document: Mapping[str, JsonValue], option: str) -> tuple[bool, JsonValue]:
    """Return whether a document has an option, and its value."""
    found: JsonValue = dict(document)
    for part in option.split("."):
        if not isinstance(found, dict) or part not in found:
            return False, None
        found = found[part]
    return True, found


def read_with(
    kind: type[Checked], document: Mapping[str, JsonValue], values: Mapping[str, JsonValue]
) -> Checked:
    """Read a contract, or some of its sections, with other values of some options.

    Where a value makes a table another kind, such as an optimizer with another name, the contract's
    other options of that table which this kind does not have, or not with that value, get their
    defaults.

    Raises:
        pydantic.ValidationError: a value is refused.
    """
    changed = with_values(document, values)
    try:
        return kind.model_validate_json(json.dumps(changed))
    except ValidationError as error:
        siblings = {option.rpartition(".")[0] for option in values}
        dropped = [
            keys
            for each in error.errors(include_url=False)
            for keys in [_keys(changed, each["loc"])]
            # The place of an option in a table of several kinds has the kind's tag, too.
            if len(keys) < len(each["loc"])
            and ".".join(keys) not in values
            and ".".join(keys[:-1]) in siblings
        ]
        if not dropped:
            raise
    for *tables, name in dropped:
        table = changed
        for part in tables:
            inner = table[part]
            table = inner if isinstance(inner, dict) else {}
        table.pop(name, None)
    return kind.model_validate_json(json.dumps(changed))


def _keys(document: Mapping[str, JsonValue], location: Sequence[str | int]) -> list[str]:
    """Return a location's keys in the document: the tag of a union is none."""
    keys: list[str] = []
    found: JsonValue = dict(document)
    for part in location:
        if isinstance(found, dict) and part in found:
            found = found[str(part)]
            keys.append(str(part))
    return keys
