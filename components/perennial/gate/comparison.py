"""Comparison: two models on the same rows, with the uncertainty of their difference.

On a day when more flights are late, every model errs more, and the one that expects delays errs
less than the other. That share of the improvement comes from the choice of test days, and it can be
removed: how many are late is known on every day of the same months, tested or not, and depends on
neither model. A control variate (Lavenberg and Welch, 1981), known from experiments as CUPED.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.data import Split
from perennial.contracts.errors import BadTaskError
from perennial.contracts.gate import Comparison
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset, days_of_periods, period_start
from perennial.engine.evaluation.baseline_rows import BaselineRows
from perennial.engine.evaluation.reference_tests import reference_test
from perennial.engine.evaluation.resampling import (
    Blocks,
    Counts,
    Floats,
    block_columns,
    direction_of,
    independent_error,
    influences,
    mean_influences,
    mean_on_draws,
    resample,
    sign_of,
    standard_error,
)
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.evaluation.uncertainty import Estimate, Spread
from perennial.engine.metrics.arrays import NUMBERS_AT_ONCE, all_finite, array_of, slices_of
from perennial.engine.metrics.metric import EXACT_ROWS, UndefinedMetricError
from perennial.engine.task import Task
from perennial.gate.config import GateSection

# The coefficient costs a degree of freedom. On 9 days that takes back most of what is won, and the
# bounds hold too often; on 18 days or more standard errors fall by a fifth and bounds hold as often
# as they should (benchmarks/results/gate_characteristics.md).
FROM_BLOCKS = 16
SMALLEST = 1e-12  # a variance; below, the label is the same on every day
_COUNTABLE = ("Int", "UInt", "Float", "Boolean")


@dataclass(frozen=True)
class Conditions:
    """The label on the test rows and over the whole of their periods.

    Attributes:
        labels: Label of each test row, as a number, shape [N].
        expected: Mean label of all days of the test rows' periods, each period counting as much as
            it has test rows.
        share: Test days among those days, in (0, 1].
    """

    labels: Floats
    expected: float
    share: float


def conditions_of(dataset: Dataset, rows: pl.DataFrame, kind: str) -> Conditions | None:
    """Return the label's conditions on the test rows' periods; None if unknown.

    It needs a label that counts, and a split that gives each period's days to one part each.
    """
    snapshot = dataset.snapshot
    data, rule = snapshot.data, snapshot.split
    countable = snapshot.columns[data.label].startswith(_COUNTABLE)
    by_time = data.time and rule.resolved_method(data) == "time"
    if kind not in {"binary", "regression"} or not countable or not by_time:
        return None
    label = pl.col(data.label).cast(pl.Float64)
    period, day = period_start(data, rule).alias("period"), pl.col(data.time or "").dt.date()
    parts = [rows[part] for part in slices_of(rows.height, NUMBERS_AT_ONCE)]
    days = pl.concat([part.group_by(period, day.alias("day")).len("rows") for part in parts])
    tested = pl.col("day").n_unique().alias("tested")
    here = days.group_by("period").agg(pl.col("rows").sum(), tested)
    # All splits: the days of a period that were not tested show how unusual the test days are.
    files = snapshot.files_between(*days_of_periods(here["period"], rule))
    labelled = dataset.scan(files=files).filter(label.is_finite())
    whole = dataset.collect(
        labelled.group_by(period).agg(label.mean().alias("label"), day.n_unique().alias("days"))
    )
    periods = here.join(whole, on="period").sort("period")
    weights = periods["rows"].to_numpy() / periods["rows"].sum()
    return Conditions(
        array_of(part[data.label].cast(pl.Float64).to_numpy() for part in parts),
        float(weights @ periods["label"].to_numpy()),
        int(periods["tested"].sum()) / int(periods["days"].sum()),
    )


def estimate_of(
    value: float,
    resampled: tuple[Floats, Floats],
    blocks: Blocks,
    draws: Counts,
    conditions: Conditions | None,
) -> Estimate:
    """Estimate an improvement with its error, corrected for label imbalance where it is known.

    Args:
        value: The improvement on all rows.
        resampled: The improvement on each draw, or on the first ones only, and each block's
            influence on it.
        blocks: Independent blocks of the rows.
        draws: The bootstrap draws.
        conditions: Of the same rows.
    """
    values, pulls = resampled
    plain = Estimate.of(value, independent_error(values, blocks), Spread.of(pulls, blocks))
    if conditions is None or blocks.count < FROM_BLOCKS:
        return plain
    labels = mean_on_draws(conditions.labels, blocks, draws[: len(values)])
    alone = slice(0, None, blocks.run)  # the draws of single blocks: ordinary least squares
    variance = float(labels[alone].var(ddof=1))
    if variance < SMALLEST:
        return plain
    slope = float(np.cov(labels[alone], values[alone])[0, 1]) / variance
    away = float(conditions.labels.mean()) - conditions.expected
    residual = independent_error(values - slope * labels, blocks, fitted=1)
    # The regression line is less certain far from the mean of the test days.
    leverage = 1.0 + away**2 / (blocks.count * variance)
    left = Estimate.of(
        value - slope * away,
        residual * math.sqrt(leverage),
        Spread.of(pulls - slope * mean_influences(conditions.labels, blocks), blocks),
        fitted=1,
        luck=slope * away,
    )
    of_labels = standard_error(labels, blocks)
    # The mean of all N days has an error, too: its variance is n / N of that of the n test days'.
    of_expected = slope**2 * of_labels**2 * conditions.share
    return replace(left, error=math.sqrt(left.error**2 + of_expected))


@dataclass(frozen=True)
class Contender:
    """A model, scored on the test rows with its own preprocessing.

    Attributes:
        turned_off: What `training.simplified` turned off in its training.
        by_carried_code: Whether the code that it carries has scored it, and predicts otherwise than
            the current code. Its losses are then not by the current formula.
    """

    task: Task
    scored: Scored
    turned_off: tuple[str, ...] = ()
    by_carried_code: bool = False

    def at(self, selected: NDArray[np.bool_]) -> "Contender":
        """Return the same model restricted to the selected rows, without their columns."""
        part = self.scored.at(selected)
        scored = Scored(part.losses, part.predictions, part.labels, part.weights, pl.DataFrame())
        return replace(self, scored=scored)


@dataclass(frozen=True)
class Match:
    """Challenger and champion, scored on the same rows.

    Attributes:
        champion: The current champion; None without one that can be scored.
        draws: Bootstrap draws, shared by both models, so that every difference is paired.
        conditions: Conditions of the test days; None if unknown.
        decisive: Confidence for the gate's metric, corrected for repeated tests; None for
            `confidence`.
    """

    challenger: Contender
    champion: Contender | None
    blocks: Blocks
    draws: Counts
    confidence: float
    conditions: Conditions | None = None
    decisive: float | None = None

    def at(self, selected: NDArray[np.bool_]) -> "Match":
        """Return the match restricted to the selected rows, whose conditions are unknown."""
        # Conditions are those of whole periods, and `decisive` is meant for all rows.
        blocks = self.blocks.at(selected)
        return Match(
            self.challenger.at(selected),
            self.champion.at(selected) if self.champion else None,
            blocks,
            blocks.draws(len(self.draws)),
            self.confidence,
        )


def searched_columns(snapshot: Snapshot, gate: GateSection) -> tuple[str, ...]:
    """Return the columns to search for hidden slices, as many as fit in memory.

    Features and meta columns with one plain value per row. Declared slices are excluded: they are
    judged anyway, and on all rows.
    """
    if gate.hidden_slices == "off":
        return ()
    data, columns = snapshot.data, snapshot.columns
    plain = [
        name
        for name in dict.fromkeys((*snapshot.task_columns.features, *data.meta))
        if name not in {*data.text, *gate.slices, data.label}
        and columns[name].startswith(_SEARCHABLE)
    ]
    rows = min(max(snapshot.split_rows.get(Split.TEST, 0), 1), EXACT_ROWS)
    return tuple(plain[: CELLS // rows])


CELLS = 50_000_000  # rows times columns that are searched at once: 400 MB of numbers
_SEARCHABLE = ("Int", "UInt", "Float", "Boolean", "String", "Categorical", "Enum")


def columns_to_keep(snapshot: Snapshot, gate: GateSection) -> tuple[str, ...]:
    """Return the columns of the test rows that blocks and slices need.

    Raises:
        PerennialError: a slice column does not exist.
    """
    gate.require_slices(snapshot.columns)
    return (*block_columns(snapshot.data), *gate.slices, *searched_columns(snapshot, gate))


def finite_contender(task: Task, scored: Scored, turned_off: tuple[str, ...] = ()) -> Contender:
    """Return the challenger, checked to have finite predictions and losses.

    Raises:
        BadTaskError: a prediction or loss is not finite.
    """
    if not (all_finite(scored.losses) and all_finite(scored.predictions)):
        broken = ~np.isfinite(scored.losses)
        broken |= ~np.isfinite(scored.predictions.reshape(len(broken), -1)).all(axis=1)
        raise BadTaskError(
            f"the challenger's predictions or losses are not finite on {broken.sum():,} test rows",
            evidence=f"the first is row {int(broken.argmax())} of the test split",
            action="look for values that encode or predict cannot handle, such as infinities",
        )
    return Contender(task, scored, turned_off)


def explain_incomparable(challenger: Contender, champion: Contender, metric: str) -> str:
    """Say why a metric is not comparable between the models, and what to do; empty if it is."""
    task = challenger.task
    weighs_alike = np.array_equal(challenger.scored.weights, champion.scored.weights)
    if task.kind != "statistic":
        if metric != "loss":  # metrics of predictions and labels ignore weights
            return ""
        if champion.by_carried_code:
            why = "the task's code changed, and with it maybe the formula"
        elif not weighs_alike:
            why = "the models weight the rows differently, for example because they are fitted"
        else:
            return ""
        return f"loss is not comparable: {why}; use {' or '.join(task.metrics)} instead"
    ours, theirs = (
        each.task.exposure(each.scored.predictions, each.scored.weights)
        for each in (challenger, champion)
    )
    if not np.array_equal(ours, theirs):
        return (
            f"{metric} is not comparable: the models were measured on different parts of "
            f"{np.count_nonzero(ours != theirs):,} of {len(ours):,} rows; train with settings that "
            "cut rows as the champion's do"
        )
    if weighs_alike or metric in task.invariant_metrics:
        return ""
    others = ", ".join(sorted(task.invariant_metrics)) or "a metric that ignores row weights"
    return (
        f"{metric} is not comparable: the models weight the rows differently, for example because "
        f"their vocabularies differ; use {others} instead"
    )


def measure_metrics(contender: Contender, metrics: Sequence[str]) -> dict[str, float]:
    """Return a model's value of each metric."""
    return {name: contender.scored.metric(contender.task, name) for name in metrics}


