"""Slices: compare the models on declared groups and on groups found by search."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.gate import SliceComparison
from perennial.engine.metrics.probabilities import log_losses
from perennial.gate.comparison import (
    Contender,
    Match,
    figures,
    improvement_of,
    incomparable,
    undefined,
)
from perennial.gate.config import GateSection
from perennial.gate.hidden_slices import Excess, propose

Rows = NDArray[np.bool_]


@dataclass(frozen=True)
class Slice:
    """A group of rows that is judged separately.

    Attributes:
        column: The column that selects them; empty for a slice found by search.
        value: The column's value, or the conditions found by search.
        rows: Whether each row belongs to it, shape [N].
    """

    column: str
    value: str
    rows: Rows


def compare_slices(
    match: Match, metric: str, gate: GateSection, searchable: Sequence[str] = ()
) -> tuple[SliceComparison, ...]:
    """Compare the gate's metric, if comparable, on declared slices and on slices found by search.

    A search that is judged on the rows that it searched finds something in any noise. So it uses
    half of the days only, and its proposals are judged on the others. `regressed` follows Holm
    (1979) over all slices together: the probability of blocking a challenger that regresses on no
    slice stays below 1 - confidence, however many there are.

    Args:
        match: On all test rows.
        metric: The gate's.
        gate: The contract's section.
        searchable: Columns of the rows that are searched.
    """
    if match.champion is None or incomparable(match.challenger, match.champion, metric):
        return ()
    slices = [*_declared(match.challenger.scored.rows, gate), *_found(match, gate, searchable)]
    slices = [each for each in slices if not undefined(match.at(each.rows), [metric])]
    judged = [found for each in slices if (found := _judged(match, metric, each, gate))]
    regressed = holm([probability for _, probability in judged], 1.0 - match.confidence)
    return tuple(
        comparison.model_copy(update={"regressed": flag})
        for (comparison, _), flag in zip(judged, regressed, strict=True)
    )


def undefined_slices(match: Match, metric: str, gate: GateSection) -> tuple[str, ...]:
    """Name the declared slices that are not judged, with the reason."""
    declared = list(_declared(match.challenger.scored.rows, gate))
    found = [
        f"no slice of {column} is judged: none of its values has {gate.slice_min_rows:,} test rows"
        for column in gate.slices
        if column not in {each.column for each in declared}
    ]
    for each in declared:
        part = match.at(each.rows)
        reasons = list(undefined(part, [metric]).values())
        if part.blocks.count < 2:
            reasons.append(f"its rows are in a single {part.blocks.unit}")
        title = f"the slice {each.column} = {each.value}"
        found += [f"{title} is not judged: {reason}" for reason in reasons]
    return tuple(found)


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
        values = rows[column].cast(pl.String).fill_null("(missing)")
        counts = values.value_counts(sort=True)
        for value in counts.filter(pl.col("count") >= gate.slice_min_rows)[column].sort():
            yield Slice(column, value, (values == value).to_numpy())


def _found(match: Match, gate: GateSection, searchable: Sequence[str]) -> Iterator[Slice]:
    """Yield the proposals of a search on half of the days, with their rows in the other half."""
    blocks, champion = match.blocks, match.champion
    # Adjacent days that are drawn together stay in one half.
    searched = (blocks.index // blocks.run) % 2 == 0
    enough = blocks.at(~searched).count >= gate.min_test_blocks if not searched.all() else False
    if gate.hidden_slices == "off" or champion is None or not enough or not searchable:
        return
    theirs, weights = row_losses(champion), champion.scored.weights
    excess = row_losses(match.challenger) - theirs - gate.hidden_slice_tolerance * theirs
    harm = Excess(weights * excess, weights, blocks, gate.slice_min_rows)
    for condition in propose(match.challenger.scored.rows, searchable, harm, searched):
        rows = condition.rows & ~searched
        if rows.sum() >= gate.slice_min_rows and (blocks.at(rows).count >= gate.min_test_blocks):
            yield Slice("", condition.text, rows)


def row_losses(contender: Contender) -> NDArray[np.float64]:
    """Return a loss per row that is comparable between two trainings.

    The task's own may not: that of a regression is scaled by the training rows.
    """
    scored, kind = contender.scored, contender.task.kind
    if kind in {"binary", "multiclass"}:
        return log_losses(scored.predictions, scored.labels)
    if kind == "regression":
        return np.asarray((scored.predictions - scored.labels) ** 2, dtype=np.float64)
    return scored.losses


def _judged(
    match: Match, metric: str, each: Slice, gate: GateSection
) -> tuple[SliceComparison, float] | None:
    """Return the comparison and the p-value of no regression beyond the limit."""
    part = match.at(each.rows)
    if part.champion is None or part.blocks.count < 2:
        return None
    ours, theirs = (figures(model, [metric])[metric] for model in (part.challenger, part.champion))
    found = not each.column
    limit = gate.slice_max_regression
    if found:
        limit = max(limit, gate.hidden_slice_tolerance * abs(theirs))
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
