"""Check `mixed_units`: columns of which some rows are in another unit than the others."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice

import numpy as np
import polars as pl
from scipy.stats import ks_2samp, median_abs_deviation
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from perennial.check_skeleton.baselines import describe_refusal, make_table
from perennial.check_skeleton.checks.data.signals import is_ordered, is_plain
from perennial.check_skeleton.checks.data.units.converted_rows import find_converted_rows
from perennial.check_skeleton.checks.data.units.counted_places import describe_counted_places
from perennial.check_skeleton.checks.data.units.exchanged_columns import describe_exchanged_columns
from perennial.check_skeleton.checks.data.units.group_units import (
    find_groups_in_another_order,
    find_groups_in_another_unit,
)
from perennial.check_skeleton.checks.data.units.running_totals import find_running_totals
from perennial.check_skeleton.checks.data.units.unit_factors import FACTORS, POWER
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Flags, Floats, Subject
from perennial.contracts.errors import join_names
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import inputs_of

MOST_COLUMNS = 24
FEWEST_ROWS, FEWEST_VALUES = 20, 20
LEAST_SHARE = 0.02
# Of the distance between the two groups: nearly no row lies in its middle third.
MOST_BETWEEN = 0.1
EXACT = 0.01
# Of the distance: what is known less exactly is near some factor by chance.
MOST_ERROR = 1 / 60
LARGEST = 50.0
# Of a normal distribution: deviation over median deviation, and error of a median over a mean's.
NORMAL, MEDIAN_ERROR = 1.4826, 1.2533
FEWEST_POSITIVE, SOME_POSITIVE = 0.9, 0.3
# Of the smaller group: what features tell apart leaves a few rows that are wrong.
PURE = 0.9
# Of a tree that looks for such features: smaller leaves, and more, learn single rows.
LEAST_IN_LEAF, MOST_LEAVES = 5, 64
# Taxes are as small; packs and years have whole numbers of pieces and months.
SMALLEST_CLEAR, MOST_PIECES = 1.5, 100
# One test for each pair of columns; rounding makes groups of one shape differ a little.
SAME_SHAPE = 1e-4
FOLDS, MOST_INPUTS = 4, 256
# Of labels beside what is expected of them: walks and drives are a factor of 10 apart.
FAR_APART, MOST_OTHERS = 11.0, 1 / 3
LAST, EXPECTED = "the last of ", "what the inputs tell of it"

CONVERT = (
    "if they are in two units, convert all rows to one, by their source, device or date; if the "
    "groups are real, give the model a feature that tells them apart"
)


@dataclass(frozen=True)
class Mixture:
    """Rows of which a number, or a ratio of two, falls into two groups of one shape."""

    factor: float  # between the groups
    units: str  # what has this factor between them
    is_other: Flags  # [N], rows of the smaller group
    # Whether a ratio is 1 in one of the groups: one quantity in both columns.
    is_same_quantity: bool

    @property
    def is_of_a_source(self) -> bool:
        """Whether a source may report it in another unit: little in the world is so far apart."""
        return self.units == POWER and self.factor > FAR_APART

    def is_certain(self, chosen: tuple[str, ...]) -> bool:
        """Whether hardly anything but a conversion has this factor in these columns."""
        if EXPECTED in chosen:
            return self.factor > FAR_APART and self.is_other.mean() < MOST_OTHERS
        if any(name.startswith(LAST) for name in chosen):
            return True
        nearest = round(self.factor)
        is_whole = abs(self.factor / nearest - 1) < EXACT and nearest <= MOST_PIECES
        return self.factor > SMALLEST_CLEAR and not is_whole


@check(
    "mixed_units",
    expects="numbers of a column in one unit, or a feature that names it; parts of lists in one "
    "order",
    source="guides: look at the data; factors: SI and customary units",
    needs_losses=False,
)
def check_mixed_units(subject: Subject, judge: Judge) -> CheckResult:
    """Check that no column, and no ratio of two, has groups of rows that lie a unit apart.

    Two kinds of animals and two lines of products lie apart, too: it fails only where one quantity
    is in both columns, as readings and the next reading are.
    """
    rows, columns = subject.train_rows, subject.task.columns
    names = [*columns.features, *([columns.label] if subject.task.kind == "regression" else [])]
    some = dict(islice(_list_numbers(rows, names), MOST_COLUMNS))
    if joined := _judge_joined(judge, subject, some):
        return joined
    numbers = {n: each for n, each in some.items() if np.isfinite(each).mean() >= FEWEST_POSITIVE}
    if not numbers:
        return judge.skipped("there are no positive numbers")
    results = list[CheckResult]()
    unseen = [name for name in rows.columns if name not in (*columns.features, columns.label)]
    pairs = _choose_columns(numbers)
    if (expected := _expect_labels(subject, numbers)) is not None:
        numbers[EXPECTED] = expected
        pairs.insert(0, (columns.label, EXPECTED))
    for chosen in pairs:
        found = _find_mixture([numbers[name] for name in chosen])
        if found is None:
            continue
        measured = (
            f"{found.is_other.mean():.0%} of the rows lie apart from the others in "
            f"{' / '.join(chosen)}, by a factor of {found.factor:.4g}: {found.units}"
        )
        # One quantity changes its unit at a date, but not by the weekday.
        aside = {*chosen, subject.time} if found.is_same_quantity else {*chosen}
        others = [name for name in columns.features if name not in aside]
        if teller := _find_tellers(rows, others, found):
            results.append(judge.passed(f"{measured}; {teller} tells them apart"))
        elif found.is_same_quantity and found.is_certain(chosen):
            return judge.failed(f"{measured}; they are equal in the other rows", hint=CONVERT)
        elif source := found.is_of_a_source and _find_tellers(rows, unseen, found):
            return judge.failed(f"{measured}; {source}, no feature, tells them apart", hint=CONVERT)
        else:
            results.append(judge.warned(f"{measured}; no feature tells them apart", hint=CONVERT))
    nothing = judge.passed(
        f"none of {len(numbers)} columns, and no ratio of two, lies a unit apart"
    )
    results.sort(key=lambda result: result.outcome != "warned")
    return next(iter(results), nothing)


def _judge_joined(judge: Judge, subject: Subject, numbers: dict[str, Floats]) -> CheckResult | None:
    """Judge rows, as of one source, that were joined without a conversion; None if none is."""
    if counted := describe_counted_places(subject):
        return judge.failed(
            counted,
            hint="a source counts from 1, so that each number names the next element, or the "
            "padding: subtract 1 where sources are joined",
        )
    if exchanged := describe_exchanged_columns(subject):
        return judge.failed(
            exchanged,
            hint="a source writes them in the other order, as longitude before latitude: name the "
            "columns where sources are joined",
        )
    if reordered := find_groups_in_another_order(subject):
        return (judge.failed if reordered.is_certain else judge.warned)(
            reordered.description,
            hint="name the parts where sources are joined, and give all rows one order. Correct "
            "for days of another time zone",
        )
    return _judge_sources(judge, subject, numbers)


def _judge_sources(
    judge: Judge, subject: Subject, numbers: dict[str, Floats]
) -> CheckResult | None:
    """Judge rows of another unit, or of running totals, as of one source; None if there are none.

    Labels in two units make any metric wrong; of features a model may know the source.
    """
    if totals := find_running_totals(subject):
        return (judge.failed if totals.is_certain else judge.warned)(
            totals.description,
            hint="a source exports running totals, the others what is added each time: take "
            "differences where sources are joined",
        )
    if converted := find_converted_rows(subject):
        report = judge.failed if converted.is_label else judge.warned
        return report(converted.description, hint=CONVERT)
    if apart := find_groups_in_another_unit(subject, numbers):
        return (judge.failed if apart.is_certain else judge.warned)(apart.description, hint=CONVERT)
    return None


def _expect_labels(subject: Subject, numbers: dict[str, Floats]) -> Floats | None:
    """Return the logarithms of the labels that trees read in the features of other rows."""
    rows, columns = subject.train_rows, subject.task.columns
    labels, inputs = numbers.get(columns.label), inputs_of(subject.train)
    if labels is None or np.isnan(labels).any():
        return None
    codes = [code for name in columns.features for _, code in _list_codes(rows[name])]
    tables = [np.stack(codes, axis=1)] if codes else []
    if not describe_refusal(inputs):
        tables.append(make_table(inputs))
    if not tables or sum(table.shape[1] for table in tables) > MOST_INPUTS:
        return None
    # Of the absolute error: a few rows in another unit do not move what is expected of all.
    model = HistGradientBoostingRegressor(loss="absolute_error", max_iter=MOST_LEAVES)
    folds = KFold(FOLDS, shuffle=True, random_state=0)
    return np.asarray(cross_val_predict(model, np.concatenate(tables, axis=1), labels, cv=folds))


def _choose_columns(numbers: dict[str, Floats]) -> list[tuple[str, ...]]:
    """Return each column, and the pairs whose ratio varies less than one of the two.

    In the ratios of other pairs, no groups are as far apart as in one of their columns.
    """
    filled = [np.where(np.isnan(each), np.nanmean(each), each) for each in numbers.values()]
    shared = np.atleast_2d(np.cov(filled))
    is_close = 2 * shared > np.minimum.outer(shared.diagonal(), shared.diagonal())
    pairs = combinations(enumerate(numbers), 2)
    close = [(one, two) for (row, one), (column, two) in pairs if is_close[row, column]]
    return [*((name,) for name in numbers), *close]


def _list_numbers(rows: pl.DataFrame, names: list[str]) -> Iterator[tuple[str, Floats]]:
    """Yield columns with positive numbers, of lists the last one, as logarithms; NaN is none."""
    for name in dict.fromkeys(names):
        column, shown = rows[name], name
        if column.dtype == pl.List and column.dtype.inner.is_numeric():  # type: ignore[attr-defined]
            column, shown = column.list.last(), f"{LAST}{name}"
        if not column.dtype.is_numeric():
            continue
        values = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
        is_positive = values > 0
        if is_positive.mean() >= SOME_POSITIVE:
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
    is_other = is_high if len(high) == fewer else ~is_high
    nearest = min(abs(np.median(low)), abs(np.median(high)))
    is_same = len(columns) == 2 and nearest < EXACT + 3 * error
    return Mixture(math.exp(distance), units, is_other, bool(is_same))


def _split(ordered: Floats) -> int:
    """Return where two groups begin to differ most: the largest variance between them."""
    count = np.arange(1, len(ordered))
    left = np.cumsum(ordered)[:-1]
    centred = left - count * ordered.mean()
    return int(np.argmax(centred**2 / (count * (len(ordered) - count)))) + 1


def _name_units(distance: float, tolerance: float) -> str:
    error, units = min(
        (abs(distance - math.log(factor)), units)
        for units, factors in FACTORS.items()
        for factor in factors
    )
    return units if error < tolerance else ""


def _find_tellers(rows: pl.DataFrame, names: list[str], found: Mixture) -> str:
    """Return the features by which a tree tells the groups apart; empty if it cannot."""
    codes = dict(pair for name in names for pair in _list_codes(rows[name]))
    if not codes:
        return ""
    tree = DecisionTreeClassifier(
        max_leaf_nodes=MOST_LEAVES, min_samples_leaf=LEAST_IN_LEAF, random_state=0
    )
    table = np.stack(list(codes.values()), axis=1)
    wrong = (tree.fit(table, found.is_other).predict(table) != found.is_other).sum()
    if wrong > (1 - PURE) * found.is_other.sum():
        return ""
    shares = zip(codes, tree.feature_importances_, strict=True)
    return join_names([name for name, share in shares if share >= 1 - PURE])


def _list_codes(column: pl.Series) -> Iterator[tuple[str, Floats]]:
    """Yield a column as numbers, and the hour, day and month of times."""
    if not is_plain(column):
        return
    values = column if is_ordered(column) else column.cast(pl.String).rank("dense")
    parts = {column.name: values.to_physical()}
    if column.dtype in (pl.Date, pl.Datetime):
        parts[f"the weekday of {column.name}"] = column.dt.weekday()
        parts[f"the month of {column.name}"] = column.dt.month()
    if column.dtype == pl.Datetime:
        parts[f"the hour of {column.name}"] = column.dt.hour()
    for name, part in parts.items():
        yield name, part.cast(pl.Float64).fill_null(np.nan).to_numpy()
