"""Verdict: combine comparison, slices, baselines and floors into one decision."""

from dataclasses import dataclass

from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import BlockPerformance, Reach, Repeats, Serving, Verdict
from perennial.contracts.training import Direction
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.resampling import Blocks, blocks_of
from perennial.gate.baselines import MeasuredBaselines, compare_with_baselines
from perennial.gate.champion import Champion
from perennial.gate.comparison import (
    Contender,
    Match,
    compare,
    compare_with_anchor,
    direction_of,
    searched_columns,
    undefined,
)
from perennial.gate.conditions import Conditions, conditions_of
from perennial.gate.config import GateSection
from perennial.gate.decision import Evidence, RareClass, judge, summarize
from perennial.gate.figures import described, figures_of
from perennial.gate.power import reach_line, reach_of
from perennial.gate.repeats import Days, days_of
from perennial.gate.slices import compare_slices, undefined_slices

RARER_BELOW = 0.5


@dataclass(frozen=True)
class JudgedRows:
    """Properties of the test rows beside their scores.

    Attributes:
        blocks: Independent blocks of the rows.
        conditions: How their labels compare to those of their whole periods; None if unknown.
        searchable: Columns to search for hidden slices.
        rare: The rarer of two classes; None if there are not two.
        days: Runs of adjacent days; empty without a time column.
        repeats: Earlier tests of this champion on these days; None if not counted.
    """

    blocks: Blocks
    conditions: Conditions | None = None
    searchable: tuple[str, ...] = ()
    rare: RareClass | None = None
    days: Days = ()
    repeats: Repeats | None = None


def judged_rows(dataset: Dataset, challenger: Contender, gate: GateSection) -> JudgedRows:
    """Return the properties of the rows that a challenger was scored on."""
    rows, task = challenger.scored.rows, challenger.task
    searchable = searched_columns(dataset.snapshot, gate)
    conditions = conditions_of(dataset, rows, task.kind)
    blocks = blocks_of(rows, dataset.snapshot.data)
    rare, days = _rare_class(challenger, blocks), days_of(rows, dataset.snapshot.data.time)
    return JudgedRows(blocks, conditions, searchable, rare, days)


def reach_verdict(
    gate: GateSection,
    challenger: Contender,
    champion: Champion,
    test: JudgedRows,
    *,
    weights_sha256: str,
    baselines: MeasuredBaselines,
    performance: tuple[BlockPerformance, ...],
    serving: Serving | None = None,
) -> Verdict:
    """Measure what the gate asks for, and decide.

    Args:
        gate: The contract's section.
        challenger: Scored on the test rows.
        champion: Scored on the same rows.
        test: Properties of those rows.
        weights_sha256: SHA-256 of the challenger's weights.
        baselines: Measured by check_skeleton.
        performance: The challenger's loss by block.
        serving: The challenger in a clean process.
    """
    match = _match(gate, challenger, champion, test)
    directions, left_out = _directions(gate, match)
    names = tuple(directions)
    comparisons = compare(match, names)
    anchor = compare_with_anchor(match, champion.anchor, names[0])
    figures = figures_of(match, names)
    slices = compare_slices(match, names[0], gate, test.searchable)
    beside = {}
    if comparisons[0].champion is None:
        beside = compare_with_baselines(match, baselines, gate.must_beat, names[0])
    evidence = Evidence(
        comparisons=comparisons,
        directions=directions,
        slices=slices,
        baselines=baselines.scores,
        beside_baselines=beside,
        champion_version=champion.version,
        champion_failure=champion.failure,
        same_weights="" != champion.weights_sha256 == weights_sha256,
        test_rows=len(challenger.scored.labels),
        test_blocks=test.blocks.count,
        unit=test.blocks.unit,
        serving=serving,
        gains=champion.gains(serving),
        rare=test.rare,
        repeats=test.repeats,
        anchor=anchor,
        figures=figures,
    )
    notes = (*champion.notes, *left_out)
    return described(_judged(gate, evidence, test.blocks, notes, performance), match, figures)


def _judged(
    gate: GateSection,
    evidence: Evidence,
    blocks: Blocks,
    notes: tuple[str, ...],
    performance: tuple[BlockPerformance, ...],
) -> Verdict:
    """Return the verdict without each model's own metrics and calibration."""
    reasons, decisive = judge(gate, evidence), evidence.comparisons[0]
    reach = reach_of(gate, decisive, blocks)
    return Verdict(
        promote=all(reason.held for reason in reasons),
        summary=summarize(reasons),
        reasons=reasons,
        comparisons=tuple(evidence.comparisons),
        slices=tuple(evidence.slices),
        reach=reach,
        repeats=evidence.repeats,
        anchor=evidence.anchor,
        serving=evidence.serving,
        notes=(*notes, *_short_reach(reach, decisive.metric, blocks)),
        baselines={name: dict(values) for name, values in evidence.baselines.items()},
        champion_version=evidence.champion_version,
        test_rows=evidence.test_rows,
        test_blocks=evidence.test_blocks,
        performance_reference=performance,
    )


def _rare_class(challenger: Contender, blocks: Blocks) -> RareClass | None:
    labels = challenger.scored.labels
    if challenger.task.kind != "binary":
        return None
    rare = labels == (1.0 if labels.mean() <= RARER_BELOW else 0.0)
    return RareClass(int(rare.sum()), blocks.at(rare).count)


def _match(gate: GateSection, challenger: Contender, champion: Champion, test: JudgedRows) -> Match:
    blocks, draws = test.blocks, test.blocks.draws(gate.resamples)
    known, repeats = test.conditions, test.repeats
    decisive = 1.0 - repeats.level if repeats is not None and repeats.earlier else None
    return Match(challenger, champion.contender, blocks, draws, gate.confidence, known, decisive)


def _short_reach(reach: Reach | None, metric: str, blocks: Blocks) -> tuple[str, ...]:
    if reach is None or reach.sufficient:
        return ()
    return (reach_line(reach, metric, blocks.unit),)


def scalars_of(verdict: Verdict) -> dict[str, float]:
    """Return a verdict's scalars for dashboards."""
    values = {"promote": float(verdict.promote)}
    for comparison in verdict.comparisons:
        values[f"test/{comparison.metric}"] = comparison.challenger
        if comparison.improvement is not None:
            values[f"test/{comparison.metric}_improvement"] = comparison.improvement.estimate
    if verdict.reach is not None:
        values["test/detectable_improvement"] = verdict.reach.detectable
    if verdict.serving is not None:
        values["serving/megabytes"] = verdict.serving.megabytes
        if verdict.serving.milliseconds is not None:
            values["serving/milliseconds"] = verdict.serving.milliseconds
    return values


def _directions(gate: GateSection, match: Match) -> tuple[dict[str, Direction], tuple[str, ...]]:
    """Return the metrics to compare, the gate's first, and why metrics or slices are left out.

    The gate's own metrics must be defined; the task's other metrics are left out if undefined.
    """
    task = match.challenger.task
    if not task.metrics:
        raise PerennialError(
            "the task has no metrics, so nothing can be compared",
            action="name at least one metric and its direction in the task's `metrics`",
        )
    metric = gate.metric or next(iter(task.metrics))
    asked = (metric, *gate.max_regression, *gate.required)
    missing = undefined(match, [name for name in task.metrics if name not in asked])
    names = [name for name in dict.fromkeys([metric, *task.metrics, *asked]) if name not in missing]
    reasons = (*missing.values(), *undefined_slices(match, metric, gate))
    return {name: direction_of(task, name) for name in names}, reasons
