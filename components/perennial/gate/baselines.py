"""Baselines: compare the challenger with each on the same rows, with bounds of the difference."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perennial.contracts.gate import Comparison
from perennial.contracts.skeleton import SkeletonReport
from perennial.engine.evaluation.baseline_rows import BaselineRows
from perennial.engine.evaluation.scoring import Scored
from perennial.gate.comparison import Contender, Match, compare, undefined


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


def compare_with_baselines(
    match: Match, baselines: MeasuredBaselines, names: Sequence[str], metric: str
) -> dict[str, Comparison]:
    """Return the comparison with each baseline whose stored predictions reproduce its score.

    Args:
        match: The challenger on all test rows.
        baselines: Measured on all test rows, or a sample.
        names: Baselines to compare with.
        metric: The gate's.
    """
    found, rows = {}, baselines.rows
    for name in names:
        predicted, score = rows.predictions.get(name), baselines.scores.get(name, {}).get(metric)
        if predicted is None or score is None or metric == "loss":
            continue
        selected = np.zeros(len(match.challenger.scored.labels), dtype=bool)
        if len(rows.positions) and rows.positions[-1] >= len(selected):
            continue  # of another split
        selected[rows.positions] = True
        part = match if selected.all() else match.at(selected)
        rivals = replace(part, champion=_contender(part, predicted, rows.labels), decisive=None)
        if undefined(rivals, [metric]):
            continue
        comparison = compare(rivals, (metric,))[0]
        # The task may measure differently once it is fitted to all rows.
        own = comparison.champion
        if own is not None and math.isclose(own, score, rel_tol=1e-6, abs_tol=1e-9):
            found[name] = comparison
    return found


def _contender(
    match: Match, predicted: NDArray[np.float64], labels: NDArray[np.float64]
) -> Contender:
    """Return a baseline as a contender; its losses are unknown."""
    ours = match.challenger.scored
    unknown = np.full(len(labels), np.nan)
    scored = Scored(unknown, predicted, labels, ours.weights, ours.rows)
    return Contender(match.challenger.task, scored)