def find_undefined(match: Match, metrics: Sequence[str]) -> dict[str, str]:
    """Return the metrics that are undefined on the rows for either model, with the reason."""
    found = {}
    for name in metrics:
        try:
            for each in (match.challenger, match.champion):
                if each is not None:
                    measure_metrics(each, [name])
        except UndefinedMetricError as error:
            found[name] = f"{error.problem}: {error.evidence}"
    return found


def compare(match: Match, metrics: Sequence[str]) -> tuple[Comparison, ...]:
    """Return each metric of both models, the gate's first, with the improvement's interval.

    Raises:
        UndefinedMetricError: the test rows do not define one of them.
    """
    champion, why = match.champion, ""
    ours = measure_metrics(match.challenger, metrics)
    theirs = measure_metrics(champion, metrics) if champion is not None else {}
    comparisons = []
    for name in metrics:
        if champion is not None:
            why = explain_incomparable(match.challenger, champion, name)
        if champion is None or why:
            comparison = Comparison(
                metric=name,
                challenger=ours[name],
                champion=None,
                improvement=None,
                incomparable=why,
            )
        else:
            confidence = match.decisive if name == metrics[0] else None
            comparison = _compared(match, name, (ours[name], theirs[name]), confidence)
        comparisons.append(comparison)
    return tuple(comparisons)


