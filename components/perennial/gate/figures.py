"""Figures: each model's own metrics with bounds, its calibration, and its loss by block."""

from collections.abc import Mapping, Sequence
from datetime import datetime, time

import numpy as np
import polars as pl

from perennial.contracts.block import BlockFile
from perennial.contracts.data import DataSection, Split
from perennial.contracts.gate import BlockPerformance, CalibrationBin, Classification, Figure
from perennial.data.dataset import Dataset, block_start
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.metrics.arrays import parts_of
from perennial.engine.metrics.catalogue import named_metrics
from perennial.engine.metrics.classification import CLASSES
from perennial.engine.metrics.probabilities import sureness
from perennial.gate.comparison import Contender, Match, figure_of
from perennial.gate.plots import confusion_counts, drawn_rows, roc_points

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
    drawn = drawn_rows(contender.scored)
    given, true = sureness(drawn.predictions, drawn.labels)
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
    scored, is_binary = contender.scored, contender.task.kind == "binary"
    classes, counts = confusion_counts(scored.predictions, scored.labels)
    return Classification(
        classes=tuple(classes.tolist()),
        counts=tuple(tuple(row) for row in counts.tolist()),
        roc=tuple(roc_points(scored)) if is_binary else (),
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
    """Return the mean loss in each block of time, by the examples' weights.

    Rows without a time lie in no block.
    """
    start = block_start(data)
    tables = []
    for each in scored:
        for part in parts_of(each.losses):
            weights = each.weights[part]
            sums = pl.DataFrame({"loss": weights * each.losses[part], "weight": weights})
            table = pl.concat([each.rows[part].select(start=start), sums], how="horizontal")
            tables.append(table.group_by("start").agg(pl.len().alias("rows"), pl.all().sum()))
    dated = pl.concat(tables).drop_nulls("start")
    whole = dated.group_by("start").agg(pl.all().sum()).sort("start")
    return tuple(
        BlockPerformance(start=datetime.combine(start, time()), rows=rows, loss=loss / weight)
        for start, rows, loss, weight in whole.iter_rows()
        if weight  # a block whose examples all count nothing has no mean
    )


def performance_by_file(
    scored: Mapping[Split, Scored], dataset: Dataset
) -> tuple[BlockPerformance, ...]:
    """Return each file's mean loss on held-out rows, by weight, in the snapshot's order."""
    snapshot = dataset.snapshot
    found = np.zeros((3, len(snapshot.files)))
    for split, each in scored.items():
        stop = 0
        for place, count in enumerate(dataset.count_by_file(split)):
            start, stop = stop, stop + count
            mine = each.at(slice(start, stop))
            found[:, place] += count, mine.weights.sum(), float(mine.weights @ mine.losses)
    return tuple(
        BlockPerformance(
            files=(BlockFile(path=snapshot.paths[place], sha256=snapshot.files[place].sha256),),
            rows=int(rows),
            loss=float(loss / weight),
        )
        for place, (rows, weight, loss) in enumerate(found.T)
        if weight
    )


def calibration_error_of(contender: Contender) -> float:
    """Return the catalogue's expected calibration error of class probabilities."""
    scored = contender.scored
    found = named_metrics()["expected_calibration_error"]
    return found.measure(scored.predictions, scored.labels)
