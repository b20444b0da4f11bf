"""Metrics of statistics: `loss`, `bytes` and `correct` per token, and each row's counts."""

import numpy as np

from perennial.engine.metrics.metric import (
    STATISTIC,
    Floats,
    Groups,
    Metric,
    Sums,
    added,
    first_by_second,
    mean_of,
    ratio,
)

LARGEST_EXPONENT = 700.0  # beyond it a float64 overflows


def statistic_metrics() -> tuple[Metric, ...]:
    """Return the metrics of losses and tags per token, and of rows with any number of labels."""
    return (
        Metric(
            "mean_loss", "minimize", STATISTIC,
            "Mean of the losses that the task's `statistic` returns; examples count by their "
            "weight.", "an example", _weighted("loss"), first_by_second, statistics=("loss",),
        ),
        Metric(
            "perplexity", "minimize", STATISTIC,
            "Exponential of the mean loss per token; comparable only under the same vocabulary.",
            "a token", _weighted("loss"), _perplexity, statistics=("loss",),
        ),
        Metric(
            "bits_per_byte", "minimize", STATISTIC,
            "Loss of all tokens in bits, divided by the bytes of the raw text (UTF-8) that they "
            "encode; comparable under any vocabulary.",
            "a byte of text", _weighted("loss", "bytes"), _bits_per_byte,
            statistics=("loss", "bytes"),
        ),
        Metric(
            "token_accuracy", "maximize", STATISTIC,
            "Share of labelled words whose predicted tag is the label.", "a labelled word",
            _weighted("correct"), first_by_second, statistics=("correct",),
        ),
        Metric(
            "entity_f1", "maximize", STATISTIC,
            "Harmonic mean of precision and recall over the entities of all rows together; an "
            "entity is right if its kind, first and last word are (Tjong Kim Sang and De Meulder, "
            "2003).",
            "an entity, true or predicted", _counts, _f1,
            statistics=("entity_hits", "entities", "predicted_entities"),
        ),
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
        *_forecast_metrics(),
    )  # fmt: skip


def _forecast_metrics() -> tuple[Metric, ...]:
    return (
        Metric(
            "forecast_rmse", "minimize", STATISTIC,
            "Root of the mean squared error over all steps of all forecasts.", "a row",
            _weighted("squared"), lambda sums: np.sqrt(first_by_second(sums)),
            statistics=("squared",),
        ),
        Metric(
            "forecast_mae", "minimize", STATISTIC,
            "Mean absolute error over all steps of all forecasts.", "a row",
            _weighted("absolute"), first_by_second, statistics=("absolute",),
        ),
        Metric(
            "forecast_pinball", "minimize", STATISTIC,
            "Mean pinball loss over all steps of all forecasts, at the task's own quantile.",
            "a row", _weighted("pinball"), first_by_second, statistics=("pinball",),
        ),
    )  # fmt: skip


def _weighted(*names: str) -> Sums:
    """Return the weighted sum of each column, and the weights'."""

    def sums(statistics: Floats, weights: Floats, groups: Groups) -> Floats:
        means = statistics.mean(axis=1)
        columns = [weights * means[:, at] for at in range(len(names))]
        return np.stack([added(each, groups) for each in (*columns, weights)], axis=-1)

    return sums


def _perplexity(sums: Floats) -> Floats:
    return np.exp(np.minimum(first_by_second(sums), LARGEST_EXPONENT))


def _bits_per_byte(sums: Floats) -> Floats:
    return ratio(sums[..., 0] / np.log(2), sums[..., 1])


def _counts(statistics: Floats, _weights: Floats, groups: Groups) -> Floats:
    totals = statistics.sum(axis=1)
    return np.stack([added(column, groups) for column in totals.T], axis=-1)


def _f1(sums: Floats) -> Floats:
    return ratio(2 * sums[..., 0], sums[..., 1] + sums[..., 2])