def _compared(
    match: Match, name: str, figures_of_both: tuple[float, float], confidence: float | None
) -> Comparison:
    ours, theirs = figures_of_both
    estimate, task = improvement_of(match, name, ours, theirs), match.challenger.task
    textbook = None
    if match.champion is not None:
        scored = match.challenger.scored, match.champion.scored
        textbook = reference_test(task, name, *scored, match.confidence)
    known = match.blocks.count > 1
    return Comparison(
        metric=name,
        challenger=ours,
        champion=theirs,
        improvement=estimate.interval(confidence or match.confidence) if known else None,
        luck=estimate.luck,
        standard_error=estimate.error if known else None,
        degrees=estimate.degrees if known else None,
        effective_blocks=estimate.effective if known else None,
        correlation=estimate.correlation if known else None,
        confidence=confidence,
        reference_test=textbook,
    )


def improvement_of(match: Match, metric: str, ours: float, theirs: float) -> Estimate:
    """Return the improvement with its error, given both figures on all rows."""
    sign = sign_of(direction_of(match.challenger.task, metric, "gate.metric"))
    both = [each for each in (match.challenger, match.champion) if each is not None]
    values = [resample(each.task, metric, each.scored, match.blocks, match.draws) for each in both]
    pulls = [influences(each.task, metric, each.scored, match.blocks) for each in both]
    draws = min(map(len, values))  # a metric without a fast form for one model has fewer draws
    # Challenger minus champion, on each draw and block by block.
    differences = sign * (values[0][:draws] - values[1][:draws]), sign * (pulls[0] - pulls[1])
    return estimate_of(
        sign * (ours - theirs), differences, match.blocks, match.draws, match.conditions
    )


