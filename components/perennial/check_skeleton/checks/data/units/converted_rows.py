"""Find numbers that were rounded in one unit, of which some rows were then converted to another.

Hours with one decimal are multiples of a tenth. Some of them divided by 24 are not, and become such
multiples again if they are multiplied by 24. Rows whose unit was rightly converted to that of the
others have a scale of their own, too, but lie where the others do.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.units.unit_factors import FACTORS, POWER
from perennial.check_skeleton.subject import Floats, Subject

# Decimals of a column that people or devices round.
DECIMALS = range(4)
ROUNDED_SHARE, FEWEST_ROWS, LEAST_SHARE, FEWEST_VALUES = 0.3, 40, 0.02, 20
MOST_ROWS = 400
# Of a step: the distance from its multiples, which a fifth of all numbers have by chance.
NEAR, NEARLY_ALL = 0.1, 0.95
# Factors are written with three digits and more; steps beyond this many need more of them.
FACTOR_ERRORS = np.linspace(-1e-3, 1e-3, 801)
FEWEST_STEPS, MOST_STEPS = 5.0, 2e4
SMALLEST_FACTOR = 1.5
# Of the factor's logarithm: groups differ in what they measure, too. At the middle and the ends.
QUANTILES, OTHER_PLACES = (0.1, 0.5, 0.9), (0.35, 0.25, 0.35)
ROUNDING = 1e-6


@dataclass(frozen=True)
class ConvertedRows:
    """Rows of a column in another unit than the others.

    Attributes:
        description: Of the column, the share of its rows and the factor.
        is_label: Whether it is the label, which is predicted in one unit.
    """

    description: str
    is_label: bool


def find_converted_rows(subject: Subject) -> ConvertedRows | None:
    """Return rows that are rounded in another unit than the others; None if there are none."""
    columns = subject.task.columns
    for name in dict.fromkeys((columns.label, *columns.features)):
        column = subject.train_rows[name]
        if not column.dtype.is_float():
            continue
        values = column.drop_nulls().cast(pl.Float64).to_numpy()
        values = values[np.isfinite(values) & (values > 0)]
        if (found := _split_by_rounding(values)) is None:
            continue
        step, rounded, others = found
        for units, factor in _list_factors():
            if _are_converted(rounded, others, factor, step):
                way = f"times {factor:.5g}" if factor > 1 else f"divided by {1 / factor:.5g}"
                share = len(others) / len(values)
                description = (
                    f"{share:.0%} of the rows lie apart from the others in {name}, and, {way}, "
                    f"become multiples of {step:g} as all others are: {units}"
                )
                return ConvertedRows(description, is_label=name == columns.label)
    return None


def _list_factors() -> Iterator[tuple[str, float]]:
    for units, factors in FACTORS.items():
        for factor in factors:
            if units != POWER and factor > SMALLEST_FACTOR:
                yield units, factor
                yield units, 1 / factor


def _split_by_rounding(values: Floats) -> tuple[float, Floats, Floats] | None:
    """Return a step, the values that are its multiples, and those that are no round numbers."""
    if len(values) < 2 * FEWEST_ROWS:
        return None
    for decimals in DECIMALS:
        is_rounded = _are_whole(values * 10**decimals)
        if is_rounded.mean() < ROUNDED_SHARE:
            continue
        rounded, others = values[is_rounded], values[~is_rounded]
        if len(others) < max(FEWEST_ROWS, LEAST_SHARE * len(values)):
            return None
        finer = max(_are_whole(others * 10 ** (decimals + more)).mean() for more in (1, 2))
        is_varied = min(len(np.unique(rounded)), len(np.unique(others))) >= FEWEST_VALUES
        return (10.0**-decimals, rounded, others) if is_varied and finer < 0.5 else None
    return None


def _are_whole(values: Floats) -> np.ndarray:
    return np.asarray(np.abs(values - np.round(values)) <= ROUNDING * np.maximum(values, 1.0))


def _are_converted(rounded: Floats, others: Floats, factor: float, step: float) -> bool:
    """Whether the others are the rounded ones divided by a factor, by their place and steps."""
    places = np.quantile(np.log(others * factor), QUANTILES)
    away = np.abs(places - np.quantile(np.log(rounded), QUANTILES))
    if (away > np.array(OTHER_PLACES) * abs(np.log(factor))).any():
        return False
    every = max(len(others) // MOST_ROWS, 1)
    steps = others[::every] * factor / step
    if not FEWEST_STEPS <= np.median(steps) <= MOST_STEPS or not _are_multiples(steps):
        return False
    # Thirds are multiples of a 24th, too.
    parts = (part for part in (2, 3, 5, 7) if round(factor) == factor and factor % part == 0)
    return not any(_are_multiples(steps / part) for part in parts)


def _are_multiples(steps: Floats) -> bool:
    """Whether nearly all are whole numbers under one small correction of the factor."""
    corrected = steps[:, None] * (1 + FACTOR_ERRORS)
    off = np.abs(corrected - np.round(corrected))
    return bool(((off < NEAR).mean(axis=0) >= NEARLY_ALL).any())
