"""Check `mixed_units`: columns of which some rows are in another unit than the others."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np
import polars as pl
from scipy.stats import ks_2samp, median_abs_deviation

from perennial.check_skeleton.checks.data.signals import group_values, is_plain
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Flags, Floats, Subject
from perennial.contracts.skeleton import CheckResult

# Larger unit / smaller unit; glucose and cholesterol in mg/dl and mmol/l, creatinine in µmol/l.
FACTORS = {
    "a power of ten": (10.0, 100.0, 1000.0, 1e4, 1e6, 1e9),
    "minutes, hours, days or weeks": (60.0, 3600.0, 86_400.0, 24.0, 1440.0, 7.0),
    "kilograms and pounds, or ounces and grams": (2.20462, 28.3495, 16.0),
    "metres, feet, inches, yards or centimetres": (3.28084, 39.3701, 2.54, 12.0, 1.09361, 30.48),
    "kilometres and miles, or knots": (1.609344, 1.852, 1.150779),
    "litres and gallons": (3.785412, 4.54609),
    "joules and calories, or kilowatt-hours": (4.184, 3.6),
    "bar, psi, kilopascal or millimetres of mercury": (14.5038, 6.89476, 7.50062),
    "mg/dl and mmol/l": (18.016, 38.67, 88.57, 88.42),
    "radians and degrees": (57.29578,),
}
MOST_COLUMNS = 24
FEWEST_ROWS, FEWEST_VALUES = 20, 20
LEAST_SHARE = 0.02
# Of the distance between the two groups: nearly no row lies in its middle third.
MOST_BETWEEN = 0.05
EXACT = 0.01
# Of the distance: what is known less exactly is near some factor by chance.
MOST_ERROR = 1 / 60
LARGEST = 50.0
# Of a normal distribution: deviation over median deviation, and error of a median over a mean's.
NORMAL, MEDIAN_ERROR = 1.4826, 1.2533
FEWEST_POSITIVE = 0.9
# Of the smaller group: what features tell apart leaves a few rows that are wrong.
PURE = 0.9
# One test for each pair of columns; rounding makes groups of one shape differ a little.
SAME_SHAPE = 1e-4


@dataclass(frozen=True)
class Mixture:
    """Rows of which a number, or a ratio of two, falls into two groups of one shape."""

    factor: float  # between the groups
    units: str  # what has this factor between them
    is_other: Flags  # [N], rows of the smaller group


@check(
    "mixed_units",
    expects="numbers of a column in one unit, or a feature that names it",
    source="guides: look at the data; factors: SI and customary units",
    needs_losses=False,
)
def check_mixed_units(subject: Subject, judge: Judge) -> CheckResult:
    """Check that no column, and no ratio of two, has groups of rows that lie a unit apart."""
    rows, columns = subject.train_rows, subject.task.columns
    names = [*columns.features, *([columns.label] if subject.task.kind == "regression" else [])]
    numbers = dict(islice(_list_numbers(rows, names), MOST_COLUMNS))
    if not numbers:
        return judge.skipped("there are no positive numbers")
    alone = [(name,) for name in numbers]
    for chosen in [*alone, *combinations(numbers, 2)]:
        found = _find_mixture([numbers[name] for name in chosen])
        if found is None:
            continue
        measured = (
            f"{found.is_other.mean():.0%} of the rows lie apart from the others in "
            f"{' / '.join(chosen)}, by a factor of {found.factor:.4g}: {found.units}"
        )
        others = [name for name in columns.features if name not in chosen]
        if teller := _find_teller(rows, others, found):
            return judge.passed(f"{measured}; {teller} tells them apart")
        return judge.failed(
            measured,
            hint="convert all rows to one unit, by their source, device or date; if the groups are "
            "real, give the model a feature that tells them apart",
        )
    return judge.passed(f"none of {len(numbers)} columns, and no ratio of two, lies a unit apart")


def _list_numbers(rows: pl.DataFrame, names: list[str]) -> Iterator[tuple[str, Floats]]:
    """Yield columns of positive numbers, of lists the last one, as logarithms; NaN is missing."""
    for name in dict.fromkeys(names):
        column, shown = rows[name], name
        if column.dtype == pl.List and column.dtype.inner.is_numeric():  # type: ignore[attr-defined]
            column, shown = column.list.last(), f"the last of {name}"
        if not column.dtype.is_numeric():
            continue
        values = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
        is_positive = values > 0
        if is_positive.mean() >= FEWEST_POSITIVE:
            yield shown, np.log(np.where(is_positive, values, np.nan))


def _find_mixture(columns: list[Floats]) -> Mixture | None:
    """Return the two groups of one column of logarithms, or of the difference of two, if any.

    They are of one shape, nearly nothing lies between them, and their distance is that of units.
    """
    values = columns[0] if len(columns) == 1 else columns[0] - columns[1]
    known = np.sort(values[np.isfinite(values) & (np.abs(values) < LARGEST)])
    if len(known) < 2 * FEWEST_ROWS:
        return None
    border = _split(known)
    low, high = known[:border], known[border:]
    fewer = min(len(low), len(high))
    if fewer < max(FEWEST_ROWS, LEAST_SHARE * len(known)):
        return None
    if min(len(np.unique(low)), len(np.unique(high))) < FEWEST_VALUES:
        return None
    distance = float(np.median(high) - np.median(low))
    spread = max(median_abs_deviation(low), median_abs_deviation(high)) * NORMAL
    error = MEDIAN_ERROR * spread * math.sqrt(1 / len(low) + 1 / len(high))
    first, last = np.searchsorted(known, np.median(low) + np.array([1, 2]) * distance / 3)
    if last - first > MOST_BETWEEN * fewer or error > MOST_ERROR * distance:
        return None
    units = _name_units(distance, EXACT + 3 * error)
    same = ks_2samp(low - np.median(low), high - np.median(high)).pvalue > SAME_SHAPE
    if not units or not same:
        return None
    is_high = values >= known[border]
    return Mixture(math.exp(distance), units, is_high if len(high) == fewer else ~is_high)


def _split(ordered: Floats) -> int:
    """Return where two groups begin to differ most: the largest variance between them."""
    count = np.arange(1, len(ordered))
    left = np.cumsum(ordered)[:-1]
    centred = left - count * ordered.mean()
    return int(np.argmax(centred**2 / (count * (len(ordered) - count)))) + 1


def _name_units(distance: float, tolerance: float) -> str:
    near = {
        name: abs(distance - math.log(factor))
        for name, factors in FACTORS.items()
        for factor in factors
        if abs(distance - math.log(factor)) < tolerance
    }
    return min(near, key=lambda name: near[name], default="")


def _find_teller(rows: pl.DataFrame, names: list[str], found: Mixture) -> str:
    """Return a feature of which each value lies in one of the groups; empty if there is none."""
    for name in names:
        if not is_plain(rows[name]):
            continue
        groups = pl.DataFrame({"group": group_values(rows[name]), "other": found.is_other})
        share = groups.group_by("group").agg(pl.col("other").sum(), pl.len())
        right = share.select(pl.max_horizontal("other", pl.col("len") - pl.col("other"))).sum()
        if right.item() >= rows.height - (1 - PURE) * found.is_other.sum():
            return name
    return ""
