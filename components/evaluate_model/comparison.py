"""Comparison: two models on the same rows, with the uncertainty of their difference."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.special import stdtr

from components.contracts.errors import BadTaskError, PerennialError
from components.contracts.gate import Comparison, SliceComparison
from components.contracts.snapshot import Snapshot
from components.contracts.training import Direction
from components.engine.evaluation.resampling import (
    Blocks,
    Counts,
    block_columns,
    interval,
    resample,
    sign_of,
    standard_error,
)
from components.engine.evaluation.scoring import Scored
from components.engine.task import Task


@dataclass(frozen=True)
class Contender:
    """A model, scored on the test rows with its own preprocessing."""

    task: Task
    scored: Scored

    def at(self, selected: NDArray[np.bool_]) -> "Contender":
        """The same model on some of the rows."""
        scored = self.scored
        rows = scored.rows.filter(pl.Series(selected))
        part = scored.at(selected)
        return Contender(
            self.task, Scored(part.losses, part.predictions, part.labels, part.weights, rows)
        )


@dataclass(frozen=True)
class Match:
    """Challenger and champion on the same rows.

    Attributes:
        challenger: Who wants to become champion.
        champion: Who is; None when there is none that can be scored.
        blocks: Of the rows.
        draws: Shared by both, so that every difference is paired.
        confidence: Of each bound.
    """

    challenger: Contender
    champion: Contender | None
    blocks: Blocks
    draws: Counts
    confidence: float

    def at(self, selected: NDArray[np.bool_]) -> "Match":
        """The same match on some of the rows."""
        blocks = self.blocks.at(selected)
        return Match(
            self.challenger.at(selected),
            self.champion.at(selected) if self.champion else None,
            blocks,
            blocks.draws(len(self.draws)),
            self.confidence,
        )


def columns_to_keep(snapshot: Snapshot, slices: Sequence[str]) -> tuple[str, ...]:
    """The columns that blocks and slices need.

    Raises:
        PerennialError: a slice column does not exist.
    """
    unknown = sorted(set(slices) - set(snapshot.columns))
    if unknown:
        raise PerennialError(
            f"gate.slices names {', '.join(unknown)}, which the data does not have",
            evidence=f"its columns are {', '.join(snapshot.columns)}",
            action="correct the names in the contract",
        )
    return (*block_columns(snapshot.data), *slices)


def finite_contender(task: Task, scored: Scored) -> Contender:
    """The challenger, if every test row got a number.

    Raises:
        BadTaskError: some did not.
    """
    broken = ~np.isfinite(scored.losses)
    broken |= ~np.isfinite(scored.predictions.reshape(len(broken), -1)).all(axis=1)
    if broken.any():
        raise BadTaskError(
            f"the challenger's predictions or losses are not finite on {broken.sum():,} test rows",
            evidence=f"the first is row {int(broken.argmax())} of the test split",
            action="look for values that encode or predict cannot take, such as infinities",
        )
    return Contender(task, scored)


def direction_of(task: Task, metric: str) -> Direction:
    """Which way a metric is better.

    Raises:
        PerennialError: the task has no such metric.
    """
    if metric == "loss":
        return "minimize"
    if metric not in task.metrics:
        raise PerennialError(
            f"the gate names the metric {metric!r}, which the task does not compute",
            evidence=f"it has {', '.join(task.metrics)} and loss",
            action="correct the contract's gate section",
        )
    return task.metrics[metric]


def incomparable(challenger: Contender, champion: Contender, metric: str) -> str:
    """Why a metric does not mean the same for both, and what to do about it; empty if it does."""
    task = challenger.task
    if task.kind != "statistic":
        return ""
    ours, theirs = (
        each.task.exposure(each.scored.predictions, each.scored.weights)
        for each in (challenger, champion)
    )
    if not np.array_equal(ours, theirs):
        return (
            f"{metric} does not compare: the models were measured on different parts of "
            f"{np.count_nonzero(ours != theirs):,} of {len(ours):,} rows; train with settings that "
            "cut rows where the champion's do"
        )
    weighs_alike = np.array_equal(challenger.scored.weights, champion.scored.weights)
    if weighs_alike or metric in task.invariant_metrics:
        return ""
    others = ", ".join(sorted(task.invariant_metrics)) or "a metric that the weights do not enter"
    return (
        f"{metric} does not compare: the models weigh the rows differently, as two vocabularies "
        f"do; take {others} in its place"
    )


def compare(match: Match, metrics: Sequence[str]) -> tuple[Comparison, ...]:
    """Each metric of both models, with the interval of the improvement."""
    task = match.challenger.task
    ours = match.challenger.scored.metrics(task)
    if match.champion is None:
        return tuple(
            Comparison(metric=name, challenger=ours[name], champion=None, improvement=None)
            for name in metrics
        )
    theirs = match.champion.scored.metrics(match.champion.task)
    comparisons = []
    for name in metrics:
        if why := incomparable(match.challenger, match.champion, name):
            comparisons.append(
                Comparison(
                    metric=name,
                    challenger=ours[name],
                    champion=None,
                    improvement=None,
                    incomparable=why,
                )
            )
            continue
        sign = sign_of(direction_of(task, name))
        estimate = sign * (ours[name] - theirs[name])
        improvement = interval(estimate, _improvements(match, name), match.blocks, match.confidence)
        comparisons.append(
            Comparison(
                metric=name,
                challenger=ours[name],
                champion=theirs[name],
                improvement=improvement,
            )
        )
    return tuple(comparisons)


def compare_slices(
    match: Match, metric: str, columns: Sequence[str], *, min_rows: int, limit: float
) -> tuple[SliceComparison, ...]:
    """The gate's metric, if it compares, on every value of the slice columns with enough rows.

    `regressed` follows Holm (1979): the probability of blocking a challenger that regresses on no
    slice stays below 1 - confidence, however many slices there are.
    """
    if match.champion is None or incomparable(match.challenger, match.champion, metric):
        return ()
    rows = match.challenger.scored.rows
    found = []
    for column in columns:
        for value, selected in _slices(rows[column], min_rows):
            judged = _compare_slice(match, metric, selected, limit)
            if judged is not None:
                comparison, probability = judged
                named = comparison.model_copy(update={"column": column, "value": value})
                found.append((named, probability))
    regressed = _holm([probability for _, probability in found], 1.0 - match.confidence)
    return tuple(
        comparison.model_copy(update={"regressed": flag})
        for (comparison, _), flag in zip(found, regressed, strict=True)
    )


def _compare_slice(
    match: Match, metric: str, selected: NDArray[np.bool_], limit: float
) -> tuple[SliceComparison, float] | None:
    """The comparison, and how probable it is if there is no regression beyond the limit."""
    part = match.at(selected)
    if part.champion is None:
        return None
    sign = sign_of(direction_of(match.challenger.task, metric))
    ours, theirs = (
        each.scored.metrics(each.task)[metric] for each in (part.challenger, part.champion)
    )
    estimate = sign * (ours - theirs)
    values = _improvements(part, metric)
    improvement = interval(estimate, values, part.blocks, part.confidence)
    if improvement is None:
        return None
    error = standard_error(values, part.blocks)
    if error > 0:
        probability = float(stdtr(part.blocks.count - 1, (estimate + limit) / error))
    else:
        probability = 1.0 if estimate + limit >= 0 else 0.0
    comparison = SliceComparison(
        column="",
        value="",
        rows=int(selected.sum()),
        challenger=ours,
        champion=theirs,
        improvement=improvement,
        regressed=False,
    )
    return comparison, probability


def _improvements(match: Match, metric: str) -> NDArray[np.float64]:
    """The improvement on every draw."""
    values = [
        resample(each.task, metric, each.scored, match.blocks, match.draws)
        for each in (match.challenger, match.champion)
        if each is not None
    ]
    draws = min(map(len, values))  # a metric may have its fast form for one model only
    sign = sign_of(direction_of(match.challenger.task, metric))
    return sign * (values[0][:draws] - values[1][:draws])


def _slices(column: pl.Series, min_rows: int) -> list[tuple[str, NDArray[np.bool_]]]:
    values = column.cast(pl.String).fill_null("(missing)")
    counts = values.value_counts(sort=True)
    wanted = counts.filter(pl.col("count") >= min_rows)[column.name].sort()
    return [(value, (values == value).to_numpy()) for value in wanted]


def _holm(probabilities: Sequence[float], level: float) -> list[bool]:
    """Which of several tests reject, so that any false rejection has at most this probability."""
    flags = [False] * len(probabilities)
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    for position, number in enumerate(order):
        if probabilities[number] > level / (len(order) - position):
            break
        flags[number] = True
    return flags
