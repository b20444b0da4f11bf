"""Verdict: puts comparison, slices, baselines and floors together into one decision."""

from collections.abc import Mapping

from components.contracts.errors import PerennialError
from components.contracts.gate import BlockPerformance, Verdict
from components.engine.evaluation.resampling import Blocks
from components.engine.task import Task
from components.evaluate_model.champion import Champion
from components.evaluate_model.comparison import (
    Contender,
    Match,
    compare,
    compare_slices,
    direction_of,
)
from components.evaluate_model.config import GateSection
from components.evaluate_model.gate import Evidence, judge, summarize


def reach_verdict(
    gate: GateSection,
    challenger: Contender,
    champion: Champion,
    blocks: Blocks,
    *,
    weights_sha256: str,
    baselines: Mapping[str, Mapping[str, float]],
    performance: tuple[BlockPerformance, ...],
) -> Verdict:
    """Measure what the gate asks for, judge it, and put it on record.

    Args:
        gate: The contract's section.
        challenger: Scored on the test rows.
        champion: Who is compared with, scored on the same rows.
        blocks: Of those rows.
        weights_sha256: Of the challenger.
        baselines: From check_skeleton.
        performance: The challenger's, block by block.
    """
    task = challenger.task
    names = _metrics(gate, task)
    metric = names[0]
    directions = {name: direction_of(task, name) for name in names}
    draws = blocks.draws(gate.resamples)
    match = Match(challenger, champion.contender, blocks, draws, gate.confidence)
    comparisons = compare(match, names)
    slices = compare_slices(
        match, metric, gate.slices, min_rows=gate.slice_min_rows, limit=gate.slice_max_regression
    )
    reasons = judge(
        gate,
        Evidence(
            comparisons=comparisons,
            directions=directions,
            slices=slices,
            baselines=baselines,
            champion_version=champion.version,
            champion_failure=champion.failure,
            same_weights=bool(champion.weights_sha256)
            and champion.weights_sha256 == weights_sha256,
            test_rows=len(challenger.scored.labels),
            test_blocks=blocks.count,
            unit=blocks.unit,
        ),
    )
    return Verdict(
        promote=all(reason.held for reason in reasons),
        summary=summarize(reasons),
        reasons=reasons,
        comparisons=comparisons,
        slices=slices,
        notes=champion.notes,
        baselines={name: dict(values) for name, values in baselines.items()},
        champion_version=champion.version,
        test_rows=len(challenger.scored.labels),
        test_blocks=blocks.count,
        performance_reference=performance,
    )


def _metrics(gate: GateSection, task: Task) -> tuple[str, ...]:
    """The gate's metric first, then the task's and those that the gate asks for."""
    if not task.metrics:
        raise PerennialError(
            "the task has no metrics, so nothing can be compared",
            action="name at least one metric and its direction in the task's `metrics`",
        )
    metric = gate.metric or next(iter(task.metrics))
    return tuple(dict.fromkeys([metric, *task.metrics, *gate.max_regression, *gate.required]))
