"""Slices: compare the models on declared groups and on groups found by search.

A shallow search over the columns: values of text, quarters of numbers, and pairs of conditions on
two columns. It only proposes: the rows that it searched must not judge its proposals, which Athey
and Imbens (2016) call honest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.gate import SliceComparison
from perennial.engine.evaluation.resampling import Blocks
from perennial.engine.metrics.arrays import (
    NUMBERS_AT_ONCE,
    array_of,
    evenly_spaced,
    parts_of,
    slices_of,
)
from perennial.engine.metrics.metric import EXACT_ROWS
from perennial.engine.metrics.probabilities import log_losses
from perennial.gate.comparison import (
    Contender,
    Match,
    explain_incomparable,
    find_undefined,
    improvement_of,
    measure_metrics,
)
from perennial.gate.config import GateSection

Rows = NDArray[np.bool_]
Floats = NDArray[np.float64]
Codes = NDArray[np.int64]

PROPOSALS = 5  # the correction for their number costs each of them power
REFINED = 8  # single conditions that are searched for a second one
QUARTERS = (0.25, 0.5, 0.75)
FEW_VALUES = 12  # numbers with so few are taken one by one
MOST_VALUES = 30  # of a text column, the most frequent
VALUE = "value"  # a column's own name may be `count`, which polars adds
# Proposals that share more than this of their rows count as one.
ALIKE = 0.5


@dataclass(frozen=True)
class Slice:
    """A group of rows that is judged separately.

    Attributes:
        column: The column that selects them; empty for a slice found by search.
        value: The column's value, or the condition found by search, such as `distance > 900`.
        rows: Whether each row belongs to it, shape [N].
        conditions: Of a slice found by search: columns, each with its value or range.
    """

    column: str
    value: str
    rows: Rows
    conditions: tuple[tuple["Column", int], ...] = ()

    def combine(self, other: "Slice") -> "Slice":
        """Return the rows that meet the conditions of both."""
        value, rows = f"{self.value} and {other.value}", self.rows & other.rows
        return Slice("", value, rows, (*self.conditions, *other.conditions))

    def among(self, frame: pl.DataFrame) -> Rows:
        """Return which rows of a frame meet the conditions, shape [N]."""
        return array_of(
            np.logical_and.reduce(
                [column.cut(frame[part][column.name]) == at for column, at in self.conditions]
            )
            for part in slices_of(frame.height, NUMBERS_AT_ONCE)
        )


@dataclass(frozen=True)
class Column:
    """A column, cut into values or ranges.

    Attributes:
        name: The column's.
        names: Name of each value or range, shape [K].
        cut: Values [N] → position of each one's value or range, in [0, K); -1 for none, shape [N].
        codes: Positions of the rows that are searched.
    """

    name: str
    names: tuple[str, ...]
    cut: Callable[[pl.Series], Codes]
    codes: Codes

    def slice(self, number: int) -> Slice:
        """Return the rows of one value or range."""
        return Slice("", self.names[number], self.codes == number, ((self, number),))


@dataclass(frozen=True)
class Excess:
    """How much the challenger exceeds the allowed regression, row by row.

    Attributes:
        sums: Weighted excess of each row; positive is beyond the allowed regression, shape [N].
        min_rows: Smaller groups are not proposed.
    """

    sums: Floats
    weights: Floats
    blocks: Blocks
    min_rows: int

    def scores(self, codes: Codes, count: int, rows: Rows) -> Floats:
        """Return each value's mean excess over its standard error between blocks, shape [K].

        Minus infinity if rows or blocks are too few.
        """
        used = rows & (codes >= 0)
        cell = self.blocks.index[used] * count + codes[used]
        shape = self.blocks.count, count

        def total(values: Floats | None) -> Floats:
            found = np.bincount(cell, weights=values, minlength=shape[0] * count)
            return found.reshape(shape).astype(np.float64)

        sums, weights, sizes = total(self.sums[used]), total(self.weights[used]), total(None)
        whole, days = weights.sum(axis=0), (sizes > 0).sum(axis=0)
        enough = (sizes.sum(axis=0) >= self.min_rows) & (days > 1) & (whole > 0)
        mean = np.divide(sums.sum(axis=0), whole, out=np.zeros(count), where=enough)
        # The linearised error of a ratio of sums, without B / (B - 1): it only ranks proposals.
        spread = ((sums - mean * weights) ** 2).sum(axis=0)
        error = np.sqrt(np.divide(spread, whole**2, out=np.zeros(count), where=enough))
        scored = enough & (error > 0)
        return np.where(scored, mean / np.where(scored, error, 1.0), -np.inf)


def propose(
    frame: pl.DataFrame, columns: Sequence[str], excesses: Excess, searched: Rows
) -> list[Slice]:
    """Propose groups on which the challenger most exceeds the allowed regression, worst first."""
    cut = [column for name in columns if (column := cut_column(frame[name], searched)) is not None]
    best = sorted(_conditions(cut, excesses, searched), key=lambda found: -found[0])[:REFINED]
    single = [(score, column.slice(at)) for score, column, at in best]
    found: list[tuple[float, Slice, tuple[Column, int] | None]] = [(*each, None) for each in single]
    for score, condition in single:
        for better, column, at in _conditions(cut, excesses, searched & condition.rows):
            # A second condition must make the group worse; else the simpler group is the finding.
            if better > score:
                found.append((better, condition, (column, at)))
    chosen: list[Slice] = []
    for score, first, second in sorted(found, key=lambda found: -found[0]):
        condition = first if second is None else first.combine(second[0].slice(second[1]))
        alike = any(
            (condition.rows & other.rows).sum() > ALIKE * (condition.rows | other.rows).sum()
            for other in chosen
        )
        if score > 0 and not alike:
            chosen.append(condition)
        if len(chosen) == PROPOSALS:
            break
    return chosen


def cut_column(column: pl.Series, searched: Rows) -> Column | None:
    """Cut a column into values, or quarters of the searched rows; None if all values are equal."""
    name = column.name
    if column.dtype.is_numeric() and column.filter(pl.Series(searched)).n_unique() > FEW_VALUES:
        return _quarters(column, searched)
    frequent = _texts(column).value_counts(sort=True)[VALUE].head(MOST_VALUES).to_list()
    if len(frequent) < 2:
        return None
    numbers = {value: number for number, value in enumerate(frequent)}

    def cut(values: pl.Series) -> Codes:
        texts = _texts(values)
        return texts.replace_strict(numbers, default=-1, return_dtype=pl.Int64).to_numpy()

    return Column(name, tuple(f"{name} = {value}" for value in frequent), cut, cut(column))


def _texts(values: pl.Series) -> pl.Series:
    return values.cast(pl.String).fill_null("(missing)").alias(VALUE)


def _quarters(column: pl.Series, searched: Rows) -> Column | None:
    name, values = column.name, column.cast(pl.Float64).to_numpy()
    # Edges from the searched rows only: the other rows judge the proposals.
    known = np.isfinite(values) & searched
    if not known.any():
        return None
    edges = np.unique(np.quantile(values[known], QUARTERS))
    written = _written(edges, values[known])
    inner = [f"{low} < {name} ≤ {high}" for low, high in pairwise(written)]
    names = (f"{name} ≤ {written[0]}", *inner, f"{name} > {written[-1]}", f"{name} missing")

    def cut(values: pl.Series) -> Codes:
        numbers = values.cast(pl.Float64).to_numpy()
        codes = np.searchsorted(edges, numbers, side="left")
        return np.where(np.isfinite(numbers), codes, len(names) - 1).astype(np.int64)

    return Column(name, names, cut, cut(column))


def _written(edges: Floats, values: Floats) -> list[str]:
    """Return edges with four digits, or as many as show them to a hundredth of a quarter."""
    narrowest = np.diff(np.unique([values.min(), *edges, values.max()])).min()
    for digits in range(4, 18):
        written = [f"{edge:.{digits}g}" for edge in edges]
        if np.abs(np.array(written, dtype=np.float64) - edges).max() <= 0.01 * narrowest:
            break
    return written


def _conditions(
    columns: Sequence[Column], excesses: Excess, rows: Rows
) -> Iterator[tuple[float, Column, int]]:
    for column in columns:
        scores = excesses.scores(column.codes, len(column.names), rows)
        for number in np.flatnonzero(np.isfinite(scores)):
            yield float(scores[number]), column, int(number)


def compare_slices(
    match: Match, metric: str, gate: GateSection, searchable: Sequence[str] = ()
) -> tuple[SliceComparison, ...]:
    """Compare the gate's metric, if comparable, on declared slices and on slices found by search.

    A search that is judged on the rows that it searched finds something in any noise. So it uses
    half of the days only, and its proposals are judged on the others. `regressed` follows Holm
    (1979) over all slices together: the probability of blocking a challenger that regresses on no
    slice stays below 1 - confidence, however many there are.
    """
    if match.champion is None or explain_incomparable(match.challenger, match.champion, metric):
        return ()
    slices = chain(_declared(match.challenger.scored.rows, gate), _found(match, gate, searchable))
    judged = [found for each in slices if (found := _judge_slice(match, metric, each, gate))]
    regressed = holm([probability for _, probability in judged], 1.0 - match.confidence)
    return tuple(
        comparison.model_copy(update={"regressed": flag})
        for (comparison, _), flag in zip(judged, regressed, strict=True)
    )


def undefined_slices(match: Match, metric: str, gate: GateSection) -> tuple[str, ...]:
    """Name the declared slices that are not judged, with the reason."""
    judged, found = set(), []
    for each in _declared(match.challenger.scored.rows, gate):
        judged.add(each.column)
        part = match.at(each.rows)
        reasons = list(find_undefined(part, [metric]).values())
        if part.blocks.count < 2:
            reasons.append(f"its rows are in a single {part.blocks.unit}")
        title = f"the slice {each.column} = {each.value}"
        found += [f"{title} is not judged: {reason}" for reason in reasons]
    small = [
        f"no slice of {column} is judged: none of its values has {gate.slice_min_rows:,} test rows"
        for column in gate.slices
        if column not in judged
    ]
    return (*small, *found)


def holm(probabilities: Sequence[float], level: float) -> list[bool]:
    """Return which tests reject, so that any false rejection has at most this probability."""
    flags = [False] * len(probabilities)
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    for position, number in enumerate(order):
        if probabilities[number] > level / (len(order) - position):
            break
        flags[number] = True
    return flags


def _declared(rows: pl.DataFrame, gate: GateSection) -> Iterator[Slice]:
    for column in gate.slices:
        parts = [rows[part][column] for part in slices_of(rows.height, NUMBERS_AT_ONCE)]
        counts = pl.concat([_texts(part).value_counts() for part in parts])
        counts = counts.group_by(VALUE).agg(pl.col("count").sum())
        # Sorted, because `group_by` returns groups in no fixed order.
        for value in counts.filter(pl.col("count") >= gate.slice_min_rows)[VALUE].sort():
            yield Slice(column, value, array_of((_texts(p) == value).to_numpy() for p in parts))


def _found(match: Match, gate: GateSection, searchable: Sequence[str]) -> Iterator[Slice]:
    """Yield the proposals of a search on half of the days, with their rows in the other half.

    Of more than `EXACT_ROWS`, evenly spaced ones are searched.
    """
    blocks, champion = match.blocks, match.champion
    # Adjacent days that are drawn together stay in one half.
    is_searched = (np.arange(blocks.count) // blocks.run) % 2 == 0
    others = array_of(~is_searched[blocks.index[part]] for part in parts_of(blocks.index))
    enough = np.count_nonzero(blocks.sizes(others)) >= gate.min_test_blocks
    if gate.hidden_slices == "off" or champion is None or not enough or not searchable:
        return
    frame = match.challenger.scored.rows
    drawn = evenly_spaced(frame.height, EXACT_ROWS)
    theirs, weights = row_losses(champion, drawn), champion.scored.weights[drawn]
    excess = row_losses(match.challenger, drawn) - theirs - gate.hidden_slice_tolerance * theirs
    thinned = Blocks(blocks.index[drawn], blocks.count, blocks.unit)
    # The searched rows are thinned by `drawn.step`, and the smallest group is, too (rounded up).
    excesses = Excess(weights * excess, weights, thinned, -(-gate.slice_min_rows // drawn.step))
    searched = frame.select(searchable).gather_every(drawn.step)
    for condition in propose(searched, searchable, excesses, ~others[drawn]):
        own = condition.among(frame)
        rows = array_of(own[part] & others[part] for part in parts_of(own))
        sizes = blocks.sizes(rows)
        if sizes.sum() >= gate.slice_min_rows and np.count_nonzero(sizes) >= gate.min_test_blocks:
            yield Slice("", condition.value, rows)


def row_losses(contender: Contender, rows: slice = slice(None)) -> Floats:
    """Return a loss of each of these rows that is comparable between two trainings.

    The task's own may not: that of a regression is scaled by the training rows.
    """
    scored, kind = contender.scored.at(rows), contender.task.kind
    if kind in {"binary", "multiclass"}:
        return log_losses(scored.predictions, scored.labels)
    if kind == "regression":
        return np.asarray((scored.predictions - scored.labels) ** 2, dtype=np.float64)
    return scored.losses


def _judge_slice(
    match: Match, metric: str, each: Slice, gate: GateSection
) -> tuple[SliceComparison, float] | None:
    """Return the comparison and the p-value of no regression beyond the limit, if defined."""
    part = match.at(each.rows)
    if part.champion is None or find_undefined(part, [metric]) or part.blocks.count < 2:
        return None
    ours, theirs = (
        measure_metrics(model, [metric])[metric] for model in (part.challenger, part.champion)
    )
    found = not each.column
    limit = gate.slice_limit(theirs, found=found)
    estimate = improvement_of(part, metric, ours, theirs)
    comparison = SliceComparison(
        column=each.column,
        value=each.value,
        found=found,
        rows=int(each.rows.sum()),
        challenger=ours,
        champion=theirs,
        improvement=estimate.interval(match.confidence),
        regressed=False,
    )
    return comparison, estimate.probability_below(-limit)
