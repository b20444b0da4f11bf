"""Language: figures of a model that names `loss` and `bytes`, each per token of an example."""

import numpy as np

from perennial.engine.metrics.metric import (
    Floats,
    Groups,
    Kind,
    Metric,
    Sums,
    added,
    first_by_second,
    ratio,
)

STATISTIC: frozenset[Kind] = frozenset({"statistic"})
LARGEST_EXPONENT = 700.0  # beyond it a float64 overflows


def language_metrics() -> tuple[Metric, ...]:
    """Those of a loss per token, averaged over tokens: examples count by their weight."""
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
