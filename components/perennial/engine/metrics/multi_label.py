"""Multi-label metrics, of statistics that count each row's right, true and predicted labels."""

import numpy as np

from perennial.engine.metrics.metric import Floats, Groups, Kind, Metric, added, mean_of, ratio

STATISTIC: frozenset[Kind] = frozenset({"statistic"})


def multi_label_metrics() -> tuple[Metric, ...]:
    """Return metrics of rows that have any number of labels."""
    return (
        Metric(
            "micro_f1", "maximize", STATISTIC,
            "Harmonic mean of precision and recall over the labels of all rows together.",
            "a label, true or predicted", _counts, _f1,
            statistics=("hits", "labelled", "predicted"),
        ),
        Metric(
            "exact_match", "maximize", STATISTIC,
            "Share of rows whose predicted labels are exactly the true ones.", "a row",
            *mean_of(lambda statistics, _weights: statistics[:, :, 0].mean(axis=1)),
            statistics=("exact",),
        ),
    )  # fmt: skip


def _counts(statistics: Floats, _weights: Floats, groups: Groups) -> Floats:
    totals = statistics.sum(axis=1)
    return np.stack([added(column, groups) for column in totals.T], axis=-1)


def _f1(sums: Floats) -> Floats:
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])
