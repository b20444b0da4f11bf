"""Plots of predictions on the test rows, bounded in size: ROC, confusion matrix, residuals.

Curves of more than `EXACT_ROWS` rows are drawn from that many evenly spaced ones.
"""

from collections.abc import Iterator, Mapping

import numpy as np
from sklearn.metrics import roc_curve

from perennial.engine.evaluation.scoring import ScoredBatch
from perennial.engine.metrics.arrays import evenly_spaced, parts_of
from perennial.engine.metrics.classification import CLASSES, Codes, answers_of
from perennial.engine.metrics.metric import EXACT_ROWS, Floats, Kind
from perennial.reports.charts import line_chart
from perennial.reports.heat_map import heat_map
from perennial.reports.page import Page

ROC_POINTS = 100
SHOWN_CLASSES = 24
"""The most frequent classes, where there are more: a larger matrix cannot be read."""
TABLE_CLASSES = 12
RESIDUAL_BINS = 20
QUANTILES = {"10%": 0.1, "median": 0.5, "90%": 0.9}


def add_plots(page: Page, scored: Mapping[str, ScoredBatch], kind: Kind) -> None:
    """Add the plots that the kind of task has, of each model by its name."""
    if kind in CLASSES:
        page.heading("Predicted and true classes")
        if kind == "binary":
            _add_roc(page, scored)
        counted = {
            name: confusion_counts(each.predictions, each.labels) for name, each in scored.items()
        }
        for name, (classes, counts) in counted.items():
            _draw_confusion(page, name, classes, counts, len(scored[name].labels))
        for name, (classes, counts) in counted.items():
            if len(classes) <= TABLE_CLASSES:
                _list_confusion(page, name, classes, counts)
    elif kind == "regression":
        page.heading("Residuals")
        for name, each in scored.items():
            _add_residuals(page, name, each)


def drawn_rows(scored: ScoredBatch) -> ScoredBatch:
    """Return the rows from which curves are drawn."""
    return scored.at(evenly_spaced(len(scored.labels), EXACT_ROWS))


def roc_points(scored: ScoredBatch) -> list[tuple[float, float, float]]:
    """Return points of the ROC curve: false and true positive rate, threshold; or none.

    They lie at evenly spaced false positive rates; without both classes there is no curve.
    """
    drawn = drawn_rows(scored)
    scores, labels = drawn.predictions, drawn.labels
    if len(np.unique(labels)) < 2:
        return []
    false, true, thresholds = roc_curve(labels, scores)
    thresholds[0] = max(1.0, float(scores.max()))  # infinity, which no dashboard takes
    grid = np.linspace(0.0, 1.0, ROC_POINTS)
    rates, limits = np.interp(grid, false, true), np.interp(grid, false, thresholds)
    points = zip(grid.tolist(), rates.tolist(), limits.tolist(), strict=True)
    return [(0.0, 0.0, float(thresholds[0])), *points]


def confusion_counts(predictions: Floats, labels: Floats) -> tuple[Codes, Codes]:
    """Return the classes shown, and rows by true class (down) and predicted class (across)."""

    def pairs() -> Iterator[tuple[Codes, Codes]]:
        for part in parts_of(predictions):
            yield labels[part].astype(np.int64), answers_of(predictions[part])

    highest = max(int(each.max(initial=0)) for pair in pairs() for each in pair)
    totals = np.zeros(highest + 1, dtype=np.int64)
    for pair in pairs():
        totals += np.bincount(np.concatenate(pair), minlength=len(totals))
    classes = np.flatnonzero(totals)
    # Stable, so that classes of equally many rows are chosen alike in every run.
    order = np.argsort(-totals[classes], kind="stable")
    frequent = np.sort(classes[order[:SHOWN_CLASSES]])
    counts = np.zeros((len(frequent), len(frequent)), dtype=np.int64)
    for truth, answers in pairs():
        inside = np.isin(truth, frequent) & np.isin(answers, frequent)
        down, across = (np.searchsorted(frequent, each[inside]) for each in (truth, answers))
        np.add.at(counts, (down, across), 1)
    return frequent, counts


def _add_roc(page: Page, scored: Mapping[str, ScoredBatch]) -> None:
    curves = {name: [(x, y) for x, y, _ in roc_points(each)] for name, each in scored.items()}
    drawn = {name: points for name, points in curves.items() if points}
    if not drawn:
        page.text("No ROC curve: the test rows have one class.")
        return
    page.figure(
        line_chart(
            {**drawn, "chance": [(0.0, 0.0), (1.0, 1.0)]},
            x_label="false positive rate",
            y_label="true positive rate",
        ),
        "ROC curve: each point is a threshold of the probability.",
    )


def _draw_confusion(page: Page, name: str, classes: Codes, counts: Codes, total: int) -> None:
    rows, right = int(counts.sum()), int(np.trace(counts))
    left = total - rows
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    note = f" {left:,} rows of rarer classes are left out." if left else ""
    page.figure(
        heat_map(
            shares.tolist(),
            x_label=f"predicted class, {name}",
            y_label="true class",
            shade="share of row",
            names=[str(number) for number in classes],
        ),
        f"Confusion matrix of the {name}: {right:,} of {rows:,} rows are on the diagonal.{note}",
    )


def _list_confusion(page: Page, name: str, classes: Codes, counts: Codes) -> None:
    page.folded_table(
        f"Confusion matrix of the {name}, in rows",
        ("true class", *(f"predicted {number}" for number in classes)),
        [
            (str(number), *(f"{count:,}" for count in line))
            for number, line in zip(classes, counts, strict=True)
        ],
    )


def _add_residuals(page: Page, name: str, each: ScoredBatch) -> None:
    each = drawn_rows(each)
    residuals = each.predictions - each.labels
    # Bins of equally many rows: of equal width, most would be empty where predictions are skewed.
    order = np.argsort(each.predictions, kind="stable")
    parts = [part for part in np.array_split(order, RESIDUAL_BINS) if len(part)]
    places = [float(each.predictions[part].mean()) for part in parts]
    series = {
        label: [
            (x, float(np.quantile(residuals[part], share)))
            for x, part in zip(places, parts, strict=True)
        ]
        for label, share in QUANTILES.items()
    }
    off = float(residuals.mean())
    page.figure(
        line_chart(series, x_label=f"prediction of the {name}", y_label="residual"),
        f"Prediction minus label of the {name}, in {len(parts)} bins of equally many rows. On "
        f"average, predictions are {abs(off):.3g} too {'high' if off > 0 else 'low'}.",
    )