def figure_of(match: Match, metric: str, value: float) -> Estimate:
    """Return the challenger's own figure with its error, from the same draws."""
    task, scored = match.challenger.task, match.challenger.scored
    values = resample(task, metric, scored, match.blocks, match.draws)
    spread = Spread.of(influences(task, metric, scored, match.blocks), match.blocks)
    return Estimate.of(value, independent_error(values, match.blocks), spread)


@dataclass(frozen=True)
class MeasuredBaselines:
    """Baselines measured by `check_skeleton`.

    Attributes:
        scores: Baseline → metrics on the test split.
        rows: The predictions behind them.
    """

    scores: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    rows: BaselineRows = field(default_factory=BaselineRows)

    @classmethod
    def read(cls, skeleton: Path) -> "MeasuredBaselines":
        """Read the folder of the `SkeletonReport`.

        Raises:
            PerennialError: a file is damaged.
        """
        return cls(SkeletonReport.read(skeleton).baselines, BaselineRows.read(skeleton))


def match_beside_baselines(match: Match, rows: BaselineRows) -> Match | None:
    """Return the match on the rows that baselines were measured on; None if they are unknown."""
    selected = np.zeros(len(match.challenger.scored.labels), dtype=bool)
    if not len(rows.positions) or rows.positions[-1] >= len(selected):
        return None  # of an earlier version, or of another split
    selected[rows.positions] = True
    return match if selected.all() else match.at(selected)


def compare_with_baselines(
    part: Match, baselines: MeasuredBaselines, names: Sequence[str], metrics: Sequence[str]
) -> dict[str, Comparison]:
    """Return the comparison with each baseline whose stored predictions reproduce its score.

    By the first metric that the baseline has: a constant has no correlation, for example.

    Args:
        part: The match on the rows that the baselines were measured on.
        baselines: Their scores and predictions.
        names: The baselines to compare with.
        metrics: The gate's first.
    """
    found, rows = {}, baselines.rows
    for name in names:
        predicted, scores = rows.predictions.get(name), baselines.scores.get(name, {})
        metric = next((each for each in metrics if each in scores), "")
        if predicted is None or not metric or (metric == "loss" and name not in rows.losses):
            continue
        score, ours = scores[metric], part.challenger.scored
        losses = rows.losses.get(name, np.full(len(predicted), np.nan))
        scored = Scored(losses, predicted, rows.labels, ours.weights, ours.rows)
        baseline = Contender(part.challenger.task, scored)
        rivals = replace(part, champion=baseline, decisive=None)
        if find_undefined(rivals, [metric]):
            continue
        comparison = compare(rivals, (metric,))[0]
        # The task may measure differently once it is fitted to all rows.
        own = comparison.champion
        if own is not None and math.isclose(own, score, rel_tol=1e-6, abs_tol=1e-9):
            found[name] = comparison
    return found
