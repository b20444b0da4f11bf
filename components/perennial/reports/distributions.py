"""Distributions of a histogram: common bins that one outlier cannot ruin."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from perennial.reports.axes import Axis, padded_range
from perennial.reports.drawing import fill, stroke

_FAR = 10.0
"""Values farther out than this many times the range of the central 98 % do not set the axis."""


@dataclass(frozen=True)
class Bins:
    """Bins of equal width from `low` to `high`."""

    low: float
    high: float
    count: int

    @classmethod
    def of(cls, ordered: Sequence[float], count: int) -> Self:
        """Bins for all these sorted, finite values.

        Raises:
            ValueError: there would be no bin.
        """
        if count < 1:
            raise ValueError(f"a histogram needs at least one bin, not {count}")
        low, high = _central_range(ordered)
        # Between integers that are exact as floats, bins around each of them hide nothing.
        if high - low < count and abs(low) < 2**50 and all(v.is_integer() for v in ordered):
            return cls(low - 0.5, high + 0.5, int(high - low) + 1)
        return cls(*padded_range((low, high)), count)

    def shares(self, values: Sequence[float]) -> list[float]:
        """The share of the values in each bin; values outside count in the outermost."""
        counts = [0] * self.count
        for value in values:
            inside = (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)
            counts[min(self.count - 1, math.floor(inside * self.count))] += 1
        return [count / max(1, len(values)) for count in counts]

    def outside(self, values: Sequence[float]) -> int:
        """Return the number of values beyond the bins."""
        return sum(not self.low <= value <= self.high for value in values)


def outline(shares: Sequence[float], x_axis: Axis, y_axis: Axis, index: int) -> str:
    """The steps of a histogram as one area."""
    width = (x_axis.end - x_axis.start) / len(shares)
    steps = "".join(f"V{y_axis.at(share):.1f}h{width:.2f}" for share in shares)
    start = f"M{x_axis.start:.1f} {y_axis.start:.1f}"
    classes = f"t {stroke(index)} {fill(index)}"
    return f'<path class="{classes}" d="{start}{steps}V{y_axis.start:.1f}"/>'


def _central_range(ordered: Sequence[float]) -> tuple[float, float]:
    if not ordered:
        return 0.0, 1.0
    low, high = ordered[0], ordered[-1]
    cut = len(ordered) // 100
    inner_low, inner_high = ordered[cut], ordered[-1 - cut]
    spread = inner_high - inner_low
    if cut and 0 < _FAR * spread < high - low:
        return max(low, inner_low - spread), min(high, inner_high + spread)
    return low, high
