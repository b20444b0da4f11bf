"""Figures: each model's own metrics with bounds, its calibration, and its loss by block."""

from collections.abc import Mapping, Sequence
from datetime import datetime, time

import numpy as np
import polars as pl

from perennial.contracts.block import BlockFile
from perennial.contracts.data import DataSection, Split
from perennial.contracts.gate import BlockPerformance, CalibrationBin, Classification, Figure
from perennial.data.dataset import Dataset, block_start
from perennial.engine.evaluation.scoring import Scored, concatenated
from perennial.engine.metrics.catalogue import named_metrics
from perennial.engine.metrics.classification import CLASSES
from perennial.engine.metrics.probabilities import sureness
from perennial.gate.comparison import Contender, Match, figure_of
from perennial.gate.plots import confusion_counts, roc_points

CALIBRATION_BINS = 10


def figures_of(match: Match, metrics: Sequence[str]) -> tuple[Figure, ...]:
    """Return the challenger's metrics with bounds, from the comparison's draws of whole blocks."""
    values = match.challenger.scored.metrics(match.challenger.task)
    figures = []
    for name in metrics:
        found = figure_of(match, name, values[name])
        bounds = found.interval(match.confidence) if match.blocks.count > 1 else None
        figures.append(Figure(metric=name, value=values[name], interval=bounds))
    return tuple(figures)


def calibration_of(contender: Contender) -> tuple[CalibrationBin, ...]:
    """Return predicted and observed probabilities in bins of equally many rows."""
    if contender.task.kind not in CLASSES:
        return ()
    given, true = sureness(contender.scored.predictions, contender.scored.labels)
    order = np.argsort(given, kind="stable")
    return tuple(
        CalibrationBin(
            rows=len(part), predicted=float(given[part].mean()), observed=float(true[part].mean())
        )
        for part in np.array_split(order, CALIBRATION_BINS)
        if len(part)
    )


def classification_of(contender: Contender) -> Classification | None:
    """Return the confusion matrix and, for two classes, the ROC curve; None without classes."""
    if contender.task.kind not in CLASSES:
        return None
    predictions, labels = contender.scored.predictions, contender.scored.labels
    classes, counts = confusion_counts(predictions, labels)
    return Classification(
        classes=tuple(classes.tolist()),
        counts=tuple(tuple(row) for row in counts.tolist()),
        roc=tuple(roc_points(predictions, labels)) if contender.task.kind == "binary" else (),
    )


def performance_of(
    scored: Mapping[Split, Scored], dataset: Dataset
) -> tuple[BlockPerformance, ...]:
    """Return the model's mean loss in each block of time; in each file if the rows have no time."""
    data = dataset.snapshot.data
    if data.time:
        return performance_by_block(tuple(scored.values()), data)
    return performance_by_file(scored, dataset)


def performance_by_block(
    scored: Sequence[Scored], data: DataSection
) -> tuple[BlockPerformance, ...]:
    """Return the mean loss in each block of time, by the examples' weights."""
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


def performance_by_file(
    scored: Mapping[Split, Scored], dataset: Dataset
) -> tuple[BlockPerformance, ...]:
    """Return each file's mean loss on held-out rows, by weight, in the snapshot's order."""
    snapshot = dataset.snapshot
    places = range(len(snapshot.files))
    found = [np.repeat(places, dataset.count_by_file(split)) for split in scored]
    whole = concatenated(tuple(scored.values()))
    rows = np.bincount(np.concatenate(found), minlength=len(places))
    weights = np.bincount(np.concatenate(found), whole.weights, len(places))
    losses = np.bincount(np.concatenate(found), whole.weights * whole.losses, len(places))
    return tuple(
        BlockPerformance(
            files=(BlockFile(path=snapshot.paths[place], sha256=snapshot.files[place].sha256),),
            rows=int(rows[place]),
            loss=float(losses[place] / weights[place]),
        )
        for place in places
        if weights[place]
    )


def calibration_error_of(contender: Contender) -> float:
    """Return the catalogue's expected calibration error of class probabilities."""
    scored = contender.scored
    found = named_metrics()["expected_calibration_error"]
    return found.measure(scored.predictions, scored.labels)
