"""Figures: what the challenger measures by itself, champion or not, and how far that is certain."""

from collections.abc import Sequence
from datetime import datetime, time

import numpy as np
import polars as pl

from components.clients.dataset import block_start
from components.contracts.data import DataSection
from components.contracts.gate import BlockPerformance, CalibrationBin, Figure, Verdict
from components.engine.evaluation.resampling import interval, resample
from components.engine.evaluation.scoring import Scored, concatenated
from components.evaluate_model.comparison import Contender, Match

CALIBRATION_BINS = 10


def described(verdict: Verdict, match: Match, metrics: Sequence[str]) -> Verdict:
    """The verdict with what the challenger measures by itself."""
    return verdict.model_copy(
        update={
            "figures": figures_of(match, metrics),
            "calibration": calibration_of(match.challenger),
        }
    )


def figures_of(match: Match, metrics: Sequence[str]) -> tuple[Figure, ...]:
    """Each metric of the challenger, by the same draws of whole blocks as the comparison's."""
    task, scored = match.challenger.task, match.challenger.scored
    values = scored.metrics(task)
    figures = []
    for name in metrics:
        drawn = resample(task, name, scored, match.blocks, match.draws)
        bounds = interval(values[name], drawn, match.blocks, match.confidence)
        figures.append(Figure(metric=name, value=values[name], interval=bounds))
    return tuple(figures)


def calibration_of(contender: Contender) -> tuple[CalibrationBin, ...]:
    """Probabilities and what came true, in bins with equally many rows; empty without any."""
    task, scored = contender.task, contender.scored
    if task.kind == "binary":
        given, true = scored.predictions, scored.labels
    elif task.kind == "multiclass":
        given = scored.predictions.max(axis=1)
        true = scored.predictions.argmax(axis=1) == scored.labels
    else:
        return ()
    order = np.argsort(given, kind="stable")
    return tuple(
        CalibrationBin(
            rows=len(part), predicted=float(given[part].mean()), observed=float(true[part].mean())
        )
        for part in np.array_split(order, CALIBRATION_BINS)
        if len(part)
    )


def performance_by_block(
    scored: Sequence[Scored], data: DataSection
) -> tuple[BlockPerformance, ...]:
    """Mean loss in each block of time, by the examples' weights.

    Args:
        scored: The model on held-out splits, with the time column kept.
        data: Names the time column and the blocks' length; without a time there are no blocks.
    """
    if not data.time:
        return ()
    starts = pl.concat([part.rows.select(start=block_start(data)) for part in scored])
    whole = concatenated(scored)
    sums = pl.DataFrame({"loss": whole.weights * whole.losses, "weight": whole.weights})
    by_block = pl.concat([starts, sums], how="horizontal").group_by("start")
    mean = pl.col("loss").sum() / pl.col("weight").sum()
    table = by_block.agg(pl.len().alias("rows"), mean).sort("start")
    return tuple(
        BlockPerformance(start=datetime.combine(start, time()), rows=rows, loss=loss)
        for start, rows, loss in table.select("start", "rows", "loss").iter_rows()
    )
